"""What training on minibatches and inference layer by layer take, and what a budget leaves them."""

import math
import os
from collections.abc import Callable
from functools import partial

from siafu.config import RunConfig
from siafu.engine.networks.pieces import Pieces
from siafu.errors import BudgetError
from siafu.memory import available_bytes
from siafu.minibatch import (
    Feed,
    Flow,
    Macrobatch,
    Room,
    Trial,
    WideRows,
    choose_macrobatch,
    measure_costs,
    node_bytes,
)
from siafu.minibatch.placement import free_bytes
from siafu.minibatch.relays import Left
from siafu.nn import ModelSpec, layer_widths
from siafu.ops import warm_up, warm_up_sampling
from siafu.options import read_bytes
from siafu.plan import layer_rows, memory_in_use, read_fanout, step_bytes
from siafu.plan.sampled import BUILDING, FREE_SHARE, RUNTIME_BYTES, piece_bytes
from siafu.record import counted
from siafu.shard import Shard

__all__ = [
    "check_inference",
    "layer_room",
    "memory_left",
    "read_fanout",
    "settle_macrobatch",
    "wide_rows",
]

_STEPS_ON_DEVICE = 16
"""Drawn together on a device at most: enough that launches and waits are few."""
_LEAST_ON_DEVICE, _DEVICE_SHARE = 10**9, 0.1
"""Bytes, and the share of a device's free memory, for rows in flight where no budget is named."""


def memory_left(config: RunConfig, shard: Shard) -> Left | None:
    """Return what tells how much every rank may still take; None where memory is not limited."""
    if config.memory is None:
        return None
    budget, world = read_bytes(config.memory), shard.world
    # Kernels are loaded now, so that they count as used.
    warm_up()
    warm_up_sampling()

    def left() -> int:
        used = max(row[0] for row in world.gather_numbers([float(memory_in_use(world))]))
        return budget - int(used) - RUNTIME_BYTES

    return left


def settle_macrobatch(
    config: RunConfig,
    spec: ModelSpec | None,
    feed: Feed,
    size: int | str,
    train: Callable[[Macrobatch], object],
    say: Callable[[str], None],
    pieces: Pieces | None = None,
) -> int:
    """Return how many steps are fetched at once; raise where the budget is too small for one.

    `train` tries the model on a macrobatch of one step; `pieces` are what a model infers by that is
    not taken apart. Every rank calls this together.
    """
    if not feed.is_limited and isinstance(size, int):
        return size
    num_steps = feed.sampler.schedule.num_steps
    if not feed.is_limited and (feed.relay.holds_rows or num_steps == 1):
        return min(_STEPS_ON_DEVICE, num_steps)
    trial = feed.trial()
    if not feed.is_limited:
        return _chosen(feed, trial, _free_bytes(feed), train, say)
    left, step = feed.left(), step_bytes(config, spec, trial)
    least = step + BUILDING * trial.macrobatch_bytes(1 if isinstance(size, str) else size)
    inferring = _inferring(config, spec, feed, pieces, left) if config.is_scored else 0.0
    if max(least, inferring) > left:
        assert config.memory is not None
        raise _too_small(config, read_bytes(config.memory) - left, least, inferring)
    if isinstance(size, int):
        return size
    return _chosen(feed, trial, (left - step) / BUILDING, train, say)


def check_inference(
    config: RunConfig, spec: ModelSpec | None, feed: Feed, pieces: Pieces | None
) -> None:
    """Raise where the budget has no room for inference alone; every rank calls this together."""
    if not feed.is_limited:
        return
    left, need = feed.left(), 0.0
    if spec is None:  # whose pieces are as large as minibatches
        trial = feed.trial()
        need = piece_bytes(config, trial.row_bytes, trial.reached[-1], trial.edges)
    need = max(need, _inferring(config, spec, feed, pieces, left))
    if need > left:
        assert config.memory is not None
        held = read_bytes(config.memory) - left
        raise BudgetError(
            "The memory budget is too small to infer in.",
            seen=f"--memory {config.memory}; a rank needs {(held + need) / 1e9:.2f} GB: "
            f"{held / 1e9:.2f} GB before it starts, {need / 1e9:.2f} GB for the node of most edges"
            + (" or a piece as large as a minibatch" if spec is None else ""),
            fix=f"give --memory {math.ceil((held + need) / 1e7) / 100:.2f}GB or more",
        )


def _inferring(
    config: RunConfig, spec: ModelSpec | None, feed: Feed, pieces: Pieces | None, left: float
) -> float:
    """Return what inference takes at its largest node."""
    return _largest_row(spec, feed) if spec else _largest_piece(config, feed, pieces, left)


