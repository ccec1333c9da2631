"""How long an epoch takes on the slowest rank, by phase, from counts and a machine's costs.

A layer's work is summed up kind by kind: its edges (sums, maxima or attention, forward and
backward), its products (the linear maps, their gradients), passes over its rows (dropout, biases,
activations, norms), and what ranks send each other.

N rows of the largest part, E its edges, D columns.
"""

from dataclasses import dataclass, replace

from siafu.nn import ModelSpec, layer_widths
from siafu.plan.bytes import EpochTraffic, parameter_counts, returns_gradients, row_parts
from siafu.plan.layer_rows import layer_rows
from siafu.plan.machine import Link, Share
from siafu.plan.statistics import CutStatistics
from siafu.strategy import Strategy
from siafu.strategy.rounding import LEAST_WIDTH

_FORWARD_PASSES, _BACKWARD_PASSES = 3.0, 4.0
"""Over a layer's output: bias, activation, what is added to it; their gradients."""
_LAST_PASSES = 4.0
"""Over the output of the last layer, which has no activation, both ways."""
_NORM_PASSES = {"none": 0.0, "layer": 8.0, "batch": 6.0}
_LOSS_PASSES = 9.0
"""Over the scores of training nodes."""
_SCORE_PASSES = 4.0
"""Over all scores, to score them."""
_ADAM_PASSES = 12.0
_SHARED_COPIES = 2.1
"""Where ranks share a machine, copies between them take the cores of those that compute: what
computing then takes more is about what is waited for."""
_SHARED_COLUMNS = 1.4
"""The same of columns, which are copied once, all together."""
_LATE_PAIRS, _MOST_LATE = 0.1, 2
"""Between hosts, what each rank above two adds to the wait for halo rows, whose pairs are not even;
beyond four ranks no more."""
_GIVEN_BACK = 2.1
"""What work on rows takes where freed memory is given back at once: results are new pages."""
_NOTED = 6.0
"""Of coding a number: with its row's range, its place in the message and small messages."""
_OWN_EDGES = 0.5
"""Of the seconds of edges, those of owned rows, while which others travel."""
_EVALUATION_SHARE = 0.3
"""Of what a step takes beside rows and edges: forward alone."""
_TASK_SECONDS = 1e-3
"""Of a task of a pipeline, and of its gather, beside rows and edges."""
_HOST_BYTES_PER_SECOND = 4e10
"""Of copies between a GPU and pinned memory: PCIe 5 (46 GB/s were measured on an H200)."""
_ELEMENTS_PER_THREAD = 4_000_000
"""As ranks choose their threads: no more than that many numbers of a layer keep busy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Phases:
    """Seconds of an epoch by what they are spent on."""

    edges: float = 0.0
    products: float = 0.0
    passes: float = 0.0
    """Over rows: dropout, activations, norms, the loss."""
    exchange: float = 0.0
    """That no other work hides."""
    fixed: float = 0.0
    """What rows and edges do not account for, the optimiser among it."""
    evaluation: float = 0.0
    """Of one evaluation, which is not part of an epoch's training."""

    @property
    def training(self) -> float:
        """Of an epoch without its evaluation."""
        return self.edges + self.products + self.passes + self.exchange + self.fixed

    def plus(self, other: "Phases") -> "Phases":
        """Return both together."""
        return Phases(**{name: getattr(self, name) + getattr(other, name) for name in PHASES})


PHASES = ("edges", "products", "passes", "exchange", "fixed", "evaluation")


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """A rank's share of an epoch: the model, the part, and what it has to work with."""

    spec: ModelSpec
    cut: CutStatistics
    train_share: float
    share: Share
    link: Link
    strategy: Strategy
    sparse_width: float | None = None
    """Numbers of a node's sparse features; None where they are dense."""
    nodes: int = 0
    all_edges: int = 0
    """Of the whole graph, which ranks walk over by columns."""
    crossing: float = 1.0
    """Of the rows that a rank has of others, the share that comes from other hosts."""
    gives_back: bool = False
    """Whether memory that is freed is given back at once."""

    @property
    def is_by_columns(self) -> bool:
        """Whether ranks share columns out, not nodes."""
        return self.strategy.by_columns and self.cut.ranks > 1


