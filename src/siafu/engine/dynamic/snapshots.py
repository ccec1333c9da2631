"""A rank's snapshots as a model reads them: inputs, their first aggregate made once, and graphs.

Shapes: N nodes, n of them this rank's (all, where it shares no snapshot), F features.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from siafu.comm.staging import to_device, to_host
from siafu.engine.dynamic.edge_sums import EdgeSums, Fit
from siafu.engine.dynamic.event_features import EventScale, event_means
from siafu.engine.dynamic.node_features import NodeFeatures, input_rows
from siafu.engine.dynamic.step_shards import StepShards
from siafu.graph import Array, DynamicGraph, Snapshot, group_graph, normalised, smooth
from siafu.memory import free_bytes
from siafu.nn import (
    BandedMean,
    CachedRows,
    Draws,
    DynamicGNN,
    LocalNeighbours,
    Rows,
    StepGraph,
    banded_mean,
)
from siafu.nn.local import AtHand
from siafu.nn.sparse import dense
from siafu.ops import (
    CSR,
    GRAIN,
    DeltaStream,
    WindowStream,
    copies_are_slow,
    sums_are_exact,
    window_means,
    with_loops,
)
from siafu.shard import NodeShare

KEPT_SHARE = 8
"""Of the memory that is free, a GPU's or the host's, kept snapshots of all ranks there take at most
one part in so many; a rank with more keeps deltas and makes each block's snapshots from them. On a
GPU nothing travels where they fit. Inputs take half of what is left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How snapshots become the input of a model."""

    features: NodeFeatures | None = None
    """None: the data's own."""
    events: EventScale | None = None
    """Where features of events are read: their scale."""
    fit: Fit | None = None
    """Where what they add up to has a scale that is still to be found."""
    lags: int = 0
    """Past values of a signal among the features."""
    outward: bool = False
    """Whether a node sums over those that its edges lead to, not those they come from."""
    most_edges_kept: int | None = None
    """Of all snapshots together that stay on the device; None: what fits an
    eighth of its free memory."""
    most_input_bytes: float | None = None
    """Of all input rows and their first aggregates that stay on the device; above, they stay on the
    host, and those of a block are brought when it is run. None: half of what is free on a GPU."""


