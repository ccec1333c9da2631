"""Sampling in-edges by address: a sample depends on its key, the node's id and the row alone.

So any rank, thread count and order of requests gives the same one.

Shapes: N rows, E edges, Q requests, B minibatches, S sampled edges.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from siafu.errors import ConfigError, PlanError
from siafu.ops.contract import Requests
from siafu.ops.kernels import PLAIN, sample_kernels
from siafu.ops.numbering import LEAST_KEYS, Numbering
from siafu.ops.random.draws import DrawKey
from siafu.ops.sample.reference import ALL

EDGES_AT_ONCE = 1 << 19
"""Edges whose draws are compared at a time, where draws are of their sources."""


def sample_positions(  # noqa: PLR0913 - a request is three columns
    indptr: Tensor,
    rows_Q: Tensor,
    ids_Q: Tensor,
    batch_Q: Tensor,
    keys_B: Sequence[DrawKey],
    fanout: int,
    *,
    replace: bool = False,
    weight_E: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return counts_Q and positions_S: the edges drawn for each request, grouped by request.

    Request q draws edges of row rows_Q[q], indptr[row] to indptr[row + 1], with the key
    keys_B[batch_Q[q]] and the node's id ids_Q[q]. Fan-out -1 takes all edges, in order. Without
    replacement: min(fanout, degree) distinct edges, all sets equally likely, in order if they are
    all; with it: `fanout` edges, none of an empty row. With weights an edge is as likely as its
    weight says, and one whose weight is not above 0 is never picked, even at -1.
    """
    _check_graph(indptr, weight_E, fanout)
    requests = _requests(rows_Q, ids_Q, batch_Q, key_words(keys_B).to(indptr.device))
    _check_range("rows", rows_Q, len(indptr) - 1)
    _check_range("minibatches with a key", batch_Q, len(keys_B))
    return draw_positions(indptr.contiguous(), requests, fanout, weight_E, replace=replace)


