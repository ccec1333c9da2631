"""Training steps on minibatches that a GPU repeats from a recording (a CUDA graph).

Launching the kernels of a step one by one takes a host longer than a GPU takes to run them. A
recording is one launch, but its sizes and addresses are fixed, and sub-graphs differ in size. So
a step's tensors are copied into buffers with room for the largest sub-graph met so far.

What is beyond a sub-graph's own size changes nothing: each layer's rows are a prefix of those it
reads, rows beyond that have no edges here, and no edge of a later layer reads them, so that their
gradients are zero. What they hold is of earlier steps, and finite. Keys of dropout lie in device
memory, since the arguments of a recorded launch are repeated as they were.

Shapes: V nodes there is room for, S seeds, R rows, C columns and E edges of one layer.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from siafu.minibatch import Columns, Feed, Macrobatch, Subgraph, sampled_of, to_device
from siafu.nn import GNN, AtHand, Draws, HeldKeys, LocalNeighbours, Neighbours, Rows
from siafu.ops import CSR, has_fast_kernels
from siafu.shard import Shard

DEVICES = ("cuda",)
"""Kinds of devices that gain from it."""
_SPARE = 1.02
"""Room over the largest sub-graph that was met."""
_GRAIN = 256
_MOST_RECORDINGS = 8
"""After that, sub-graphs without room are trained on without a recording."""
_MOST_SITES = 256
_NO_CLASS = -100
"""What torch's losses of classes pass over."""
_NO_MEMORY = torch.OutOfMemoryError
_HOPELESS = 1.5
"""Where the largest sub-graph of a macrobatch is so many times the mean, padding costs too much."""


StepOf = Callable[[Rows, list[Neighbours], Tensor, Tensor], Tensor]
"""The loss, given rows, the neighbours of each layer, targets, and how many seeds there are."""


def can_record(module: nn.Module, shard: Shard) -> bool:
    """Return whether steps are alike but for their numbers, without a host's look in between.

    Data of edges are read in pieces that the host cuts, batch norm counts rows, own models do as
    they like; losses of numbers look for gaps, weights of classes come from the host.
    """
    if not isinstance(module, GNN) or shard.y is None:
        return False
    spec, objective = module.spec, shard.objective
    cuts_edges = spec.card.attends and (spec.edge_width or spec.num_types)
    return (
        shard.world.device.type in DEVICES
        and has_fast_kernels(shard.world.device.type)  # others read keys on the host
        and spec.card.aggregation != "relations"
        and not cuts_edges
        and spec.norm != "batch"
        and not (objective.weights or objective.mean or ":" in objective.loss)
    )


def can_record_minibatches(module: nn.Module, shard: Shard, feed: Feed) -> bool:
    """Return whether that is so of minibatches: nodes of one class each, features as they are.

    Attention's loops and their transposes have no buffers. Buffers would take memory that a budget
    has for others.
    """
    return (
        can_record(module, shard)
        and isinstance(module, GNN)
        and not module.spec.card.attends
        and feed.links is None
        and shard.y is not None
        and shard.y.dim() == 1
        and feed.place.rows != "host"
        and not feed.is_limited
        and set(feed.columns) <= {"x", "id", "facts"}
    )


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much a sub-graph has, or there is room for, at each hop."""

    reached: tuple[int, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, graph: Subgraph) -> "Sizes":
        """Return a sub-graph's own."""
        return cls(graph.reached, graph.ends)

    def joined(self, other: "Sizes") -> "Sizes":
        """Return room for both."""
        reached = zip(self.reached, other.reached, strict=True)
        ends = zip(self.ends, other.ends, strict=True)
        return Sizes(tuple(map(max, reached)), tuple(map(max, ends)))

    def fit(self, room: "Sizes") -> bool:
        """Return whether there is room."""
        pairs = zip((*self.reached, *self.ends), (*room.reached, *room.ends), strict=True)
        return all(own <= most for own, most in pairs)


