"""What one choice, a strategy on so many ranks, is predicted to take.

Memory and seconds are of the rank that has most, bytes of all ranks together.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from siafu.config import RunConfig
from siafu.memory import free_bytes
from siafu.minibatch.macrobatch_size import TRIED_ROWS, tried_steps
from siafu.nn import ModelSpec, layer_widths
from siafu.nn.precision import BYTES
from siafu.plan.bytes import (
    EpochTraffic,
    LayerTraffic,
    column_traffic,
    full_graph_traffic,
    interval_traffic,
    parameter_counts,
    ring_bytes,
    weight_bytes,
)
from siafu.plan.choice import RUNTIME_BYTES
from siafu.plan.machine import Link, Machine
from siafu.plan.memory import (
    FETCHED,
    GRADIENTS,
    KEPT,
    OTHER,
    PROCESS,
    TRAVELLING,
    Sizes,
    held_kinds,
    least_offload,
    predict_bytes,
    predict_kinds,
)
from siafu.plan.minibatch_seconds import MinibatchEpoch
from siafu.plan.sampled import (
    BUILDING,
    FREE_SHARE,
    MinibatchCounts,
    count_minibatches,
    least_sampled_bytes,
)
from siafu.plan.seconds import PHASES, Phases, Work, full_graph_seconds, interval_seconds
from siafu.plan.statistics import CutStatistics, GraphStatistics
from siafu.strategy import Strategy

_UNEVEN_STAGE = 1.3
"""The largest stage over the mean."""
FORKED_SHARE = 0.52
"""Of a process that has loaded torch, what a rank forked from it touches."""
MINIBATCHES = "minibatches"
FREED = "freed, kept for the next step"
_KEPT_HEAP = 0.5
"""Of what is alive at the peak: what a heap that gives nothing back holds beside it. 0.2 to 0.9 was
seen; with --memory, and in stages, freed memory is given back."""
_ALIVE = (KEPT, FETCHED, GRADIENTS, TRAVELLING)
_STAYING = 2.0
"""Copies of rows of every layer in a pipeline: the rows themselves, and gradients."""
_REQUEST_BYTES, _COUNT_BYTES, _ADDRESS_BYTES = 8, 4, 8
"""Of a node asked about, of how many edges come back for it, and of each."""
_ID_BYTES, _DEGREES_BYTES = 8, 24
"""That come with a node's features: who it is, and its degrees where sums are scaled by them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What all choices of a plan have in common."""

    config: RunConfig
    spec: ModelSpec
    statistics: GraphStatistics
    machine: Machine
    link: Link | None = None
    """Between machines; None: all ranks share the machine."""
    ranks_per_host: int = 1
    """Of each of those machines."""
    memory: int | None = None
    """Bytes that a rank may take."""
    dollars_per_hour: float | None = None
    """Of a machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """The forecast of one choice."""

    name: str
    """Of the strategy."""
    ranks: int
    strategy: Strategy
    exactness: str
    memory: dict[str, int]
    """Bytes of a rank at its peak, by kind."""
    traffic: EpochTraffic
    phases: Phases
    budget: int | None
    dollars: float | None
    """Of an epoch."""
    is_measured: bool
    """Whether the graph was cut into so many parts; else a law tells of the cut."""

    @property
    def memory_bytes(self) -> int:
        """Of a rank at its peak."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        """Whether it is within the budget; True where there is none."""
        return self.budget is None or self.memory_bytes <= self.budget

    @property
    def is_exact(self) -> bool:
        """Whether it equals one process."""
        return self.exactness in ("exact", "rounded")  # the latter as one process would round

    @property
    def seconds(self) -> float:
        """Of an epoch's training."""
        return self.phases.training

    @property
    def flags(self) -> str:
        """What to add to `siafu train`."""
        flags = f"--strategy {self.name} --ranks {self.ranks}"
        if self.name == "halo" and self.strategy.stages != 1:
            flags += f" --stages {self.strategy.stages}"
            if self.strategy.recompute == 1 or self.budget is None:
                flags += " --recompute"
            else:
                flags += f" --memory {self.budget // 10**6}MB"  # which keeps as many rows as fit
        if self.strategy.offload:
            flags += f" --offload {math.ceil(self.strategy.offload / 1e6)}MB"
        return flags

    def as_dict(self) -> dict[str, Any]:
        """Return all of it for programs."""
        return {
            "strategy": self.name,
            "ranks": self.ranks,
            "choices": self.strategy.choices(self.ranks),
            "exactness": self.exactness,
            "memory_bytes": self.memory_bytes,
            "memory": self.memory,
            "fits": self.fits,
            "bytes": {
                "training": self.traffic.training,
                "layers": [
                    {"forward": one.forward, "again": one.again, "backward": one.backward}
                    for one in self.traffic.layers
                ],
                "gradients": self.traffic.gradients,
                "norms": self.traffic.norms,
                "samples": self.traffic.other,
                "evaluation": self.traffic.evaluation,
                "once": self.traffic.once,
            },
            "seconds": self.seconds,
            "phases": {name: getattr(self.phases, name) for name in PHASES},
            "dollars": self.dollars,
            "cut_is_measured": self.is_measured,
        }