def draw_positions(
    indptr: Tensor,
    requests: Requests,
    fanout: int,
    weight_E: Tensor | None = None,
    *,
    replace: bool = False,
    sums_E: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return what `sample_positions` does of requests that are known to be right.

    No number is read to be checked, which a device would be waited for. `sums_E` spares the running
    sums of weights (`running_sums`) where they are at hand.
    """
    chosen = sample_kernels(indptr.device)
    return chosen.sample(indptr, requests, fanout, weight_E, replace=replace, sums_E=sums_E)


def shared_positions(
    indptr: Tensor,
    rows_Q: Tensor,
    batch_Q: Tensor,
    keys_B2: Tensor,
    fanout: int,
    ids_of: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """Return what `sample_positions` does where draws are of the edges' sources.

    `ids_of` tells the number in the whole graph of the source of each edge. Requests of one key
    have one draw per source, so rows with sources in common mostly keep the same of them. Each
    row by itself is drawn without replacement, as ever; parallel edges have equal draws.
    """
    first_Q = indptr.index_select(0, rows_Q)
    indptr_Q = _running(indptr.index_select(0, rows_Q + 1) - first_Q)
    found: list[tuple[Tensor, Tensor]] = []
    low, count = 0, len(rows_Q)
    while low < count or not found:
        # As many rows at a time as have their edges in little memory, at least one.
        end = indptr_Q[low] + EDGES_AT_ONCE
        high = max(low + 1, int(torch.searchsorted(indptr_Q, end, right=True)) - 1)
        offsets = indptr_Q[low : high + 1] - indptr_Q[low]
        length = int(offsets[-1])
        shift_E = (first_Q[low:high] - offsets[:-1]).repeat_interleave(
            offsets.diff(), output_size=length
        )
        edges_E = shift_E.add_(torch.arange(length, device=indptr.device))
        batch = batch_Q[low:high].contiguous()
        if length > EDGES_AT_ONCE:
            found.append(_of_hub(edges_E, batch, keys_B2, fanout, ids_of))
        else:
            found.append(_shared(offsets, edges_E, batch, keys_B2, fanout, ids_of))
        low = high
    counts_Q, positions_S = (torch.cat(column) for column in zip(*found, strict=True))
    return counts_Q, positions_S


def _shared(
    offsets: Tensor,
    edges_E: Tensor,
    batch: Tensor,
    keys_B2: Tensor,
    fanout: int,
    ids_of: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """Return what rows keep of their edges; sources are read of those alone that are cut."""
    degree = offsets.diff()
    is_cut_E = (degree > fanout).repeat_interleave(degree, output_size=len(edges_E))
    ids_E = torch.zeros_like(edges_E)
    ids_E[is_cut_E] = ids_of(edges_E[is_cut_E])
    counts, kept = sample_kernels(offsets.device).share(offsets, ids_E, batch, keys_B2, fanout)
    return counts, edges_E.index_select(0, kept)


def _of_hub(
    edges_E: Tensor,
    batch: Tensor,
    keys_B2: Tensor,
    fanout: int,
    ids_of: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """Return what one long row keeps: the smallest draws of those that its slices would keep."""
    near = [
        _shared(edges_E.new_tensor([0, len(piece)]), piece, batch, keys_B2, fanout, ids_of)[1]
        for piece in edges_E.split(EDGES_AT_ONCE)
    ]
    joined = torch.cat(near)
    offsets = joined.new_tensor([0, len(joined)])
    return _shared(offsets, joined, batch, keys_B2, fanout, ids_of)


def _running(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def key_words(keys_B: Sequence[DrawKey]) -> Tensor:
    """Return int64 [B, 2]: the cipher's key of each minibatch."""
    words = torch.tensor([key.row_words() for key in keys_B], dtype=torch.int64)
    return words.view(-1, 2)


def sample_reference(  # noqa: PLR0913 - as above
    indptr: Tensor,
    rows_Q: Tensor,
    ids_Q: Tensor,
    batch_Q: Tensor,
    keys_B: Sequence[DrawKey],
    fanout: int,
    *,
    replace: bool = False,
    weight_E: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition, one request at a time. Slow; used by tests alone."""
    requests = _requests(rows_Q, ids_Q, batch_Q, key_words(keys_B))
    return PLAIN.sample.sample(indptr, requests, fanout, weight_E, replace=replace)


def warm_up_sampling(*, weight_dtype: torch.dtype | None = None) -> None:
    """Compile the kernels, or load them from disk, before ranks start and race to.

    Covers `Numbering` of int32 and int64 keys too.
    """
    one = torch.zeros(1, dtype=torch.int64)
    weight = None if weight_dtype is None else torch.ones(2, dtype=weight_dtype)
    key = DrawKey(seed=0, epoch=0, purpose=0)
    sample_positions(torch.tensor([0, 2]), one, one, one, [key], 1, weight_E=weight)
    shared_positions(torch.tensor([0, 2]), one, one, key_words([key]), 1, lambda edges: edges)
    keys = torch.arange(LEAST_KEYS + 1)
    Numbering().add(keys)
    Numbering().add(keys.int())


def _requests(rows_Q: Tensor, ids_Q: Tensor, batch_Q: Tensor, keys_B2: Tensor) -> Requests:
    columns = {"rows": rows_Q, "ids": ids_Q, "batch": batch_Q}
    if any(c.dtype != torch.int64 or c.shape != (len(rows_Q),) for c in columns.values()):
        shapes = (f"{name} {tuple(c.shape)} {c.dtype}" for name, c in columns.items())
        raise PlanError(
            "A request is a row, an id and a minibatch.",
            seen=", ".join(shapes),
            fix="pass three int64 columns of one length",
        )
    rows_Q, ids_Q, batch_Q = (c.contiguous() for c in columns.values())
    return Requests(rows_Q, ids_Q, batch_Q, keys_B2)


def _check_range(what: str, numbers_Q: Tensor, bound: int) -> None:
    if not len(numbers_Q):
        return
    least, most = (int(end) for end in numbers_Q.aminmax())
    if least < 0 or most >= bound:
        raise PlanError(
            f"A request is beyond the {what}.",
            seen=f"{least if least < 0 else most}, there are {bound}",
            fix=f"use numbers from 0 to {bound - 1}",
        )


def _check_graph(indptr: Tensor, weight_E: Tensor | None, fanout: int) -> None:
    if fanout < ALL:
        raise ConfigError(
            "The fan-out is out of range.", seen=f"fanout={fanout}", fix="use -1 (all), 0 or more"
        )
    if indptr.dtype != torch.int64:
        raise PlanError(
            "Sampling reads int64 offsets.",
            seen=f"{indptr.dtype} on {indptr.device}",
            fix="keep the graph's offsets as int64",
        )
    if weight_E is not None:
        _check_weight(weight_E, int(indptr[-1]))


def _check_weight(weight_E: Tensor, num_edges: int) -> None:
    floats = (torch.float32, torch.float64)
    if weight_E.dtype not in floats or weight_E.dim() != 1 or len(weight_E) < num_edges:
        raise PlanError(
            "Weights must be a row of float32 or float64, one per edge.",
            seen=f"{weight_E.dtype}, shape {tuple(weight_E.shape)}, {num_edges} edges",
            fix="pass the weights of this graph's edges",
        )
