"""How much memory a rank needs while it trains, told before it starts.

The figures are of what is alive at the peak: rows that autograd keeps, the gradients of the layer
that backward is in, rows that travel, and edges cut into blocks. They hold for the built-in models;
docs/strategies.md writes the formula out, and benchmarks/memory_scaling.py compares it.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import partial

from siafu.comm import ROWS_AT_ONCE, UNCHANGED
from siafu.nn import ModelSpec, layer_widths
from siafu.plan.bytes import returns_gradients, row_bytes_sent
from siafu.plan.layer_rows import LayerRows, layer_rows
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
_NODE_BYTES = 32
"""Of the whole graph, which each rank holds by columns: a node's id, place, degree and loops."""
_CAST = 2 << 16
"""Two copies of the numbers that are cast to FP8 at once on their way (`ops/wire/floats.py`)."""
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
    rounded = strategy.codes_rows and sizes.ranks > 1
    layers = [layer_rows(spec, number, rounded=rounded) for number in range(spec.layers)]
    refetches = spec.card.refetches
    in_hand = IN_HAND * max(layer.widest for layer in layers) * sizes.rows
    most, rows_kept, fetched = (0, 0, 0, 0), 0, 0
    for number, layer in enumerate(layers):
        is_cached = number == 0 and strategy.input_cache
        # Rows that both ends keep are there anyway, unless it is in bfloat16.
        is_there = strategy.keeps_rows and strategy.kept_bits > 16
        stays = 0
        if refetches and not is_there and not is_cached:
            stays = layer.travels * _rows_kept(sizes, strategy)
        held = rows_kept + (layer.kept - layer.lets_go) * sizes.rows
        # Gradients of the own rows come while others travel, or once rows kept for it are gone.
        own = max(0, layer.travels * sizes.rows - stays)
        out, home = _travelling(layer, sizes, refetches, strategy)
        cast = _CAST if strategy.wire == "fp8" else 0
        moments = (
            (held, fetched, layer.stands * sizes.rows, out + cast),
            (held, fetched + stays, layer.returns * sizes.rows + own, home + cast),
            (rows_kept + layer.kept * sizes.rows, fetched + stays, layer.ends * sizes.rows, 0),
        )
        rows_kept += layer.kept * sizes.rows
        fetched += stays
        for kept, *more in moments:
            away = max(0, min(strategy.offload // item, kept) - in_hand)
            most = max(most, (kept - away, more[0], more[1], more[2]), key=sum)
    extra = 0
    if strategy.input_cache:
        extra += item * spec.cached_width * sizes.rows  # what is aggregated once
    if strategy.prune:
        extra += spec.layers * sizes.edges * (2 * _EDGE_BYTES + _POINTER_BYTES)  # at most
    if rounded:
        extra += _POINTER_BYTES * (sizes.rows + sizes.read)  # ids of all columns, for draws
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
    most, below, card = (0, 0, 0), 0, spec.card
    layers = [layer_rows(spec, number) for number in range(spec.layers)]
    in_hand = IN_HAND * max(layer.widest for layer in layers) * sizes.rows
    for number, layer in enumerate(layers):
        width = layer_widths(spec, number)
        turned = partial(_turned, sizes, width.heads if card.attends else max(1, layer.travels))
        kept = layer.kept * sizes.rows
        if card.attends:
            operands = card.keeps(width) - width.out - width.heads
            kept += turned(card.keeps(width)) - card.keeps(width) * sizes.rows
            held = layer.entered * sizes.rows + turned(card.keeps(width))
            # The own rows of operands stay with the layer until it has its result.
            there = (operands + width.out) * sizes.rows, _coming(sizes, turned(width.out))
            back = width.out * sizes.rows, turned(width.out + operands)
            # Then gradients of all operands go back to their rows together.
            moves = 2 * turned(operands) + _coming(sizes, turned(operands))
            last = layer.entered * sizes.rows, width.out * sizes.rows, moves
        else:
            held = (layer.kept - layer.lets_go) * sizes.rows
            # Beside what is put together: what leaves, and what comes.
            moves = turned(layer.travels) + _coming(sizes, turned(layer.travels))
            there = layer.stands * sizes.rows, moves
            # Before that a sum has what it adds up and what it makes; GCN's adds its own term.
            sums = (3 if card.aggregation == "normalised_sum" else 2) * turned(layer.travels)
            summing = (layer.stands - layer.travels) * sizes.rows, sums
            there = max(there, summing, key=sum)
            columns = width.out + card.lets_go(width) + layer.travels
            back = columns * sizes.rows, moves
            last = held, *back
        moments = (
            (below + held, *there),
            (below + held, *back),
            (below + last[0], *last[1:]),
            (below + kept, layer.ends * sizes.rows, 0),
        )
        below += kept
        for rows_kept, *more in moments:
            away = max(0, min(strategy.offload // item, rows_kept) - in_hand)
            most = max(most, (rows_kept - away, more[0], more[1]), key=sum)
    whole = replace(sizes, rows=sizes.nodes, edges=sizes.all_edges, read=0, stages=0)
    views = spec.layers if strategy.prune else 1  # each at most as large as the whole
    edges = (views + strategy.prune) * sizes.all_edges * _EDGE_BYTES
    return {
        KEPT: item * most[0],
        FETCHED: 0,
        GRADIENTS: item * most[1],
        TRAVELLING: item * most[2],
        BLOCKS: edges + views * _edge_bytes(spec, whole),
        OTHER: _NODE_BYTES * sizes.nodes
        + (item * spec.cached_width * sizes.rows if strategy.input_cache else 0),
    }


def _turned(sizes: Sizes, units: int, columns: int) -> int:
    """Return numbers of all rows that a rank works on of so many columns: its share, or more where
    columns or heads, the units, are too few for all.
    """
    return sizes.nodes * columns * -(-units // sizes.ranks) // units


def _coming(sizes: Sizes, turned: int) -> int:
    """Return numbers that come from others, of those that are put together."""
    return turned * (sizes.ranks - 1) // sizes.ranks


def _travelling(
    layer: LayerRows, sizes: Sizes, refetches: bool, strategy: Strategy
) -> tuple[int, int]:
    """Return numbers of rows on their way, or just come: in forward, and home in backward."""
    width, read, sent = layer.travels, sizes.read, sizes.sent
    if sizes.stages > 1:
        # In use, on their way, being sent; where rows come again, they and their gradients.
        coded = 2 * strategy.codes_rows  # messages, beside rows they are written from and become
        home = 6 if refetches and strategy.recompute else 3
        stage = width * sizes.largest_stage
        return (3 + coded) * stage, (home + coded) * stage
    # Late rows are read while those that replace them are written, and others travel.
    late = max(read, sent) if strategy.staleness else 0
    if late or not (strategy.assigns_widths or strategy.wire != UNCHANGED.bits):
        both = width * (read + sent + late)
        return both, both
    # Rows are rounded as they are picked, and messages are small.
    renewed = strategy.assigns_widths or strategy.wire == 0
    each = row_bytes_sent(width, replace(strategy, wire=8) if renewed else strategy)
    messages = round((read + sent) * each / strategy.item_bytes)
    most = max(read, sent)
    # Those kept in bfloat16 are made wide, beside what is made of them: where rows stay for
    # backward those are it, and two pieces are wide while changes are taken up.
    wide = min(most, 2 * ROWS_AT_ONCE) if refetches else most
    wide = wide if strategy.kept_bits == 16 else 0
    return width * (read + wide) + messages, width * (most + wide) + messages


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
    if sizes.stages:  # which columns a stage has, which rows it sends, and where these return to
        pointers += sizes.read + sizes.sent + sizes.sent // 2
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
