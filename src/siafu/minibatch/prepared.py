"""What layers would derive from each sub-graph, derived for several at once, ahead of training.

Sub-graphs side by side are one matrix of blocks: its loops and its transpose are theirs, in as many
operations as one of them would take.

Shapes: G sub-graphs, M rows of one, E edges of all, C columns of all.
"""

from dataclasses import replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from siafu.minibatch.subgraph import Looped, Subgraph
from siafu.ops import CSR


def prepare(graphs: list[Subgraph], *, loops: bool, first_layer: bool) -> list[Subgraph]:
    """Return the sub-graphs with the transposes of their layers, and with `loops` one for each row.

    `first_layer` tells whether the rows that the first layer reads are given gradients.
    """
    if loops:
        graphs = _with_loops(graphs)
    hops = len(graphs[0].ends)
    turned: list[list[CSR | None]] = [[None] * hops for _ in graphs]
    for hop in range(hops if first_layer else hops - 1):
        layers = [graph.layer(hops - 1 - hop, hops, looped=loops) for graph in graphs]
        for each, back in zip(turned, turn_together(layers), strict=True):
            each[hop] = back
    pairs = zip(graphs, turned, strict=True)
    return [replace(graph, turned=tuple(backs)) for graph, backs in pairs]


def _with_loops(graphs: list[Subgraph]) -> list[Subgraph]:
    """Return the sub-graphs with their edges less loops, and then one loop for each row."""
    index_E = torch.cat([graph.index for graph in graphs])
    device, rows = index_E.device, [len(graph.indptr) - 1 for graph in graphs]
    indptr = _joined([graph.indptr for graph in graphs], [len(graph.index) for graph in graphs])
    number_M = torch.cat([torch.arange(count, device=device) for count in rows])
    all_M = torch.arange(len(number_M) + 1, device=device)
    row_E = all_M[:-1].repeat_interleave(indptr.diff(), output_size=len(index_E))
    kept_E = index_E != number_M.index_select(0, row_E)
    before = torch.zeros(len(index_E) + 1, dtype=torch.int64, device=device)
    torch.cumsum(kept_E, 0, out=before[1:])
    looped_indptr = before.index_select(0, indptr) + all_M
    # A row's kept edges stand after those of earlier rows and one loop of each; a loop that was
    # there goes to a place beyond all.
    beyond = len(index_E) + len(number_M)
    place_E = torch.where(kept_E, before[:-1] + row_E, beyond)
    looped = torch.empty(beyond + 1, dtype=index_E.dtype, device=device)
    looped.index_copy_(0, place_E, index_E)
    looped.index_copy_(0, looped_indptr[1:] - 1, number_M.to(index_E.dtype))
    firsts = [0, *accumulate(rows)]
    bounds = [first + met for first, graph in zip(firsts, graphs, strict=False)
              for met in (0, *graph.reached[:-1])]  # fmt: skip
    places = torch.tensor(bounds).to(device)
    ends = looped_indptr.index_select(0, places).view(len(graphs), -1).tolist()
    made = []
    for graph, (low, high), (start, *until) in zip(graphs, pairwise(firsts), ends, strict=True):
        mine = Looped(
            looped_indptr[low : high + 1] - start,
            looped[start : until[-1]],
            tuple(end - start for end in until),
        )
        made.append(replace(graph, looped=mine))
    return made


def turn_together(matrices: list[CSR]) -> list[CSR]:
    """Return the transpose of each matrix, as `CSR.transpose` has it."""
    edges = [0, *accumulate(matrix.num_edges for matrix in matrices)]
    columns = [0, *accumulate(matrix.num_cols for matrix in matrices)]
    device = matrices[0].device
    key_E = torch.cat(
        [matrix.index + first for matrix, first in zip(matrices, columns, strict=False)]
    )
    sorted_E, order_E = key_E.sort(stable=True)
    indptr = _joined([matrix.indptr for matrix in matrices], [m.num_edges for m in matrices])
    number_M = torch.cat(
        [torch.arange(m.num_rows, dtype=torch.int32, device=device) for m in matrices]
    )
    row_E = number_M.repeat_interleave(indptr.diff(), output_size=len(key_E))
    index_E = row_E.index_select(0, order_E)
    starts = torch.arange(columns[-1] + 1, dtype=key_E.dtype, device=device)
    indptr_C = torch.searchsorted(sorted_E, starts)
    return [
        CSR(indptr_C[low : high + 1] - first, index_E[first:last], matrix.num_rows)
        for matrix, (low, high), (first, last) in zip(
            matrices, pairwise(columns), pairwise(edges), strict=True
        )
    ]


def _joined(indptrs: list[Tensor], sizes: list[int]) -> Tensor:
    """Return the offsets of matrices side by side."""
    firsts = accumulate(sizes, initial=0)
    pieces = [indptr[1:] + first for indptr, first in zip(indptrs, firsts, strict=False)]
    return torch.cat([indptrs[0][:1], *pieces])
