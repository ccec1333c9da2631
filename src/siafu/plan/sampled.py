"""What training on sampled minibatches takes, told from counts or from a trial."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from siafu.config import RunConfig
from siafu.errors import ConfigError
from siafu.minibatch import Trial
from siafu.minibatch.macrobatch_size import MOST_STEPS
from siafu.nn import ModelSpec, layer_widths
from siafu.nn.precision import BYTES
from siafu.plan.layer_rows import layer_rows
from siafu.plan.statistics import CutStatistics, GraphStatistics

RUNTIME_BYTES = 60 * 10**6
"""What comes once training starts, whatever the graph: threads of backward, sockets' buffers, the
writer of Parquet."""
BUILDING = 1.5
"""What two macrobatches take over their own size while one of them is put together."""
FREE_SHARE = 0.25
"""Of the memory that is free, for rows in flight where no budget is named."""
_EDGE_BYTES = 48
"""An edge of a minibatch: its source and its transpose, with what they are sorted by."""


def step_bytes(config: RunConfig, spec: ModelSpec | None, trial: Trial) -> float:
    """Return what training on one minibatch takes beside the macrobatches."""
    reached, edges = trial.reached, trial.edges
    numbers = trial.row_bytes * reached[-1] + _EDGE_BYTES * edges
    if spec is None:
        # A foreign layer makes a message of each edge, and keeps it.
        return 2 * piece_bytes(config, trial.row_bytes, reached[-1], edges) - numbers
    kept = peak = 0.0
    for number in range(spec.layers):
        hop = min(spec.layers - 1 - number, len(reached) - 1)
        written, read = reached[hop], reached[min(hop + 1, len(reached) - 1)]
        layer, projected = layer_rows(spec, number), projected_first(spec, number)
        inner = read if projected else written
        dropped = kept + layer_widths(spec, number).into * read
        kept += layer.entered * read + (layer.kept - layer.entered) * inner
        # The input of the first layer is given no gradient.
        peak = max(peak, dropped, kept + layer.backward * (inner if number == 0 else read))
    heads = 8 * spec.heads * edges if spec.card.attends else 0
    return numbers + BYTES[config.precision] * peak + heads


def piece_bytes(config: RunConfig, row_bytes: int, nodes: float, edges: float) -> float:
    """Return what a model that is not taken apart takes to infer on some nodes and edges."""
    assert config.hidden is not None
    messages = 2.0 * 4 * config.hidden * (edges + nodes)  # they are wide, and there are two
    return row_bytes * nodes + _EDGE_BYTES * edges + messages


def least_sampled_bytes(config: RunConfig, spec: ModelSpec, num_nodes: int) -> float:
    """Return what training on the smallest macrobatches takes at most, beside what a rank holds."""
    reached, edges = [min(config.batch_size, num_nodes)], 0.0
    for fanout in read_fanout(config.fanout, config.layers):
        drawn = reached[-1] * fanout if fanout > 0 else num_nodes
        edges += drawn
        reached.append(min(num_nodes, reached[-1] + drawn))
    row_bytes = BYTES[config.precision] * spec.in_width + 32
    trial = Trial(
        curve=[float(reached[-1])],
        graph_bytes=16.0 * edges,
        row_bytes=row_bytes,
        reached=tuple(reached),
        edges=int(edges),
    )
    step = step_bytes(config, spec, trial)
    return RUNTIME_BYTES + step + BUILDING * trial.macrobatch_bytes(1)


def projected_first(spec: ModelSpec, number: int) -> bool:
    """Whether a layer maps the rows it reads before it gathers them, not the ones it writes."""
    width, when = layer_widths(spec, number), spec.card.maps_first
    return when == "always" or (when == "narrower" and width.out < width.into)


def read_fanout(text: str | None, layers: int) -> tuple[int, ...]:
    """Return the in-edges drawn at each hop."""
    if text is None:
        return (15, 10, *[5] * layers)[:layers]
    try:
        fanouts = tuple(int(piece) for piece in text.split(","))
    except ValueError:
        fanouts = ()
    if len(fanouts) != layers or any(fanout < -1 or fanout == 0 for fanout in fanouts):
        raise ConfigError(
            "The fan-out can't be used.",
            seen=f"--fanout {text} with {layers} layers",
            fix="give a number for each layer, as "
            f"--fanout {','.join(['15', '10', *['5'] * layers][:layers])}; -1 takes all in-edges",
        )
    return fanouts


@dataclass(frozen=True, kw_only=True, slots=True)
class FarCounts:
    """What a minibatch has of other ranks, on average."""

    requests: float
    """Nodes whose in-edges are drawn there."""
    answers: float
    """Edges drawn there."""
    edges: float
    """Edges, drawn wherever, that start at nodes of others."""


_NOTHING_FAR = FarCounts(requests=0.0, answers=0.0, edges=0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class MinibatchCounts:
    """What a minibatch reaches on average, and how many of them an epoch has."""

    reached: tuple[float, ...]
    """Nodes met up to each hop, from the seeds alone to all."""
    edges: tuple[float, ...]
    """Drawn at each hop."""
    steps: int
    """Of an epoch, each with a minibatch on every rank."""
    far: FarCounts = _NOTHING_FAR
    rows: tuple[float, ...] = (0.0,)
    """Distinct nodes of a rank per step, where 1, 2, 4, ... steps go together."""
    far_rows: tuple[float, ...] = (0.0,)
    """Those of them that other ranks own."""

    def rows_of(self, size: int) -> float:
        """Return the distinct nodes of so many steps."""
        return size * _between(self.rows, size)

    def epoch_far_rows(self, size: int) -> float:
        """Return the rows that a rank fetches in an epoch, each once per `size` steps."""
        return self.steps * _between(self.far_rows, size)


def _between(per_step: tuple[float, ...], size: int) -> float:
    """Return what steps have each where `size` go together, from what powers of two have."""
    place = min(math.log2(size), len(per_step) - 1)
    low = int(place)
    high = min(low + 1, len(per_step) - 1)
    return per_step[low] + (place - low) * (per_step[high] - per_step[low])


def count_minibatches(
    config: RunConfig, statistics: GraphStatistics, cut: CutStatistics
) -> MinibatchCounts:
    """Return what minibatches have: as some that were drawn, or else by the law of degrees.

    Of more steps than were drawn, nodes repeat as the law has it.
    """
    law, drawn = _law(config, statistics, cut), cut.drawn
    if drawn is None:
        return law
    steps = min(drawn.steps, config.steps_per_epoch or drawn.steps)
    by_law = _repeated(statistics, cut.ranks, law, steps)
    return MinibatchCounts(
        reached=drawn.reached,
        edges=drawn.edges,
        steps=steps,
        far=FarCounts(requests=drawn.requests, answers=drawn.answers, edges=law.far.edges),
        rows=_continued(drawn.rows, by_law[0]),
        far_rows=_continued(drawn.far_rows, by_law[1]),
    )


def _continued(drawn: tuple[float, ...], law: tuple[float, ...]) -> tuple[float, ...]:
    """Return what was drawn, and beyond that as much less as the law has it."""
    known, last = drawn[: len(law)], max(1e-12, law[min(len(drawn), len(law)) - 1])
    return (*known, *(known[-1] * less / last for less in law[len(known) :]))


def _law(config: RunConfig, statistics: GraphStatistics, cut: CutStatistics) -> MinibatchCounts:
    """Return what minibatches of a graph of such degrees reach.

    The k-th edge drawn meets a node that is new with the chance that no earlier one has met it; who
    has many edges is met early.
    """
    ranks, train = cut.ranks, max(1.0, statistics.nodes * statistics.train_share)
    steps = math.ceil(train / ranks / min(float(config.batch_size), train / ranks))
    seeds = train / ranks / steps
    steps = min(steps, config.steps_per_epoch or steps)
    reached, edges, new, drawn = [seeds], [], seeds, 0.0
    for hop, fanout in enumerate(read_fanout(config.fanout, config.layers)):
        taken = new * statistics.mean_drawn(fanout, is_met=hop > 0)
        edges.append(taken)
        drawn += taken
        met = statistics.distinct_sources(drawn)
        total = min(float(statistics.nodes), seeds + met * (1 - seeds / statistics.nodes))
        new = max(0.0, total - reached[-1])
        reached.append(max(reached[-1], total))
    near = MinibatchCounts(reached=tuple(reached), edges=tuple(edges), steps=steps)
    far = _NOTHING_FAR
    if ranks > 1:
        far = count_far(near, statistics, ranks, statistics.cut_share(cut))
    counts = replace(near, far=far)
    rows, far_rows = _repeated(statistics, ranks, counts, steps)
    return replace(counts, rows=rows, far_rows=far_rows)


def _repeated(
    statistics: GraphStatistics, ranks: int, counts: MinibatchCounts, steps: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the distinct nodes per step of 1, 2, 4, ... steps by the law, and those of others."""
    nodes, away = float(statistics.nodes), (ranks - 1) / ranks

    def rows(count: int) -> float:
        seeds = min(nodes, count * counts.reached[0])
        met = statistics.distinct_sources(count * sum(counts.edges))
        return min(nodes, seeds + met * (1 - seeds / nodes))

    def far(count: int) -> float:
        if ranks == 1:
            return 0.0
        return statistics.distinct_sources(count * counts.far.edges / away) * away

    def per_step(of: Callable[[int], float], size: int) -> float:
        groups, rest = divmod(steps, size)
        return (groups * of(size) + (of(rest) if rest else 0.0)) / steps

    # The last has all steps of an epoch, if that is not more than macrobatches ever have.
    sizes = [1 << place for place in range(MOST_STEPS.bit_length())]
    sizes = [size for size in sizes if size < 2 * steps]
    found = [tuple(per_step(of, size) for size in sizes) for of in (rows, far)]
    return found[0], found[1]