def full_graph_seconds(work: Work, traffic: EpochTraffic) -> Phases:
    """Return the seconds of an epoch over the whole graph."""
    spec, cut = work.spec, work.cut
    if work.share.machine.is_cpu:
        busy = 1 + (cut.rows + cut.edges) * spec.hidden // _ELEMENTS_PER_THREAD
        work = replace(work, share=work.share.limited(busy))
    step = whole_step(work)
    # Copies to the host and back run beside all that; they take longer where they are many.
    kept = sum(layer_rows(spec, number).kept for number in range(spec.layers))
    leaves = min(work.strategy.offload, work.strategy.item_bytes * kept * cut.rows)
    copying = 2 * leaves / _HOST_BYTES_PER_SECOND
    more = Phases(passes=max(0.0, copying - step.training))
    return step.plus(_exchange(work, traffic, step)).plus(more)


def whole_step(work: Work) -> Phases:
    """Return the seconds of a step without what ranks send each other."""
    total = end_seconds(work)
    for number in range(work.spec.layers):
        total = total.plus(layer_seconds(work, number))
    more = work.share.whole * (_GIVEN_BACK if work.gives_back else 1.0)
    # A kernel of attention is long enough for threads to be worth waking.
    edges = total.edges if work.spec.card.attends else more * total.edges
    return replace(
        total,
        edges=edges,
        products=more * total.products,
        passes=more * total.passes,
        evaluation=total.evaluation * edges / max(1e-12, total.edges),
    )


def layer_seconds(work: Work, number: int) -> Phases:
    """Return the seconds of a layer, forward and backward."""
    spec, rows, share = work.spec, work.cut.rows, work.share
    width, is_last = layer_widths(spec, number), number == spec.layers - 1
    there, back = _edge_seconds(work, number)
    maps = spec.card.maps(width) * share.product(min(width.into, width.out)) * rows
    if number == 0 and work.sparse_width is not None:
        maps *= min(1.0, 4 * work.sparse_width / width.into)
    gradients = maps if number == 0 else 2 * maps
    drops = spec.dropout if number or spec.input_dropout is None else spec.input_dropout
    drawn = share.of("draw") * rows * width.into if drops > 0 else 0.0
    forward = _FORWARD_PASSES if not is_last else _LAST_PASSES / 2
    backward = _BACKWARD_PASSES if not is_last else _LAST_PASSES / 2
    norms = 0.0 if is_last else _NORM_PASSES[spec.norm]
    element = share.of("element") * rows
    ahead = element * (forward + norms / 3) * width.out
    behind = element * ((backward + 2 * norms / 3) * width.out + (number > 0) * width.into)
    machine = share.machine
    fixed = machine.attend_layer_seconds if spec.card.attends else machine.layer_seconds
    return Phases(
        edges=there + back,
        products=maps + gradients,
        passes=ahead + behind + drawn * (2 if number else 1),
        fixed=fixed,
        evaluation=there + maps + ahead + _EVALUATION_SHARE * fixed,
    )


