"""A device that has no memory left: what it holds, by kind, and what would need less."""

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from siafu.errors import BudgetError
from siafu.memory import give_back
from siafu.ops import CSR

_GB = 1e9
OVER_TIME = "snapshots"
"""What is worked on together of a dynamic graph."""
_REMEDIES = {
    "macrobatch": "use --rows-on pinned (or host), --precision bf16, a smaller --batch-size or "
    "--fanout",
    "graph": "use --precision bf16, train on minibatches (--strategy batchgnn), on more ranks, or "
    "use --strategy sar",
    OVER_TIME: "use --time-block 8 (fewer snapshots at once), --precision bf16, more ranks, or "
    "groups of nodes (--node-parts)",
}
FEATURES, EDGES, HOT, MACROBATCHES = "features", "edges", "copies of hot rows", "macrobatches"
RECORDINGS, WEIGHTS = "recordings of steps", "weights and optimiser"
KEPT = "rows kept between epochs"
Held = dict[str, int]
"""Bytes by what they are."""
_runs: list[torch.device] = []
"""The run that this process is in, if any."""


@contextmanager
def one_run(device: torch.device) -> Iterator[None]:
    """Have a run of this process begin and end with nothing of its own on the device.

    Peaks count from its beginning. On the host, what it freed goes back to the kernel: the process
    may go on with other work. A run within another one, as of a callback that infers, leaves all
    of that to the outer one, whose recordings may need what would be let go of.
    """
    if _runs:
        yield
        return
    _let_go(device)
    _runs.append(device)
    try:
        yield
    finally:
        _runs.clear()
        with suppress(RuntimeError):  # a device that failed is told of by what is on its way
            _let_go(device)
        give_back()


def _let_go(device: torch.device) -> None:
    if device.type == "cuda":
        gc.collect()  # Python frees what stands in a cycle when it pleases
        # cuBLAS is given 32 MiB for each stream that multiplies, and each run has its own streams.
        getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


@contextmanager
def naming_what_is_held(
    device: torch.device,
    unit: str,
    held: Callable[[], Held],
    *,
    rest: str = "rows of layers and the rest",
) -> Iterator[None]:
    """Turn torch's error inside into one that names what lies on the device, by kind.

    `rest` is what to call all that is on it beside those.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        kinds, in_use, kept = Counter(held()), 0, 0
        if device.type == "cuda":
            in_use = torch.cuda.memory_allocated(device)
            kept = torch.cuda.memory_reserved(device) - in_use
            # A recording has memory that nobody else is given, whether it is in use or not.
            recorded, alive = _in_recordings(device)
            kinds[RECORDINGS] += recorded
            in_use, kept = in_use + recorded - alive, kept - (recorded - alive)
        kinds[rest] = max(0, in_use - sum(kinds.values()))
        told = ", ".join(f"{name} {size / _GB:.2f} GB" for name, size in kinds.items() if size)
        raise BudgetError(
            "The device has no memory left.",
            seen=f"{told or 'nothing'}; {kept / _GB:.2f} GB kept by torch for later",
            fix=_REMEDIES.get(unit, "use a smaller model, or more ranks"),
        ) from error


def held_by(workload: Any, optimiser: torch.optim.Optimizer | None = None) -> Held:
    """Return what a training holds on its device, whatever its strategy."""
    kinds: Counter[str] = Counter()
    network = getattr(workload, "network", None)
    kinds.update(held_by_shard(getattr(workload, "shard", None)))
    if (feed := getattr(network, "feed", None)) is not None:
        kinds.update(held_by_feed(feed))
    if (source := getattr(getattr(workload, "runner", None), "source", None)) is not None:
        kinds.update({FEATURES: on_device(source.inputs), EDGES: on_device(source.edges)})
    kinds[RECORDINGS] += on_device(getattr(network, "recorded_tensors", ()))
    if (book := getattr(workload, "book", None)) is not None:
        kinds[KEPT] += on_device(book.kept_tensors())
    groups = [] if optimiser is None else optimiser.param_groups
    weights = [weight for group in groups for weight in group["params"]]
    states = [] if optimiser is None else [v for s in optimiser.state.values() for v in s.values()]
    kinds[WEIGHTS] += on_device([*weights, *(weight.grad for weight in weights), *states])
    return dict(kinds)


def held_by_shard(shard: Any) -> Held:
    """Return what a part takes on its device."""
    csr, x = getattr(shard, "csr", None), getattr(shard, "x", None)
    columns = [getattr(shard, name, None) for name in ("edge_attr", "edge_type", "edge_y")]
    return {FEATURES: on_device([x]), EDGES: on_device([csr, *columns])}


def held_by_feed(feed: Any) -> Held:
    """Return what minibatches are drawn from, and those that are drawn."""
    drawn = (tensor for one in feed.sampler.alive for tensor in one.tensors)
    kinds = {MACROBATCHES: on_device(drawn)}
    if feed.place.rows == "host":
        return kinds
    graph, readers = feed.relay.graph, feed.relay.served.node_columns.values()
    edges = [graph.indptr, graph.index, graph.sums_E, *graph.edge_columns.values()]
    copies = (tensor for reader in readers for tensor in getattr(reader, "copies", ()))
    return kinds | {
        FEATURES: on_device(getattr(reader, "rows", None) for reader in readers),
        EDGES: on_device(edges),
        HOT: on_device(copies),
    }


def on_device(things: Iterable[Any]) -> int:
    """Return the bytes of tensors and matrices that lie on a GPU; of slices of one, once."""
    tensors: list[Any] = []
    for thing in things:
        is_csr = isinstance(thing, CSR)
        tensors += [thing.indptr, thing.index, thing.weight] if is_csr else [thing]
    found = [tensor for tensor in tensors if isinstance(tensor, Tensor) and tensor.is_cuda]
    storages = (tensor.untyped_storage() for tensor in found)
    return sum({one.data_ptr(): one.nbytes() for one in storages}.values())


def _in_recordings(device: torch.device) -> tuple[int, int]:
    """Return the bytes that torch keeps for CUDA graphs alone, and those of them that are alive."""
    total = alive = 0
    for segment in torch.cuda.memory_snapshot():
        pool = tuple(segment.get("segment_pool_id", (0, 0)))
        if segment["device"] == (device.index or 0) and pool != (0, 0):
            total += segment["total_size"]
            alive += segment["allocated_size"]
    return total, alive