class Snapshots:
    """The snapshots that a rank owns, or its nodes of them, on its device."""

    def __init__(
        self,
        graph: DynamicGraph,
        steps: Sequence[int],
        model: DynamicGNN,
        draws: Draws,
        share: NodeShare,
        reading: Reading | None = None,
        table_ND: Tensor | None = None,
    ) -> None:
        """`table_ND`: a row for each node of the graph that is learnt, in the place of features."""
        reading = reading or Reading()
        self.graph, self.draws, self.lags = graph, draws, reading.lags
        self._features_of, self._table_ND = reading.features, table_ND
        self._event_scale = reading.events
        self.share, self.device = share, share.world.device
        self._turned = reading.outward and not graph.symmetric
        self._edges, self._shards = graph, None
        self._rows: Array | slice = slice(None)
        if not share.is_whole:
            part = group_graph(graph, share.world.rank, outward=self._turned)
            self._edges, self._rows = part.graph, part.nodes_C[part.own_n]
            self._shards = StepShards(graph, part, share, draws)
        self.dtype = next(model.parameters()).dtype
        self.band = model.band
        self.starts_transformed = bool(model.band) and isinstance(model.parts[0], BandedMean)
        first = model.parts[1 if self.starts_transformed else 0]
        self._aggregation: str | None = getattr(first, "input_aggregation", None)
        if self.learns_input:  # a mean over time of what does not change is itself
            self._aggregation = None
        edges = int(self._edges.edges_per_snapshot()[list(steps)].sum()) if len(steps) else 0
        if self.band:  # a mean holds the edges of all its snapshots, at most, and every loop
            edges = self.band * edges + self.num_nodes * len(steps)
        # Ranks that share a snapshot make it anew at the same times, or never.
        above = float(edges - self._most_edges(reading.most_edges_kept))
        keeps = max(row[0] for row in share.world.gather_numbers([above])) <= 0
        self._counts = self._are_counts()
        self._num_steps, self._most_input_bytes = len(steps), reading.most_input_bytes
        self.inputs_on_host = False
        self._inputs: dict[int, Rows] = {}
        self._edge_sums = self._make_edge_sums(model)
        self._graphs: dict[int, StepGraph] = {}
        self._streams: list[tuple[range, DeltaStream | WindowStream]] = []
        for span in _runs(steps):
            if keeps:
                self._keep(span)
            else:
                self._streams.append((span, self._stream(span)))
            self._note_edge_sums(span, reading.fit)
        if self._edge_sums is not None:
            self._edge_sums.put(reading.fit, self._placed)

    def _make_edge_sums(self, model: DynamicGNN) -> EdgeSums | None:
        scale = self._event_scale
        if scale is None or not any(getattr(part, "reads_edges", False) for part in model.parts):
            return None
        return EdgeSums(self.graph, scale, outward=self._turned, shards=self._shards)

    @property
    def num_nodes(self) -> int:
        """n."""
        return len(self.share.ids_n)

    @property
    def node_ids(self) -> Tensor:
        """int64 [n]: the numbers of this rank's nodes in the whole graph."""
        return self.share.ids_n

    @property
    def num_all_nodes(self) -> int:
        """N."""
        return self.graph.num_nodes

    @property
    def most_nodes(self) -> int:
        """Nodes of the largest group."""
        part_of_N = None if self.share.is_whole else self.graph.part_of
        return self.graph.num_nodes if part_of_N is None else int(np.bincount(part_of_N).max())

    @property
    def inputs(self) -> list[Tensor]:
        """Input rows that are kept, their first aggregates, and sums of the edges' features."""
        cached = [rows for rows in self._inputs.values() if isinstance(rows, CachedRows)]
        plain = [rows for rows in self._inputs.values() if isinstance(rows, Tensor)]
        aggregates = [one for rows in cached for one in (rows.rows, rows.aggregate)]
        sums = [] if self._edge_sums is None else self._edge_sums.tensors
        return [*plain, *aggregates, *sums]

    @property
    def edges(self) -> list[CSR]:
        """Snapshots that are kept ready."""
        found = (getattr(graph.neighbours, "csr", None) for graph in self._graphs.values())
        return [csr for csr in found if isinstance(csr, CSR)]

    @property
    def learns_input(self) -> bool:
        """True where a table of rows is learnt."""
        return self._table_ND is not None

    def read(self, steps: range) -> tuple[list[Rows], list[StepGraph]]:
        """Return the input rows and the graphs of some owned snapshots."""
        if self._table_ND is None:
            rows = [self._input(step) for step in steps]
        else:
            own = self._table_ND if self.share.is_whole else self._table_ND[self.share.ids_n]
            rows = [own] * len(steps)
            if self._event_scale is not None:
                rows = [torch.cat([own, dense(self._input(step))], dim=1) for step in steps]
        return rows, [self._with_edges(step, at) for step, at in self._read_graphs(steps)]

    def _read_graphs(self, steps: range) -> list[tuple[int, StepGraph]]:
        if self._graphs or not steps:
            return [(step, self._graphs[step]) for step in steps]
        stream = next(stream for span, stream in self._streams if steps.start in span)
        loops = stream.has_loops
        found = {step: self._step_graph(csr, step, loops) for step, csr in stream.read(steps)}
        return [(step, found[step]) for step in steps]

    def _with_edges(self, step: int, at: StepGraph) -> StepGraph:
        if self._edge_sums is None:
            return at
        sum_nF = to_device(self._edge_sums[step], self.device)
        return replace(at, edge_sum_NF=sum_nF, find_active=lambda: at.active_N)

    def _keep(self, span: range) -> None:
        for step, csr, x_NF in self._made(span):
            self._graphs[step] = self._step_graph(csr.to(self.device), step)
            self._note_input(step, x_NF, self._graphs[step])

    def _most_edges(self, given: int | None) -> int:
        if given is not None:
            return given
        on_gpu = self.device.type == "cuda"
        free = torch.cuda.mem_get_info(self.device)[0] if on_gpu else free_bytes()
        per_edge = 8 if self.graph.symmetric or self._shards is not None else 16
        return int(free / self.share.world.ranks_here / KEPT_SHARE / per_edge)

    @property
    def sent_bytes(self) -> int:
        """Bytes of snapshots handed over to the device so far, where they are not kept there."""
        return sum(stream.sent_bytes for _, stream in self._streams)

    def _stream(self, span: range) -> DeltaStream | WindowStream:
        if self._counts and len(span) > 1 and copies_are_slow(self.device):
            return self._window_stream(span)

        def noted() -> Iterator[CSR]:
            for step, csr, x_NF in self._made(span):
                self._note_input(step, x_NF, self._step_graph(csr.to(self.device), step))
                yield csr

        how = self._transpose
        return DeltaStream(noted(), device=self.device, transpose=how, first=span.start)

    def _window_stream(self, span: range) -> WindowStream:
        """Return a stream of means that the device makes from counts, so that none is sent."""
        stream = WindowStream(
            self._looped(span),
            band=self.band,
            device=self.device,
            transpose=self._transpose,
            first=span.start,
        )
        rows = self._inputs_of(span)
        for (step, csr), x_NF in zip(stream.read(span), rows, strict=True):
            self._note_input(step, x_NF, self._step_graph(csr, step, stream.has_loops))
        return stream

    @property
    def _transpose(self) -> Literal["none", "same", "sent"]:
        if self.device.type != "cuda" or self._shards is not None:
            return "none"
        return "same" if self.graph.symmetric and (self._counts or not self.band) else "sent"

    @torch.no_grad()
    def _note_input(self, step: int, x_NF: Tensor, at: StepGraph) -> None:
        rows: Tensor | CachedRows = x_NF
        if self._aggregation is not None:
            rows = CachedRows(x_NF, getattr(at.neighbours, self._aggregation)(x_NF))
        if not self._inputs:
            size = x_NF.nbytes + (rows.aggregate.nbytes if isinstance(rows, CachedRows) else 0)
            if self._edge_sums is not None:
                size += self.num_nodes * self.graph.num_event_features * x_NF.element_size()
            self.inputs_on_host = size * self._num_steps > self._room()
        self._inputs[step] = _moved(rows, to_host) if self.inputs_on_host else rows

    def _room(self) -> float:
        """Return the bytes that inputs may take on the device."""
        if self._most_input_bytes is not None:
            return self._most_input_bytes
        if self.device.type != "cuda":
            return math.inf
        return torch.cuda.mem_get_info(self.device)[0] / 2 / self.share.world.ranks_here

    def _input(self, step: int) -> Rows:
        rows = self._inputs[step]
        return _moved(rows, lambda x: to_device(x, self.device)) if self.inputs_on_host else rows

    def _made(self, span: range) -> Iterator[tuple[int, CSR, Tensor]]:
        """Yield each snapshot, on the CPU, and its features on the device."""
        found = self._averaged(span) if self.band else map(_matrix, self._plain(span))
        yield from zip(span, found, self._inputs_of(span), strict=True)

    def _plain(self, span: range) -> Iterator[Snapshot]:
        return map(self._directed, self._edges.iterate(span.start, span.stop))

    def _averaged(self, span: range) -> Iterator[CSR]:
        """Yield snapshots averaged over the band."""
        reach = self._reach(span)
        if self._counts:
            found = window_means(self._looped(span), self.band)
        else:
            normalise = normalised if self._shards is None else self._shards.normalise
            directed = self._plain(range(reach, span.stop))
            found = map(_matrix, smooth(directed, self.band, normalise))
        yield from islice(found, span.start - reach, None)

    def _looped(self, span: range) -> Iterator[CSR]:
        """Yield all snapshots that the band of some reaches, each node with its loop."""
        directed = self._plain(range(self._reach(span), span.stop))
        return (with_loops(_matrix(snapshot)) for snapshot in directed)

    def _reach(self, span: range) -> int:
        return max(0, span.start - self.band + 1) if self.band else span.start

    def _inputs_of(self, span: range) -> Iterator[Tensor]:
        """Yield features and, where the model begins so, their means over the band."""
        if self.starts_transformed:
            yield from self._means(span, map(self._features, range(self._reach(span), span.stop)))
        else:
            yield from map(self._features, span)

    def _means(self, span: range, rows: Iterator[Tensor]) -> Iterator[Tensor]:
        """Yield the means over the band; `rows` begin with the first that it reaches."""
        recent: deque[Tensor] = deque(maxlen=self.band)
        for step, rows_NF in enumerate(rows, self._reach(span)):
            recent.append(rows_NF)
            if step in span:
                known = torch.stack(list(recent))
                yield banded_mean(known, len(known) - 1, self.band)[0]

    def _note_edge_sums(self, span: range, fit: Fit | None) -> None:
        """Add up the features of edges once, averaged as the adjacencies are."""
        if self._edge_sums is None:
            return
        steps = range(self._reach(span), span.stop)
        sums = map(self._edge_sums.of_snapshot, steps, self._plain(steps))
        self._edge_sums.note(span, self._means(span, sums) if self.band else sums, self.dtype, fit)

    def _placed(self, sum_nF: Tensor) -> Tensor:
        return to_host(sum_nF) if self.inputs_on_host else sum_nF.to(self.device)

    def _are_counts(self) -> bool:
        """Return whether means over the band follow exactly from whole weights.

        Ranks that share snapshots know the degrees of their own nodes alone, and take the values.
        """
        if self.band < 2 or self._shards is not None:
            return False
        base, deltas = self._edges.base, self._edges.deltas
        parts = (base.weight, deltas.added_weight, deltas.changed_weight)
        weights = [np.asarray(part) for part in parts if len(part)]
        least = min((float(part.min()) for part in weights), default=1.0)
        most = max((float(part.max()) for part in weights), default=1.0)
        if least <= 0 or any((part / GRAIN % 1).any() for part in weights):
            return False
        keys, num_nodes = np.asarray(deltas.added), self.graph.num_nodes
        own_E, added = (base.src, keys % num_nodes) if self._turned else (None, keys // num_nodes)
        count_N = np.diff(base.indptr) if own_E is None else np.bincount(own_E, minlength=num_nodes)
        count_N = count_N + np.bincount(added, minlength=num_nodes)
        degree = most * float(count_N.max(initial=0)) + 1
        return sums_are_exact(least, most, degree, self.band)

    def _directed(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with a row for each node that sums."""
        return snapshot.transposed() if self._turned else snapshot

    def _features(self, step: int) -> Tensor:
        x_NF = input_rows(self.graph, step, self._features_of, self.lags)
        rows = torch.from_numpy(np.array(x_NF[self._rows])).to(self.device, self.dtype)
        if self._event_scale is None:
            return rows
        means_NF = event_means(self.graph, step, self._event_scale).to(self.device, self.dtype)
        return torch.cat([rows, means_NF[self.share.ids_n]], dim=1)

    def _step_graph(self, csr: CSR, step: int, has_loops: bool | None = None) -> StepGraph:
        if self._shards is not None:
            return self._shards.step_graph(csr, step)
        num_nodes = csr.num_rows
        ids_N = torch.arange(step * num_nodes, (step + 1) * num_nodes, device=self.device)

        def active() -> Tensor:
            active_N = csr.degree() > 0
            active_N[csr.index.long()] = True
            return active_N

        at_hand = AtHand(has_loops=has_loops)
        neighbours = LocalNeighbours(csr, ids_N, self.draws, at_hand=at_hand)
        return StepGraph(neighbours, active)


def _matrix(snapshot: Snapshot) -> CSR:
    indptr, src, weight = (torch.from_numpy(np.array(a)) for a in snapshot.arrays())
    return CSR(indptr, src, snapshot.num_nodes, weight)


def _moved(rows: Rows, move: Callable[[Tensor], Tensor]) -> Rows:
    """Return rows, and their aggregate where it was made, elsewhere."""
    if isinstance(rows, CachedRows):
        return CachedRows(move(rows.rows), move(rows.aggregate))
    assert isinstance(rows, Tensor), "inputs of snapshots are dense"
    return move(rows)


def _runs(steps: Sequence[int]) -> Iterator[range]:
    """Yield the stretches of numbers that follow one another."""
    start = 0
    for index in range(1, len(steps) + 1):
        if index == len(steps) or steps[index] != steps[index - 1] + 1:
            yield range(steps[start], steps[index - 1] + 1)
            start = index