def _edge_seconds(work: Work, number: int) -> tuple[float, float]:
    """Return the seconds of a layer's edges, forward and backward."""
    spec, cut, share = work.spec, work.cut, work.share
    columns = sum(row_parts(spec, number))
    if number == 0 and work.sparse_width is not None:
        columns = min(columns, layer_widths(spec, number).out)
    if work.is_by_columns:
        # Attention is cut by heads: of fewer heads than ranks, some have none, and leave their
        # cores to the others. So it takes about midway between an equal share and the largest.
        units = layer_widths(spec, number).heads if spec.card.attends else max(1, columns)
        largest = columns * -(-units // cut.ranks) // units
        columns = max(1, (columns // cut.ranks + largest) // 2)
        whole = {"rows": work.nodes, "edges": work.all_edges, "largest_halo": 0}
        cut = cut.model_copy(update=whole)
    edges = cut.edges + (cut.rows if spec.card.adds_loops else 0)
    returns = returns_gradients(spec, number, sparse=work.sparse_width is not None)
    if number == 0 and work.strategy.input_cache:
        return 0.0, 0.0
    if spec.card.attends:
        numbers = edges * columns
        return numbers * share.attend(backward=False), numbers * share.attend(backward=True)
    item = work.strategy.item_bytes
    table = (cut.rows + cut.largest_halo) * columns * item
    there = edges * columns * share.gather(columns, table)
    if spec.card.aggregation == "max":
        there = edges * columns * share.of("maximum")
        there += 6 * share.of("element") * cut.rows * columns
        return there, 4 * share.of("element") * cut.rows * columns
    if spec.card.aggregation == "relations":
        return there, 2 * there
    back = edges * columns * share.gather(columns, cut.rows * columns * item)
    return there, back if returns else 0.0


def end_seconds(work: Work) -> Phases:
    """Return the seconds of the loss, the optimiser and what else a step has once."""
    spec, share = work.spec, work.share
    element, machine = share.of("element"), share.machine
    scores = element * spec.out_width * work.cut.rows
    numbers, _ = parameter_counts(spec)
    return Phases(
        passes=scores * (1 + _LOSS_PASSES * work.train_share),
        fixed=machine.step_seconds + _ADAM_PASSES * element * numbers,
        evaluation=_SCORE_PASSES * scores + _EVALUATION_SHARE * machine.step_seconds,
    )


def _exchange(work: Work, traffic: EpochTraffic, computing: Phases) -> Phases:
    """Return what ranks wait for rows and sums, beyond what own edges hide of it."""
    cut, ranks, link, strategy = work.cut, work.cut.ranks, work.link, work.strategy
    if ranks == 1:
        return Phases()
    uneven = cut.largest_halo * ranks / max(1, cut.halo_rows)
    if work.is_by_columns:
        uneven = cut.rows * ranks / max(1, work.nodes)
    trips = sum(
        (layer.forward > 0) + (layer.again > 0) + (layer.backward > 0) for layer in traffic.layers
    )
    tensors = 2 if work.is_by_columns else len(row_parts(work.spec, 0))
    messages = trips * tensors * (ranks - 1)
    rows = traffic.rows / ranks * uneven
    entries = rows / strategy.item_bytes
    if strategy.wire != 32:
        entries = _rounded_entries(work)
    copying = 2 * entries * work.share.of("select")
    coding = _NOTED * entries * work.share.of("code") if strategy.wire != 32 else 0.0
    travel = (_row_seconds(work, rows) + messages * link.latency_seconds) * _slowed(work)
    sums = (traffic.gradients + traffic.norms) / ranks / link.bytes_per_second
    # One sum of the gradients, and two of small numbers: as many hops as a ring has.
    sums += 3 * 2 * (ranks - 1) * link.latency_seconds
    hidden = 0.0
    if strategy.overlap and not link.is_shared and not work.is_by_columns:
        hidden = min(travel, _OWN_EDGES * computing.edges)
    scoring = traffic.evaluation / ranks * uneven / link.bytes_per_second
    scoring += trips / 2 * tensors * (ranks - 1) * link.latency_seconds
    return Phases(exchange=travel - hidden + copying + coding + sums, evaluation=scoring)


def _row_seconds(work: Work, rows: float) -> float:
    """Return the seconds of a rank's bytes: ranks of a host share what lies between hosts."""
    here = work.share.ranks
    if work.link.is_shared or here == 1:
        return rows / work.link.bytes_per_second
    inside = _SHARED_COPIES * (1 - work.crossing) * rows
    inside /= work.share.machine.link.bytes_per_second
    return inside + work.crossing * here * rows / work.link.bytes_per_second


def _slowed(work: Work) -> float:
    """Return what travelling takes over what the link alone would."""
    if work.link.is_shared:
        return _SHARED_COLUMNS if work.is_by_columns else _SHARED_COPIES
    late = 0 if work.is_by_columns else min(work.cut.ranks - 2, _MOST_LATE)
    return 1 + _LATE_PAIRS * late


def _rounded_entries(work: Work) -> float:
    """Return the numbers of rows that a rank rounds in an epoch, there and back."""
    total = 0.0
    for number in range(work.spec.layers):
        ways = 1 + returns_gradients(work.spec, number)
        wide = [part for part in row_parts(work.spec, number) if part >= LEAST_WIDTH]
        total += ways * sum(wide) * work.cut.largest_halo
    return total


def interval_seconds(work: Work, traffic: EpochTraffic) -> Phases:
    """Return the seconds of an epoch in a pipeline whose tensor work is done by its own ranks.

    What runs forward is run again where gradients are wanted, an interval at a time.
    """
    whole = full_graph_seconds(work, traffic)
    tasks = work.strategy.intervals * (2 * work.spec.layers + 1)
    return replace(
        whole,
        products=4 / 3 * whole.products,
        passes=4 / 3 * whole.passes,
        fixed=whole.fixed + tasks * _TASK_SECONDS,
    )
