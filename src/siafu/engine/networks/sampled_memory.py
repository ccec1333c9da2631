"""What training on minibatches and inference layer by layer take, and what a budget leaves them."""

import math

from siafu.config import RunConfig
from siafu.errors import BudgetError
from siafu.minibatch import Feed, largest_that_pays, vertex_bytes
from siafu.minibatch.feed import Left
from siafu.minibatch.placement import free_bytes
from siafu.nn import ModelSpec
from siafu.ops import warm_up, warm_up_sampling
from siafu.options import read_bytes
from siafu.plan import layer_rows, memory_in_use, read_fanout, step_bytes
from siafu.plan.sampled import BUILDING, RUNTIME_BYTES
from siafu.shard import Shard

__all__ = ["memory_left", "read_fanout", "settle_macrobatch"]

_DEFAULT_BUDGET = 10**9
"""Bytes of rows in flight where no budget is named."""
_STEPS_ON_DEVICE = 16
"""Drawn together on a device at most: enough that launches and waits are few."""
_DEVICE_SHARE = 0.1
"""Of a device's free memory for rows in flight where no budget is named."""


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
    config: RunConfig, spec: ModelSpec | None, feed: Feed, size: int | str
) -> int:
    """Return how many steps are fetched at once; raise where the budget is too small for one.

    Every rank calls this together.
    """
    if not feed.is_limited and isinstance(size, int):
        return size
    num_steps = feed.sampler.schedule.num_steps
    if not feed.is_limited and feed.relay.holds_rows:
        return min(_STEPS_ON_DEVICE, num_steps)
    trial = feed.trial()
    if not feed.is_limited and feed.place.rows == "pinned":
        budget = max(_DEFAULT_BUDGET, _DEVICE_SHARE * free_bytes(feed.place.device))
        return min(_STEPS_ON_DEVICE, largest_that_pays(trial, budget, num_steps))
    if not feed.is_limited:
        return largest_that_pays(trial, _DEFAULT_BUDGET, num_steps)
    left, step = feed.left(), step_bytes(config, spec, trial)
    if not isinstance(size, int):
        size = largest_that_pays(trial, (left - step) / BUILDING, num_steps)
    training = step + BUILDING * trial.macrobatch_bytes(size)
    inferring = _largest_row(config, spec, feed) if config.is_scored else 0.0
    if max(training, inferring) > left:
        assert config.memory is not None
        raise _too_small(config, read_bytes(config.memory) - left, training, inferring)
    return size


def _largest_row(config: RunConfig, spec: ModelSpec | None, feed: Feed) -> float:
    """Return what inference takes for the row of most in-edges, which is never cut."""
    if spec is None:
        return 0.0
    degree = feed.shard.csr.degree()
    most = float(degree.max()) if len(degree) else 0.0
    most = max(row[0] for row in feed.shard.world.gather_numbers([most]))
    width = max(layer_rows(spec, number).widest for number in range(spec.layers))
    return most * vertex_bytes(4 * width + 32, width)


def _too_small(config: RunConfig, held: int, training: float, inferring: float) -> BudgetError:
    need = held + max(training, inferring)
    what = (
        f"{training / 1e9:.2f} GB for a minibatch"
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