def _chosen(
    feed: Feed,
    trial: Trial,
    budget_bytes: float,
    train: Callable[[Macrobatch], object],
    say: Callable[[str], None],
) -> int:
    """Return the size of macrobatches by what steps take here, and tell why."""
    num_steps = feed.sampler.schedule.num_steps
    if num_steps == 1:
        return 1
    costs = measure_costs(feed.sampler, train)
    on_device = {} if feed.place.rows == "host" else {"most": _STEPS_ON_DEVICE}
    size = choose_macrobatch(trial, costs, budget_bytes, num_steps, **on_device)
    alone, together = (1000 * costs.fetch(trial, k) / k for k in (1, size))
    why = f"a step trains in {1000 * costs.trained:.0f} ms and takes {alone:.0f} ms to fetch"
    if size > 1:
        why += f", {together:.0f} ms beside {size - 1} more"
    say(f"Macrobatches of {counted(size, 'step')}: {why}.")
    return size


def _free_bytes(feed: Feed) -> float:
    """Return what rows in flight may take of the memory that is free, alike on all ranks."""
    if feed.place.rows != "host":
        return max(_LEAST_ON_DEVICE, _DEVICE_SHARE * free_bytes(feed.place.device))
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", feed.channel.size))
    mine = FREE_SHARE * available_bytes() / ranks_here
    return min(row[0] for row in feed.shard.world.gather_numbers([mine]))


def layer_room(
    feed: Feed, spec: ModelSpec, layers: int, count: int, flow: Flow | None, *, ahead: bool = False
) -> Room:
    """Return the room for `count` times the rows that layers make of all nodes, or of a flow's.

    `ahead`: those before the last layer are what its two maps made of them. Every rank calls this
    together.
    """
    widths = [layer_widths(spec, number) for number in range(layers)]
    read, made = [at.into for at in widths], [at.out for at in widths]
    if ahead:
        read[-1], made[-2] = spec.out_width, 2 * spec.out_width
    far = (feed.whole.served.far_R,) * layers if flow is None else flow.far
    far_bytes = max(feed.far_bytes(at, of) for at, of in zip(read, far, strict=True))
    most = None if flow is None else max(map(len, flow.rows))
    return feed.room(max(made), count, most, far_bytes=far_bytes)


def wide_rows(feed: Feed, spec: ModelSpec, number: int) -> WideRows:
    """Return the widest rows that a layer makes on a piece.

    Sums map rows first only where these come to no more than those that are written do
    (`LocalNeighbours.maps_first`), but for features that are not held as they are read.
    """
    is_dense = number > 0 or feed.rows_name == "x"
    of_read = spec.card.input_aggregation is None or not is_dense
    return WideRows(layer_rows(spec, number).widest, of_read)


def _largest_row(spec: ModelSpec, feed: Feed) -> float:
    """Return what inference takes for the row of most in-edges, which is never cut."""
    degree = feed.shard.csr.degree()
    most = float(degree.max()) if len(degree) else 0.0
    wide = [wide_rows(feed, spec, number) for number in range(spec.layers)]
    # A rank of few rows has one thread, and nothing is made ready beside others.
    mine = most * max(node_bytes(4 * one.width + 32, one, feed.is_ahead) for one in wide)
    return max(row[0] for row in feed.shard.world.gather_numbers([mine]))


def _largest_piece(config: RunConfig, feed: Feed, pieces: Pieces | None, left: float) -> float:
    """Return what a model that is not taken apart takes for the node that reads most by itself."""
    assert pieces is not None, "it infers by them"
    row_bytes = feed.trial().row_bytes
    return pieces.bytes_alone(partial(piece_bytes, config, row_bytes), left)


def _too_small(config: RunConfig, held: int, training: float, inferring: float) -> BudgetError:
    need = held + max(training, inferring)
    what = (
        f"{training / 1e9:.2f} GB for a minibatch" + (", inference no more" if inferring else "")
        if training >= inferring
        else f"{inferring / 1e9:.2f} GB for the node of most edges at inference"
    )
    smaller = "a smaller --batch-size or --fanout" if training >= inferring else "--inference none"
    return BudgetError(
        "The memory budget is too small to train in.",
        seen=f"--memory {config.memory}; a rank needs {need / 1e9:.2f} GB: {held / 1e9:.2f} GB "
        f"before it starts, {what}",
        fix=f"give --memory {math.ceil(need / 1e7) / 100:.2f}GB or more, or {smaller}",
    )