def count_far(
    counts: MinibatchCounts, statistics: GraphStatistics, ranks: int, cut_share: float
) -> FarCounts:
    """Return what minibatches whose seeds are a rank's own have of others.

    An edge leads to another part with the chance of the cut, be it from the own one or back to it.
    """
    away, near, far = (ranks - 1) / ranks, counts.reached[0], 0.0
    new_near, new_far = near, 0.0
    drawn_near = drawn_far = requests = answers = 0.0
    back = cut_share / max(1, ranks - 1)
    for drawn in counts.edges:
        each = drawn / max(1.0, new_near + new_far)
        requests, answers = requests + new_far, answers + new_far * each
        stays = each * (new_near * (1 - cut_share) + new_far * back)
        drawn_near, drawn_far = drawn_near + stays, drawn_far + drawn - stays
        met_near = statistics.distinct_sources(drawn_near * ranks) / ranks
        met_near = counts.reached[0] + met_near * (1 - counts.reached[0] * ranks / statistics.nodes)
        met_far = statistics.distinct_sources(drawn_far / away) * away
        new_near, new_far = max(0.0, met_near - near), max(0.0, met_far - far)
        near, far = max(near, met_near), max(far, met_far)
    return FarCounts(requests=requests, answers=answers, edges=drawn_far)