def foresee(at: Setting, name: str, strategy: Strategy, ranks: int) -> Outlook:
    """Return the forecast of a strategy on so many ranks."""
    cut = at.statistics.at(ranks)
    if strategy.unit == "macrobatch":
        memory, traffic, phases = _of_minibatches(at, strategy, cut)
        exactness = "sampled"
    else:
        memory, traffic, phases = _of_full_graph(at, strategy, cut)
        exactness = strategy.exactness_on(ranks)
    machines = 1 if at.link is None else -(-ranks // at.ranks_per_host)
    hourly = at.dollars_per_hour
    return Outlook(
        name=name,
        ranks=ranks,
        strategy=strategy,
        exactness=exactness,
        memory=memory,
        traffic=traffic,
        phases=phases,
        budget=at.memory,
        dollars=None if hourly is None else phases.training * machines * hourly / 3600,
        is_measured=cut.is_measured,
    )


def _work(at: Setting, strategy: Strategy, cut: CutStatistics) -> Work:
    stored = at.statistics.stored_feature_bytes
    here = cut.ranks if at.link is None else min(cut.ranks, at.ranks_per_host)
    return Work(
        spec=at.spec,
        cut=cut,
        train_share=at.statistics.train_share,
        share=at.machine.in_precision(strategy.precision).shared(here, at.config.threads),
        link=at.link or at.machine.link,
        strategy=strategy,
        sparse_width=None if stored is None else (stored - 8) / 8,
        nodes=at.statistics.nodes,
        all_edges=at.statistics.edges,
        crossing=_crossing(at, strategy, cut, here),
        gives_back=at.machine.is_cpu
        and cut.ranks > 1
        and strategy.unit == "graph"
        and (at.config.memory is not None or strategy.stages != 1),
    )


def _crossing(at: Setting, strategy: Strategy, cut: CutStatistics, here: int) -> float:
    """Return the share of rows that come from other hosts; once per host, what hosts have in common
    is what a cut into as many parts as there are hosts would read."""
    others = (cut.ranks - here) / max(1, cut.ranks - 1)
    if here == 1 or not others or not strategy.once_per_host or strategy.by_columns:
        return others
    hosts = at.statistics.at(-(-cut.ranks // here))
    return min(others, hosts.halo_rows / max(1, cut.halo_rows))


def sizes_of(cut: CutStatistics, strategy: Strategy) -> Sizes:
    """Return what the largest part holds, its stages as even as stages are."""
    halo, peers = cut.largest_halo, cut.ranks - 1
    stages = min(strategy.stages_of(cut.ranks), peers)
    uneven = _UNEVEN_STAGE if stages > 1 else 1.0
    tallest = min(halo, math.ceil(halo / stages * uneven)) if stages else 0
    return Sizes(cut.rows, cut.edges, halo, halo, tallest, stages, cut.ranks)


def _held(at: Setting, cut: CutStatistics, *, on_disk: bool = False) -> dict[str, int]:
    graph, kept = at.statistics, 0 if on_disk else 1
    held = held_kinds(
        cut.rows,
        cut.largest_halo,
        kept * cut.rows * graph.row_bytes,
        kept * cut.edges * graph.edge_bytes,
    )
    if not at.machine.is_cpu:  # what a GPU counts is tensors alone
        return {**held, PROCESS: 0}
    # Ranks that are forked from one process share what it has loaded.
    is_forked = cut.ranks > 1 and (at.link is None or at.ranks_per_host > 1)
    loaded = at.machine.process_bytes * (FORKED_SHARE if is_forked else 1)
    return {**held, PROCESS: round(loaded) + RUNTIME_BYTES}


def _of_full_graph(
    at: Setting, strategy: Strategy, cut: CutStatistics
) -> tuple[dict[str, int], EpochTraffic, Phases]:
    graph = at.statistics
    sizes = replace(sizes_of(cut, strategy), nodes=graph.nodes, all_edges=graph.edges)
    memory = _held(at, cut) | predict_kinds(_stored_spec(at), sizes, strategy)
    memory[OTHER] += weight_bytes(at.spec)
    if at.memory is None and strategy.stages == 1 and at.machine.is_cpu:
        memory[FREED] = round(_KEPT_HEAP * sum(memory[kind] for kind in _ALIVE))
    if strategy.unit == "interval":
        # Rows of every layer and their gradients stay where intervals and other ranks read them.
        widths = [layer_widths(at.spec, number) for number in range(at.spec.layers)]
        columns = sum(width.into + width.out for width in widths)
        memory[OTHER] += round(
            _STAYING * strategy.item_bytes * columns * (cut.rows + cut.largest_halo)
        )
        traffic = interval_traffic(at.spec, cut.halo_rows, cut.ranks, strategy.precision)
        return memory, traffic, interval_seconds(_work(at, strategy, cut), traffic)
    if strategy.by_columns:
        traffic = column_traffic(at.spec, graph.nodes, cut.ranks, strategy)
    else:
        traffic = full_graph_traffic(
            at.spec, cut.halo_rows, cut.ranks, strategy, sparse=graph.is_sparse
        )
    return memory, traffic, full_graph_seconds(_work(at, strategy, cut), traffic)


def _stored_spec(at: Setting) -> ModelSpec:
    """Return the model as wide as its input is stored: of sparse rows, what is there is kept."""
    stored = at.statistics.stored_feature_bytes
    if stored is None:
        return at.spec
    width = max(at.spec.hidden, math.ceil((stored - 8) / 8))
    return replace(at.spec, in_width=min(at.spec.in_width, width))


def _of_minibatches(
    at: Setting, strategy: Strategy, cut: CutStatistics
) -> tuple[dict[str, int], EpochTraffic, Phases]:
    config, graph = at.config, at.statistics
    counts = count_minibatches(config, graph, cut)
    spec = at.spec
    if cut.drawn is not None and cut.drawn.packed_bytes is not None:
        spec = replace(spec, in_width=math.ceil(cut.drawn.packed_bytes / 4))
    held = _held(at, cut)
    if at.memory is not None and sum(held.values()) > 0.4 * at.memory:
        held = _held(at, cut, on_disk=True)
    memory = held | {MINIBATCHES: round(least_sampled_bytes(config, spec, graph.nodes))}
    work, row_bytes = _work(at, strategy, cut), _fetched_bytes(at, cut)
    epoch = MinibatchEpoch.of(work, counts, row_bytes)
    size = strategy.macrobatch
    if not isinstance(size, int):
        size = epoch.macrobatch(_in_flight(at, memory, cut.ranks))
    traffic = _sampled_traffic(at, counts, cut, size, row_bytes)
    return memory, traffic, epoch.seconds(size, traffic)


def _in_flight(at: Setting, memory: dict[str, int], ranks: int) -> float:
    """Return the bytes that macrobatches may take, as ranks settle it."""
    if at.memory is not None:
        return max(0.0, at.memory - sum(memory.values())) / BUILDING
    return math.inf if at.link is not None else FREE_SHARE * free_bytes() / ranks


def _fetched_bytes(at: Setting, cut: CutStatistics) -> float:
    """Return the bytes of a node's columns: features, its id, degrees that sums are scaled by."""
    graph, spec = at.statistics, at.spec
    features = graph.row_bytes
    if not graph.is_sparse:
        features *= BYTES[at.config.precision] / BYTES["float32"]
    elif cut.drawn is not None and cut.drawn.packed_bytes is not None:
        features = cut.drawn.packed_bytes
    return features + _ID_BYTES + (_DEGREES_BYTES if spec.card.scales_sampled else 0)


def _sampled_traffic(
    at: Setting, counts: MinibatchCounts, cut: CutStatistics, size: int, row_bytes: float
) -> EpochTraffic:
    """Return the bytes of an epoch: rows and samples of other ranks, gradients of every step.

    Of `size` steps together a row is fetched once.
    """
    ranks, graph, spec = cut.ranks, at.statistics, at.spec
    row = row_bytes + _REQUEST_BYTES
    rows = ranks * counts.epoch_far_rows(size) * row
    edge_bytes = _ADDRESS_BYTES + 4 * graph.is_weighted
    edge_bytes += 4 * graph.edge_features * bool(spec.edge_width) + bool(spec.num_types)
    asked = (_REQUEST_BYTES + _COUNT_BYTES) * counts.far.requests + edge_bytes * counts.far.answers
    samples, tried = ranks * asked, tried_steps(counts.steps)
    numbers, tensors = parameter_counts(spec)
    return EpochTraffic(
        layers=(LayerTraffic(0, 0, 0),) * spec.layers,
        gradients=counts.steps * ring_bytes(4 * (numbers + tensors), ranks) if ranks > 1 else 0,
        norms=0,
        evaluation=round(cut.halo_rows * _inferred_bytes(at, row)),
        once=round(tried * samples + bool(tried) * TRIED_ROWS * ranks * counts.far_rows[0] * row),
        other=round(rows + counts.steps * samples),
    )


def _inferred_bytes(at: Setting, first: float) -> float:
    """Return what a halo row costs in a pass over all nodes, whose first layer reads so much of it.

    Each layer fetches its input once, the last one what its map has made of that.
    """
    spec = at.spec
    beside = _REQUEST_BYTES + _ID_BYTES + (_DEGREES_BYTES if spec.card.scales_sampled else 0)
    later = [layer_widths(spec, number).into for number in range(1, spec.layers)]
    later[-1:] = [spec.out_width] if spec.maps_ahead else later[-1:]
    return first + sum(beside + BYTES[at.config.precision] * width for width in later)


def offloaded(at: Setting, one: Outlook) -> Outlook | None:
    """Return a choice that does not fit a GPU with as many rows in the host's memory as must.

    None where it fits, where there is no GPU or budget, or where that would not be enough.
    """
    if one.fits or at.memory is None or at.machine.is_cpu or one.strategy.unit != "graph":
        return None
    cut = at.statistics.at(one.ranks)
    sizes = replace(
        sizes_of(cut, one.strategy), nodes=at.statistics.nodes, all_edges=at.statistics.edges
    )
    spec = _stored_spec(at)
    beside = one.memory_bytes - predict_bytes(spec, sizes, one.strategy)
    away = least_offload(spec, sizes, one.strategy, at.memory - beside)
    return None if away is None else foresee(at, one.name, away, one.ranks)


def with_stages(strategy: Strategy, count: int, kept: int = 0) -> Strategy:
    """Return the strategy with so many stages, the rows of `kept` of which stay for backward."""
    return replace(strategy, stages=count, recompute=1 - kept / count if kept else True)