def room_for(graphs: list[Subgraph]) -> Sizes:
    """Return room for all of these sub-graphs and some more."""

    def most(counts: tuple[int, ...]) -> int:
        return -(-round(max(counts) * _SPARE) // _GRAIN) * _GRAIN

    reached = [most(counts) for counts in zip(*(g.reached for g in graphs), strict=True)]
    ends = [most(counts) for counts in zip(*(g.ends for g in graphs), strict=True)]
    return Sizes((max(graph.num_seeds for graph in graphs), *reached[1:]), tuple(ends))


class Recording:
    """Forward and backward of a model, recorded once; every replay has the draws of its epoch."""

    def __init__(
        self,
        module: nn.Module,
        draws: Draws,
        device: torch.device,
        forward: Callable[[], Tensor],
    ) -> None:
        """`forward` gives the loss. Nothing else may ask for memory of the device meanwhile."""
        self._module, self._draws, self._forward = module, draws, forward
        self._keys = HeldKeys(torch.zeros(_MOST_SITES, 2, dtype=torch.int64, device=device))
        self._grads: list[tuple[nn.Parameter, Tensor | None]] = []
        self._loss = torch.zeros(())
        self._replay = self._compute
        if device.type == "cuda":
            self._replay = self._recorded(device)
        else:
            self._compute()  # to meet every site

    def replay(self) -> Tensor:
        """Set gradients to those of what `forward` reads now, and return the loss."""
        words = self._keys.words(self._draws.seed, self._draws.epoch)
        if len(words):
            here = self._keys.words_S2[: len(words)]
            here.copy_(to_device(words, here.device))
        self._replay()
        for weight, grad in self._grads:
            weight.grad = grad
        return self._loss.clone()

    def _compute(self) -> None:
        for weight in self._module.parameters():
            weight.grad = None
        self._draws.held = self._keys
        try:
            loss = self._forward()
            loss.backward()
        finally:
            self._draws.held = None
        self._loss = loss.detach()
        self._grads = [(weight, weight.grad) for weight in self._module.parameters()]

    def _recorded(self, device: torch.device) -> Callable[[], None]:
        """Run once, to meet every site and compile every kernel, and then record."""
        current, aside = torch.cuda.current_stream(device), torch.cuda.Stream(device)
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            self._compute()
        current.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._compute()
        return graph.replay


def recording_of(make: Callable[[], Recording]) -> Recording | None:
    """Return a recording, or None where the device has no memory for one beside all else."""
    try:
        return make()
    except RuntimeError as error:
        # What ends a recording may be told in place of why.
        if not any(isinstance(each, _NO_MEMORY) for each in (error, error.__context__)):
            raise
    return None


class RecordedSteps:
    """Forward and backward of minibatches in buffers of one size, recorded and replayed."""

    def __init__(self, feed: Feed, draws: Draws, module: nn.Module, step: "StepOf") -> None:
        """`step` gives the loss of a module's answers, as `SampledNetwork.loss_through` does."""
        self._feed, self._draws, self._module, self._step = feed, draws, module, step
        self._room: Sizes | None = None
        self._recording: Recording | None = None
        self._recordings = 0
        self._columns: Columns = {}
        self._layers: list[CSR] = []
        self._turned: list[int] = []
        """Hops whose transposes come with sub-graphs."""

    @property
    def tensors(self) -> list[Tensor]:
        """The buffers that a recording reads."""
        layers = [one for csr in self._layers for one in (csr.indptr, csr.index)]
        return [*self._columns.values(), *layers]

    def run(self, macrobatch: Macrobatch, graph: Subgraph, num_seeds: int) -> Tensor | None:
        """Set gradients to those of a minibatch and return its loss; None: not by a recording.

        The loss is its share of the mean over `num_seeds`.
        """
        if graph.edges or not graph.turned:
            return None
        if self._room is None or not Sizes.of(graph).fit(self._room):
            if not self._make_room(macrobatch, graph):
                return None
            self._forget()
            self._recording = recording_of(lambda: self._recorded(macrobatch, graph, num_seeds))
        if self._recording is None:
            self._forget()
            self._room, self._recordings = None, _MOST_RECORDINGS
            return None
        self._load(macrobatch, graph, num_seeds)
        return self._recording.replay()

    def _recorded(self, macrobatch: Macrobatch, graph: Subgraph, num_seeds: int) -> Recording:
        self._prepare(macrobatch.columns_of(graph), graph)
        self._load(macrobatch, graph, num_seeds)
        # Memory that another thread takes meanwhile would end the recording.
        self._feed.sampler.settle()
        return Recording(self._module, self._draws, graph.index.device, self._forward)

    def _forget(self) -> None:
        """Give up the memory of a recording; gradients of its last step are some of it."""
        self._recording, self._columns, self._layers = None, {}, []
        for weight in self._module.parameters():
            weight.grad = None

    def _make_room(self, macrobatch: Macrobatch, graph: Subgraph) -> bool:
        """Take room for this sub-graph and those drawn with it; False where that is no use."""
        alike = [other for step in macrobatch.subgraphs for other in step if other.num_seeds]
        mean = sum(other.reached[-1] for other in alike) / len(alike)
        if self._recordings == _MOST_RECORDINGS or graph.reached[-1] > _HOPELESS * mean:
            return False
        self._recordings += 1
        room = room_for(alike)
        self._room = room if self._room is None else room.joined(self._room)
        return True

    def _prepare(self, columns: Columns, graph: Subgraph) -> None:
        """Make the buffers."""
        room, device = self._room, graph.index.device
        assert room is not None, "room was taken"
        self._columns = {
            name: torch.zeros(
                room.reached[0 if name == "y" else -1],
                *rows.shape[1:],
                dtype=rows.dtype,
                device=device,
            )
            for name, rows in columns.items()
        }
        self._count = torch.ones((), dtype=torch.float64, device=device)
        self._turned = [hop for hop, back in enumerate(graph.turned) if back is not None]
        # The first layer's hop is the last.
        self._layers = [self._empty(graph, hop, most) for hop, most in enumerate(room.ends)][::-1]

    def _empty(self, graph: Subgraph, hop: int, edges: int) -> CSR:
        """Return a layer's edges, none yet, with the transpose that it has in sub-graphs."""
        room, index = self._room, graph.index
        assert room is not None, "room was taken"
        rows, columns = room.reached[hop : hop + 2]

        def matrix(num_rows: int, num_cols: int, longest: int | None) -> CSR:
            indptr = graph.indptr.new_zeros(num_rows + 1)
            return CSR(indptr, index.new_zeros(edges), num_cols, longest=longest)

        # How long rows are where nobody knows is for the kernel to find out, each time; so is how
        # many rows read a source.
        csr = matrix(rows, columns, edges if graph.longest is None else graph.longest)
        has_back = hop in self._turned
        return csr.with_transpose(matrix(columns, rows, edges)) if has_back else csr

    def _load(self, macrobatch: Macrobatch, graph: Subgraph, num_seeds: int) -> None:
        """Copy a step's tensors into the buffers."""
        for name, rows in macrobatch.columns_of(graph).items():
            self._columns[name][: len(rows)].copy_(rows)
        # Rows that are no seeds have no loss.
        self._columns["y"][graph.num_seeds :].fill_(_NO_CLASS)
        self._count.fill_(num_seeds)
        layers = len(self._layers)
        for number, into in enumerate(self._layers):
            hop = layers - 1 - number
            _copy(graph.layer(number, layers), into)
            if (back := graph.turned[hop]) is not None:
                _copy(back, into.transpose())

    def _forward(self) -> Tensor:
        flow: list[Neighbours] = [
            self._neighbours(csr, has_back=hop in self._turned)
            for hop, csr in zip(reversed(range(len(self._layers))), self._layers, strict=True)
        ]
        return self._step(self._columns["x"], flow, self._columns["y"], self._count)

    def _neighbours(self, csr: CSR, *, has_back: bool) -> LocalNeighbours:
        facts, ids = self._columns.get("facts"), self._columns["id"]
        by_weight = self._feed.weighted
        sampled = None if facts is None else sampled_of(csr, facts, None, by_weight=by_weight)
        # A transpose that was made here would be that of the first step for ever.
        known = AtHand(may_map=has_back)
        ids_N = ids[: csr.num_cols]
        return LocalNeighbours(csr, ids_N, self._draws, sampled=sampled, at_hand=known)


def _copy(csr: CSR, into: CSR) -> None:
    """Write a matrix over the first rows of a larger one, whose other rows are empty."""
    rows, edges = csr.num_rows, csr.num_edges
    into.indptr[: rows + 1].copy_(csr.indptr)
    into.indptr[rows + 1 :].fill_(edges)
    into.index[:edges].copy_(csr.index)
