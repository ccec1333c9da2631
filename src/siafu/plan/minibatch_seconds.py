"""How long an epoch of sampled minibatches takes, and how many steps of it are fetched together.

What a run times of its own steps (`siafu.minibatch.StepCosts`) is told from counts and a machine's
costs here; the rule that picks the size of macrobatches is the run's.
"""

from dataclasses import dataclass, replace

from siafu.minibatch import StepCosts, Trial, choose_macrobatch
from siafu.nn import layer_widths
from siafu.plan.bytes import EpochTraffic
from siafu.plan.sampled import MinibatchCounts, projected_first
from siafu.plan.seconds import Phases, Work, end_seconds, full_graph_seconds, layer_seconds
from siafu.plan.statistics import CutStatistics

_ITEM = 4
_PER_EDGE, _ROW_PASSES = 7.0, 3.0
"""What an edge takes beside drawing it, in draws of one thread, however many a rank has: numbering
its source, sorting by owner; and an entry of a row in copies."""
_TURNED = 2.0
"""What an edge takes in training to be sorted by its source, in draws."""
_STEP_SECONDS = 2e-3
"""Of a minibatch beside its layers: to put it together."""
_MESSAGES_PER_HOP, _MESSAGES_OF_ROWS = 4, 4
"""To each peer, one after the other: counts, requests and answers."""
_SUBGRAPH_EDGE_BYTES = 12
"""Of a minibatch that is on its way: its source, and the address of a node."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MinibatchEpoch:
    """An epoch's work, step by step."""

    work: Work
    counts: MinibatchCounts
    trial: Trial
    step: Phases
    """Of training on one minibatch."""
    costs: StepCosts

    @classmethod
    def of(cls, work: Work, counts: MinibatchCounts, row_bytes: float) -> "MinibatchEpoch":
        """Return the work of minibatches whose nodes have columns of so many bytes."""
        share, link, ranks = work.share, work.link, work.cut.ranks
        edges, far = sum(counts.edges), counts.far
        entries = row_bytes / _ITEM
        step = _step_seconds(work, counts, entries)
        alone = share.limited(1)
        drawn = edges * (share.of("sample") + _PER_EDGE * alone.of("sample"))
        row = _ROW_PASSES * entries * share.of("select")
        computing = drawn + row * counts.rows[0]
        fixed = 0.0
        if ranks > 1:
            hops = len(counts.edges)
            fixed = (_MESSAGES_PER_HOP * hops + _MESSAGES_OF_ROWS) * (ranks - 1)
            fixed *= link.latency_seconds
            asked = (12 * far.requests + 8 * far.answers) / link.bytes_per_second
            far_share = counts.far_rows[0] / max(1.0, counts.rows[0])
            drawn += asked
            row += far_share * (row_bytes + 8) / link.bytes_per_second
        fetching = fixed + drawn + row * counts.rows[0]
        # The thread ahead takes one of a rank's cores, as a run measures it.
        busy = computing / max(1e-12, fetching) / share.threads if share.machine.is_cpu else 0.0
        trial = Trial(
            curve=[counts.rows_of(size) for size in range(1, (1 << len(counts.rows) - 1) + 1)],
            graph_bytes=_SUBGRAPH_EDGE_BYTES * edges + 16 * counts.reached[-1],
            row_bytes=round(row_bytes),
            reached=tuple(round(count) for count in counts.reached),
            edges=round(edges),
        )
        costs = StepCosts(fixed=fixed, drawn=drawn, row=row, trained=step.training, busy=busy)
        return cls(work=work, counts=counts, trial=trial, step=step, costs=costs)

    def macrobatch(self, budget_bytes: float) -> int:
        """Return how many steps a run fetches together that may use so many bytes for them."""
        return choose_macrobatch(self.trial, self.costs, budget_bytes, self.counts.steps)

    def seconds(self, size: int, traffic: EpochTraffic) -> Phases:
        """Return the seconds of an epoch whose first steps were fetched while the last one ended.

        On cores, drawing and fetching take them from training; what is left of it is waited for.
        """
        work, steps, step = self.work, self.counts.steps, self.step
        size = min(size, steps)
        groups = steps / size
        fetch, train = self.costs.fetch(self.trial, size), size * step.training
        computing = self.costs.busy * fetch
        waiting = max(0.0, fetch - train - computing)
        ranks, link = work.cut.ranks, work.link
        sums = traffic.gradients / ranks / link.bytes_per_second
        sums += steps * 2 * (ranks - 1) * link.latency_seconds
        return Phases(
            edges=steps * step.edges + groups * computing,
            products=steps * step.products,
            passes=steps * step.passes,
            exchange=(sums if ranks > 1 else 0.0) + groups * waiting,
            fixed=steps * step.fixed,
            evaluation=full_graph_seconds(work, traffic).evaluation,
        )


def _step_seconds(work: Work, counts: MinibatchCounts, entries: float) -> Phases:
    """Return the seconds of training on one minibatch whose rows have been fetched."""
    spec, share, hops = work.spec, work.share, len(counts.edges)
    total = Phases()
    for number in range(spec.layers):
        hop = min(spec.layers - 1 - number, hops - 1)
        edges = sum(counts.edges[: hop + 1])
        total = total.plus(_layer(work, number, counts.reached[hop : hop + 2], edges))
    last = CutStatistics(ranks=1, halo_rows=0, rows=round(counts.reached[0]))
    total = total.plus(end_seconds(replace(work, cut=last, train_share=1.0)))
    picked = entries * counts.reached[-1] * share.of("select")
    turned = _TURNED * sum(counts.edges) * share.of("sample")
    return replace(
        total,
        edges=total.edges + turned,
        passes=total.passes + picked,
        fixed=total.fixed + _STEP_SECONDS,
    )


def _layer(work: Work, number: int, reached: tuple[float, ...], edges: float) -> Phases:
    """Return the seconds of a layer that writes fewer rows than it reads."""
    spec, (written, read) = work.spec, reached
    width, first = layer_widths(spec, number), projected_first(spec, number)

    def of(rows: float) -> Phases:
        piece = CutStatistics(ranks=1, halo_rows=0, rows=round(rows), edges=round(edges))
        return layer_seconds(replace(work, cut=piece), number)

    wide, narrow = of(read), of(written)
    own = 0.5 if spec.card.reads_own_row else 0.0
    gathered = wide.products if first else narrow.products
    dropped = 0.0
    if spec.dropout > 0:  # of all rows that are read
        dropped = work.share.of("draw") * (read - written) * width.into * (2 if number else 1)
    return replace(
        wide,
        products=own * narrow.products + (1 - own) * gathered,
        passes=narrow.passes + dropped,
    )
