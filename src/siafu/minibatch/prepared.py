"""What layers would derive from each sub-graph, derived for several at once, ahead of training.

Sub-graphs side by side are one matrix of blocks: its loops and its transpose are theirs, in as many
operations as one of them would take.

Shapes: G sub-graphs, M rows of one, E edges of all, C columns of all.
"""

from dataclasses import replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from siafu.minibatch.device_relay import to_device
from siafu.minibatch.subgraph import Looped, Subgraph
from siafu.ops import CSR
from siafu.ops.csr.matrix import edge_dtype


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
        degrees = [graph.degree(graph.reached[hop], looped=loops) for graph in graphs]
        for each, back in zip(turned, turn_together(layers, degrees), strict=True):
            each[hop] = back
    pairs = zip(graphs, turned, strict=True)
    return [replace(graph, turned=tuple(backs)) for graph, backs in pairs]


def _with_loops(graphs: list[Subgraph]) -> list[Subgraph]:
    """Return the sub-graphs with their edges less loops, and then one loop for each row."""
    rows = [graph.reached[-2] for graph in graphs]
    index_E = torch.cat([graph.index for graph in graphs])
    degree_M = torch.cat([graph.degree(count) for graph, count in zip(graphs, rows, strict=True)])
    number_M = _numbers(rows, degree_M)
    all_M = torch.arange(len(number_M), device=index_E.device)
    row_E = all_M.repeat_interleave(degree_M, output_size=len(index_E))
    kept_E = index_E != number_M.index_select(0, row_E)
    before = _starts(kept_E)
    indptr = _starts(degree_M)
    ends_M = before.index_select(0, indptr[1:]) + all_M + 1
    # A row's kept edges stand after those of earlier rows and one loop of each; a loop that was
    # there goes to a place beyond all.
    beyond = len(index_E) + len(number_M)
    place_E = torch.where(kept_E, before[:-1] + row_E, beyond)
    looped = torch.empty(beyond + 1, dtype=index_E.dtype, device=index_E.device)
    looped.index_copy_(0, place_E, index_E)
    looped.index_copy_(0, ends_M - 1, number_M)
    looped_indptr = torch.cat([ends_M.new_zeros(1), ends_M])
    firsts = [0, *accumulate(rows)]
    bounds = [
        first + met
        for first, graph in zip(firsts, graphs, strict=False)
        for met in (0, *graph.reached[:-1])
    ]
    places = to_device(torch.tensor(bounds), index_E.device)
    ends = looped_indptr.index_select(0, places).view(len(graphs), -1).tolist()
    counts = looped_indptr.diff()
    made = []
    for graph, (low, high), (start, *until) in zip(graphs, pairwise(firsts), ends, strict=True):
        mine = Looped(
            looped_indptr[low : high + 1] - start,
            looped[start : until[-1]],
            counts[low:high],
            tuple(end - start for end in until),
        )
        made.append(replace(graph, looped=mine))
    return made


def turn_together(matrices: list[CSR], degrees: list[Tensor]) -> list[CSR]:
    """Return the transpose of each matrix, as `CSR.transpose` has it."""
    edges = [0, *accumulate(matrix.num_edges for matrix in matrices)]
    columns = [0, *accumulate(matrix.num_cols for matrix in matrices)]
    device = matrices[0].device
    sizes = [matrix.num_edges for matrix in matrices]
    first_G, size_G = to_device(torch.tensor([columns[:-1], sizes]), device)
    number = edge_dtype(columns[-1])
    shift_E = first_G.to(number).repeat_interleave(size_G, output_size=edges[-1])
    key_E = torch.cat([matrix.index for matrix in matrices]) + shift_E
    sorted_E, order_E = key_E.sort(stable=True)
    degree_M = torch.cat(degrees)
    number_M = _numbers([matrix.num_rows for matrix in matrices], degree_M)
    row_E = number_M.repeat_interleave(degree_M, output_size=edges[-1])
    index_E = row_E.index_select(0, order_E)
    starts = torch.arange(columns[-1] + 1, dtype=number, device=device)
    indptr_C = torch.searchsorted(sorted_E, starts)
    longest = int(indptr_C.diff().max()) if columns[-1] else 0
    return [
        CSR(
            indptr_C[low : high + 1] - first,
            index_E[first:last],
            matrix.num_rows,
            longest=longest,
        )
        for matrix, (low, high), (first, last) in zip(
            matrices, pairwise(columns), pairwise(edges), strict=True
        )
    ]


def _numbers(counts: list[int], like: Tensor) -> Tensor:
    """Return int32: 0 to each count, one after another."""
    numbers = torch.arange(max(counts), dtype=torch.int32, device=like.device)
    return torch.cat([numbers[:count] for count in counts])


def _starts(counts: Tensor) -> Tensor:
    """Return where each begins, and the end of the last."""
    starts = torch.zeros(len(counts) + 1, dtype=torch.int64, device=counts.device)
    torch.cumsum(counts, 0, out=starts[1:])
    return starts
