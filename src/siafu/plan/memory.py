"""How much memory a rank needs while it trains, told before it starts.

The figures are of what is alive at the peak: rows that autograd keeps, the gradients of the layer
that backward is in, rows that travel, and edges cut into blocks. They hold for the built-in models;
docs/strategies.md writes the formula out, and benchmarks/memory_scaling.py compares it.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass, replace

from siafu.comm import UNCHANGED
from siafu.nn import ModelSpec, layer_widths
from siafu.plan.bytes import returns_gradients, row_bytes_sent
from siafu.shard import Shard
from siafu.strategy import IN_HAND, Strategy, group_rounds, smallest_piece
from siafu.strategy.rounding import LEAST_WIDTH

PROCESS, GRAPH, FEATURES = "process", "graph", "features"
KEPT, FETCHED, GRADIENTS = "rows kept", "rows of others kept", "gradients of rows"
TRAVELLING, BLOCKS, OTHER = "rows that travel", "edges in blocks", "other"
"""Kinds of memory: the first three are there before training starts."""
PROCESS_BYTES = 360 * 10**6
"""A rank before it opens its part: Python, torch and the rest."""
ROW_BYTES = 56
"""An owned row beside its features: offsets, numbers, label, who it is sent to, its degrees."""
_EDGE_BYTES = 4
_SLICES = 64
"""Of rows kept for backward, as many of which wait in the host's memory as must."""
_POINTER_BYTES = 8
_MESSAGE_BYTES, _STEP_BYTES = 40, 46
"""Of a row sent while widths are assigned: 8 for its range, formats and how it counts, the rest
for a moment while an assignment is made; and of each step from one width to the next."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a rank holds: rows, in-edges, and how many rows it reads and sends."""

    rows: int
    edges: int
    read: int
    sent: int
    largest_stage: int
    """Rows of the largest stage, read or sent."""
    stages: int
    ranks: int = 1
    nodes: int = 0
    """Of the whole graph."""
    all_edges: int = 0
    """Of the whole graph, which each rank holds by columns."""


@dataclass(frozen=True, slots=True)
class LayerRows:
    """Columns that one layer keeps until its backward, and columns of a row that travels."""

    kept: int
    travels: int
    widest: int
    entered: int
    """Of those kept, what dropout makes of the input."""
    backward: int
    """Columns of gradients: that which comes in, that which goes out, and one on the way."""
    handed_down: int
    """Of these, what is made of the own rows once gradients of others' rows have come and gone."""


def layer_rows(spec: ModelSpec, number: int) -> LayerRows:
    """Return what a layer of the model keeps, in columns of owned rows."""
    card, width = spec.card, layer_widths(spec, number)
    is_last = number == spec.layers - 1
    # Dropout makes a copy of the input; without it the input of the first layer is the data itself.
    entered = 0 if number == 0 and not _drops(spec, 0) else width.into
    if not card.reads_own_row and width.into < width.out:
        entered = 0  # it aggregates first: its gradient reads the sums alone
    norms = 0 if spec.norm == "none" or is_last else 2 * width.out
    leaves = 0 if is_last and spec.jk == "none" else width.out
    kept = entered + card.keeps(width) + norms + leaves
    # The input of the first layer is given no gradient.
    below = width.into if number else width.out
    handed_down = below if card.reads_own_row else 0  # from other rows alone, or the own one too
    backward = width.out + below + handed_down
    widest = max(width.into, width.out)
    return LayerRows(kept, card.sends(width), widest, entered, backward, handed_down)


def _drops(spec: ModelSpec, number: int) -> bool:
    p = spec.input_dropout if number == 0 and spec.input_dropout is not None else spec.dropout
    return p > 0


def predict_bytes(
    spec: ModelSpec, sizes: Sizes, strategy: Strategy, *, item: int | None = None
) -> int:
    """Return the peak of a training step beyond what the shard itself takes."""
    return sum(predict_kinds(spec, sizes, strategy, item=item).values())


