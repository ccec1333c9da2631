"""A device that has no memory left: what it holds, by kind, and what would need less."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from siafu.errors import BudgetError
from siafu.ops import CSR

_GB = 1e9
_REMEDIES = {
    "macrobatch": "use --rows-on pinned (or host), --precision bf16, a smaller --batch-size or "
    "--fanout",
    "graph": "use --precision bf16, train on minibatches (--strategy batchgnn), on more ranks, or "
    "use --strategy sar",
}
Held = dict[str, int]
"""Bytes by what they are."""


@contextmanager
def naming_what_is_held(
    device: torch.device, unit: str, held: Callable[[], Held]
) -> Iterator[None]:
    """Turn torch's error inside into one that names what lies on the device, by kind."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        kinds = held()
        in_use, kept = 0, 0
        if device.type == "cuda":
            in_use = torch.cuda.memory_allocated(device)
            kept = torch.cuda.memory_reserved(device) - in_use
        kinds["rows of layers and the rest"] = max(0, in_use - sum(kinds.values()))
        told = ", ".join(f"{name} {size / _GB:.2f} GB" for name, size in kinds.items() if size)
        raise BudgetError(
            "The device has no memory left.",
            seen=f"{told or 'nothing'}; {kept / _GB:.2f} GB kept by torch for later",
            fix=_REMEDIES.get(unit, "use a smaller model, or more ranks"),
        ) from error


def held_by(shard: Any, optimiser: torch.optim.Optimizer, feed: Any = None) -> Held:
    """Return what a training holds on its device, whatever its strategy."""
    csr, x = getattr(shard, "csr", None), getattr(shard, "x", None)
    edges = [csr.indptr, csr.index, csr.weight] if isinstance(csr, CSR) else []
    edges += [getattr(shard, name, None) for name in ("edge_attr", "edge_type")]
    rows = [x.indptr, x.index, x.weight] if isinstance(x, CSR) else [x]
    if feed is not None and feed.place.rows != "host":
        graph, readers = feed.relay.graph, feed.relay.served.node_columns.values()
        edges += [graph.indptr, graph.index, graph.sums_E, *graph.edge_columns.values()]
        rows += [getattr(reader, "rows", None) for reader in readers]
    weights = [w for group in optimiser.param_groups for w in group["params"]]
    states = [v for state in optimiser.state.values() for v in state.values()]
    return {
        "features": _bytes_on_device(rows),
        "edges": _bytes_on_device(edges),
        "weights and optimiser": _bytes_on_device([*weights, *(w.grad for w in weights), *states]),
    }


def _bytes_on_device(tensors: list[Any]) -> int:
    return sum(t.nbytes for t in tensors if isinstance(t, Tensor) and t.is_cuda)
