"""What each way to exchange along time costs: what is sent, messages, and ranks that wait.

Shapes: T snapshots, N nodes, D input width, O output width, P ranks.
"""

import itertools
from dataclasses import dataclass

import torch

from siafu.comm import FORMATS, UNCHANGED, Format, Redistribution, even_counts
from siafu.nn import BandedMean, TemporalLayer
from siafu.partitioning import TimePlan
from siafu.strategy.rounding import LEAST_WIDTH
from siafu.strategy.time.banded import halo_steps, pieces_of
from siafu.strategy.time.strategy import TimeExchange

ITEM_BYTES = 4


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of what an exchange takes, the same on all ranks; a run has those of its machine."""

    byte: float = 1e-9
    """A gigabyte per second between two ranks: 10 Gbit Ethernet."""
    message: float = 5e-5
    product: float = 4e-11
    """Of a multiplication and its sum in a recurrence: 50 Gflop/s, one core, or a small share of a
    GPU."""


TYPICAL = Costs()


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a training step sends for one temporal layer, over all ranks."""

    elements: int
    messages: int
    size: float
    """Bytes: less than those of the elements where rows are rounded."""


def row_size(width: int, bits: float = UNCHANGED.bits, item_bytes: int = ITEM_BYTES) -> float:
    """Return the bytes of a row on its way, at `bits` an entry, on average where they differ."""
    if bits == UNCHANGED.bits or width < LEAST_WIDTH:
        return width * item_bytes
    if bits in {each.bits for each in FORMATS}:
        return Format.of_bits(int(bits)).row_bytes(width)
    return 8 + width * bits / 8


def all_to_all_traffic(
    plan: TimePlan,
    nodes: int,
    in_width: int,
    out_width: int,
    *,
    is_last: bool = False,
    bits: float = UNCHANGED.bits,
    item_bytes: int = ITEM_BYTES,
) -> Traffic:
    """Return the traffic of redistributing by node and back: forward, again, and backward.

    The last training block is run once, the others twice; the first time the rows of the model's
    last temporal layer do not return.
    """
    blocks = plan.blocks[: plan.num_train]
    counts = even_counts(nodes, plan.num_ranks)
    rows_in = rows_out = messages = 0
    for block in blocks:
        rows = Redistribution(block.steps, counts).rows_sent()
        pairs = len(block.busy_ranks()) * (plan.num_ranks - 1)
        again = block is not blocks[-1]
        returns = again and not is_last
        rows_in, rows_out = rows_in + (2 + again) * rows, rows_out + (2 + returns) * rows
        messages += (4 + again + returns) * pairs
    sizes = row_size(in_width, bits, item_bytes), row_size(out_width, bits, item_bytes)
    elements = rows_in * in_width + rows_out * out_width
    return Traffic(elements, messages, rows_in * sizes[0] + rows_out * sizes[1])


def banded_traffic(
    plan: TimePlan,
    nodes: int,
    width: int,
    band: int,
    *,
    bits: float = UNCHANGED.bits,
    item_bytes: int = ITEM_BYTES,
) -> Traffic:
    """Return the traffic of fetching what a band reaches back to, and of returning gradients.

    Of each other rank with snapshots in reach they are those snapshots, or the sums of them that
    the span's windows have, whichever are fewer.
    """
    slices = messages = 0
    for block in plan.blocks[: plan.num_train]:
        for rank in block.busy_ranks():
            by_owner: dict[int, list[int]] = {}
            for step in halo_steps(block, rank, band):
                by_owner.setdefault(plan.owner(step), []).append(step)
            by_owner.pop(rank, None)
            messages += len(by_owner)
            for steps in by_owner.values():
                slices += len(pieces_of(steps, block.owned(rank), band))
    rows = 2 * slices * nodes
    return Traffic(rows * width, 2 * messages, rows * row_size(width, bits, item_bytes))


def wavefront_traffic(plan: TimePlan, nodes: int, state_width: int, chunks: int) -> Traffic:
    """Return the traffic of handing the state on, and its gradient back."""
    chain = [rank for b in plan.blocks[: plan.num_train] for rank in b.busy_ranks()]
    hops = sum(a != b for a, b in itertools.pairwise(chain))
    elements = 2 * hops * nodes * state_width
    return Traffic(elements, 2 * hops * chunks, elements * ITEM_BYTES)


def choose_exchange(
    part: TemporalLayer,
    plan: TimePlan,
    nodes: int,
    chunks: int,
    bits: float = UNCHANGED.bits,
    costs: Costs = TYPICAL,
) -> TimeExchange:
    """Return the exchange with the fewest predicted seconds a training step.

    Rows travel at `bits` an entry, states whole.
    """
    ranks, width = plan.num_ranks, state_width(part)
    if ranks == 1:
        return "all-to-all"  # of one rank with itself: nothing moves
    if isinstance(part, BandedMean):
        banded = banded_traffic(plan, nodes, part.out_width, part.band, bits=bits)
        spread = all_to_all_traffic(plan, nodes, part.out_width, part.out_width, bits=bits)
        cheaper = _seconds(banded, ranks, costs) <= _seconds(spread, ranks, costs)
        return "banded" if cheaper else "all-to-all"
    if width is None:
        return "all-to-all"
    in_width = part.in_width
    spread = all_to_all_traffic(plan, nodes, in_width, part.out_width, bits=bits)
    handed = wavefront_traffic(plan, nodes, width, chunks)
    # While the first group of nodes has not come round, ranks further on wait.
    steps = sum(sum(block.steps) for block in plan.blocks[: plan.num_train])
    products = 12 * steps * nodes * part.out_width * (in_width + part.out_width) / ranks
    idle = products * costs.product * (ranks - 1) / chunks
    waits = handed.messages / chunks * costs.message
    cheaper = _seconds(handed, ranks, costs) + idle + waits <= _seconds(spread, ranks, costs)
    return "wavefront" if cheaper else "all-to-all"


def state_width(part: TemporalLayer) -> int | None:
    """Return the numbers a node's state has; None where the state has no row per node."""
    like = next(part.parameters(), torch.empty(0))
    state = part.begin(like.new_zeros(2, part.in_width))
    if any(tensor.dim() != 2 or len(tensor) != 2 for tensor in state):
        return None
    return sum(tensor.size(1) for tensor in state)


def _seconds(traffic: Traffic, ranks: int, costs: Costs) -> float:
    return (traffic.size * costs.byte + traffic.messages * costs.message) / ranks