def least_offload(
    spec: ModelSpec, sizes: Sizes, strategy: Strategy, room: float
) -> Strategy | None:
    """Return the strategy with as few bytes in the host's memory as `room` for a step asks for.

    None where no number of them is enough.
    """
    kept = predict_kinds(spec, sizes, strategy.with_choices(offload=0))[KEPT]
    slices = range(_SLICES + 1)

    def sliced(number: int) -> Strategy:
        return strategy.with_choices(offload=-(-kept * number // _SLICES))

    def fits(number: int) -> bool:
        return predict_bytes(spec, sizes, sliced(number)) <= room

    least = bisect_left(slices, True, key=fits)
    return sliced(least) if least < len(slices) else None


def predict_kinds(
    spec: ModelSpec, sizes: Sizes, strategy: Strategy, *, item: int | None = None
) -> dict[str, int]:
    """Return what a training step takes at its peak beyond the shard, by kind."""
    item = strategy.item_bytes if item is None else item
    if strategy.by_columns and sizes.ranks > 1:
        return _kinds_by_columns(spec, sizes, strategy, item)
    layers = [layer_rows(spec, number) for number in range(spec.layers)]
    refetches = spec.card.refetches
    in_hand = IN_HAND * max(layer.widest for layer in layers) * sizes.rows
    most, rows_kept, fetched = (0, 0, 0, 0), 0, 0
    for number, layer in enumerate(layers):
        rows_kept += layer.kept * sizes.rows
        is_cached = number == 0 and strategy.input_cache
        # Rows that both ends keep are there anyway, unless it is in bfloat16.
        is_there = strategy.keeps_rows and strategy.kept_bits > 16
        if refetches and not is_there and not is_cached:
            fetched += layer.travels * _rows_kept(sizes, strategy)
        columns = layer.backward
        if sizes.stages == 1 and not (strategy.codes_rows or strategy.staleness):
            columns -= layer.handed_down
        now = columns * sizes.rows, _travelling(layer, sizes, refetches, strategy)
        away = min(strategy.offload // item, max(0, rows_kept - in_hand))
        most = max(most, (rows_kept - away, fetched, *now), key=sum)
    extra = 0
    if strategy.input_cache:
        extra += item * spec.cached_width * sizes.rows  # what is aggregated once
    if strategy.prune:
        extra += spec.layers * sizes.edges * (2 * _EDGE_BYTES + _POINTER_BYTES)  # at most
    if strategy.assigns_widths:
        extra += _assigning(spec, sizes, strategy)
    kept, fetched, gradients, travelling = (item * numbers for numbers in most)
    return {
        KEPT: kept,
        FETCHED: fetched + _kept_by_ends(spec, sizes, strategy, item),
        GRADIENTS: gradients,
        TRAVELLING: travelling,
        BLOCKS: _edge_bytes(spec, sizes),
        OTHER: extra,
    }


def _assigning(spec: ModelSpec, sizes: Sizes, strategy: Strategy) -> int:
    """Return what widths of all messages take: rows on their way out, and their gradients home."""
    messages = 0
    for number in range(spec.layers):
        if layer_rows(spec, number).travels >= LEAST_WIDTH:  # narrower ones are sent whole
            messages += sizes.sent + returns_gradients(spec, number) * sizes.read
    steps = 4 if strategy.wire_bits < 2 else 2  # from the narrowest width to the widest
    return messages * (_MESSAGE_BYTES + _STEP_BYTES * steps)


def _rows_kept(sizes: Sizes, strategy: Strategy) -> int:
    """Return the most rows of others that stay until backward: of some stages, or all there are."""
    if not strategy.recompute:
        return sizes.read
    return min(sizes.read, strategy.kept_stages(sizes.stages) * sizes.largest_stage)


def _kept_by_ends(spec: ModelSpec, sizes: Sizes, strategy: Strategy, item: int) -> int:
    """Return bytes of rows that stay from epoch to epoch: of changes on both ends, of late rows on
    the receiving one, beside those that are on their way meanwhile.
    """
    if not strategy.keeps_rows or sizes.ranks == 1:
        return 0
    ends, total = sizes.read + sizes.sent, 0
    for number in range(1 if strategy.input_cache else 0, spec.layers):
        columns, ways = layer_rows(spec, number).travels, [sizes.read]
        if returns_gradients(spec, number):
            ways.append(sizes.sent)
        kept = 2 if strategy.kept_bits == 16 and columns >= LEAST_WIDTH else item
        for received in ways:
            total += kept * columns * (ends if strategy.changes else received)
            if strategy.staleness:
                total += round(ends * row_bytes_sent(columns, strategy))
    return total


def held_kinds(rows: int, halo: int, feature_bytes: float, edge_bytes: float) -> dict[str, int]:
    """Return what a rank holds before it trains, by kind: of its part, its share of a graph."""
    return {
        PROCESS: PROCESS_BYTES,
        GRAPH: round(edge_bytes + ROW_BYTES * rows + 8 * halo),
        FEATURES: round(feature_bytes),
    }


def _kinds_by_columns(
    spec: ModelSpec, sizes: Sizes, strategy: Strategy, item: int
) -> dict[str, int]:
    """Return the same where a rank has all edges, and all rows of some columns or heads.

    What an attention keeps for backward it keeps by heads, which is more where a rank has more than
    its share; sums keep nothing. While columns travel they are there as they leave, as they come,
    and as they are put together.
    """
    most, kept = (0, 0, 0), 0
    layers = [layer_rows(spec, number) for number in range(spec.layers)]
    in_hand = IN_HAND * max(layer.widest for layer in layers) * sizes.rows
    for number, layer in enumerate(layers):
        width = layer_widths(spec, number)
        units = width.heads if spec.card.attends else max(1, layer.travels)
        # What a rank works on: its share, or more where columns or heads are too few for all.
        turned = sizes.nodes * layer.travels * -(-units // sizes.ranks) // units
        kept += layer.kept * sizes.rows
        if spec.card.attends:
            kept += 2 * max(0, turned - layer.travels * sizes.rows)
        away = min(strategy.offload // item, max(0, kept - in_hand))
        most = max(most, (kept - away, layer.backward * sizes.rows, 3 * turned), key=sum)
    whole = replace(sizes, rows=sizes.nodes, edges=sizes.all_edges, read=0, stages=0)
    views = spec.layers if strategy.prune else 1  # each at most as large as the whole
    edges = (views + strategy.prune) * sizes.all_edges * _EDGE_BYTES
    return {
        KEPT: item * most[0],
        FETCHED: 0,
        GRADIENTS: item * most[1],
        TRAVELLING: item * most[2],
        BLOCKS: edges + views * _edge_bytes(spec, whole),
        OTHER: item * spec.cached_width * sizes.rows if strategy.input_cache else 0,
    }


def _travelling(layer: LayerRows, sizes: Sizes, refetches: bool, strategy: Strategy) -> int:
    """Return numbers of rows on their way, or just come: forward and backward are alike."""
    if sizes.stages <= 1:
        # Late rows are read while those that replace them are written, and others travel.
        late = max(sizes.read, sizes.sent) if strategy.staleness else 0
        rounds = strategy.assigns_widths or strategy.wire in range(UNCHANGED.bits)
        if rounds and not late:
            # Rows are rounded as they are picked, and messages are small.
            first = replace(strategy, wire=8) if strategy.assigns_widths else strategy
            messages = row_bytes_sent(layer.travels, first) / strategy.item_bytes
            ends, most = sizes.read + sizes.sent, max(sizes.read, sizes.sent)
            # Those kept in bfloat16 are made wide, beside what is made of them.
            wide = most if strategy.kept_bits == 16 and not refetches else 0
            return round(layer.travels * (most + wide) + ends * messages)
        return layer.travels * (sizes.read + sizes.sent + late)
    held = 6 if refetches and strategy.recompute else 3
    held += 2 * strategy.codes_rows  # messages, beside the rows they are written from and become
    return held * layer.travels * sizes.largest_stage


def _edge_bytes(spec: ModelSpec, sizes: Sizes) -> int:
    """Return bytes of blocks and their transposes; one rank's own block is the shard itself."""
    copies = 1 if sizes.stages == 0 else 2
    looped = sizes.edges + sizes.rows if spec.card.adds_loops else 0
    if looped:
        # The own block is there once more with its loops.
        looped //= 1 if sizes.stages == 0 else max(1, round(1 + sizes.read / max(1, sizes.rows)))
    remote = sizes.edges * sizes.read // max(1, sizes.read + sizes.rows)
    # The own block and its transpose, rows that stages' edges end at, and rows that they send.
    pointers = 2 * sizes.rows + sizes.read
    pointers += _compacted(remote, sizes) + _compacted(sizes.sent, sizes)
    by_number = spec.card.numbers_edges and (sizes.stages or spec.card.aggregation != "max")
    numbers = sizes.edges if by_number or spec.edge_width else 0
    return _EDGE_BYTES * (copies * sizes.edges + looped + numbers) + _POINTER_BYTES * pointers


def _compacted(ends: int, sizes: Sizes) -> int:
    """Return pointers of all stages whose edges, or rows sent, have so many ends: two for each row
    they touch, or one for every row where they touch most.
    """
    if not sizes.stages or not sizes.rows:
        return 0
    touched = sizes.rows * -math.expm1(-ends / sizes.stages / sizes.rows)
    return round(sizes.stages * (sizes.rows if 2 * touched > sizes.rows else 2 * touched))


def measure_sizes(shard: Shard, stages: list[int]) -> list[Sizes]:
    """Return this rank's sizes for each number of stages; every rank calls this together."""
    plan, world = shard.plan, shard.world
    held = [float(shard.num_owned), float(shard.csr.num_edges)]
    table = world.gather_numbers([*held, *(float(n) for n in plan.recv_counts)])
    rows_read = [[int(count) for count in row[2:]] for row in table]
    piece = smallest_piece([int(row[0]) for row in table])
    sizes = []
    for count in stages:
        groups = group_rounds(rows_read, min(count, world.size), piece)
        heights = [
            sum(_height(rows_read, share.round) / share.of for share in group) for group in groups
        ]
        sizes.append(
            Sizes(
                shard.num_owned,
                shard.csr.num_edges,
                plan.num_halo,
                sum(plan.send_counts),
                round(max(heights, default=0)),
                len(groups),
                world.size,
                shard.num_nodes,
                int(sum(row[1] for row in table)),
            )
        )
    return sizes


def _height(rows_read: list[list[int]], number: int) -> int:
    return max(rows_read[p][(p - number) % len(rows_read)] for p in range(len(rows_read)))
