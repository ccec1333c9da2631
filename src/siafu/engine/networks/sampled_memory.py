"""What training on minibatches and inference layer by layer take, and what a budget leaves them."""

import math

from siafu.config import RunConfig
from siafu.errors import BudgetError, ConfigError
from siafu.minibatch import Feed, Trial, largest_that_pays, vertex_bytes
from siafu.minibatch.feed import Left
from siafu.nn import ModelSpec, layer_widths
from siafu.ops import warm_up, warm_up_sampling
from siafu.options import read_bytes
from siafu.plan import layer_rows, memory_in_use
from siafu.shard import Shard

_DEFAULT_BUDGET = 10**9
"""Bytes of rows in flight where no budget is named."""
_STEPS_ON_DEVICE = 8
"""Drawn together where no rows are fetched: enough that launches and waits are few."""
_RUNTIME_BYTES = 60 * 10**6
"""What comes once training starts, whatever the graph: threads of backward, sockets' buffers, the
writer of Parquet."""
_BUILDING = 1.5
"""What two macrobatches take over their own size while one of them is put together."""
_EDGE_BYTES = 48
"""An edge of a minibatch: its source and its transpose, with what they are sorted by."""


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
        return budget - int(used) - _RUNTIME_BYTES

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
    if not feed.is_limited:
        return largest_that_pays(trial, _DEFAULT_BUDGET, num_steps)
    left, step = feed.left(), step_bytes(config, spec, trial)
    if not isinstance(size, int):
        size = largest_that_pays(trial, (left - step) / _BUILDING, num_steps)
    training = step + _BUILDING * trial.macrobatch_bytes(size)
    inferring = _largest_row(config, spec, feed) if config.inference == "full" else 0.0
    if max(training, inferring) > left:
        assert config.memory is not None
        raise _too_small(config, read_bytes(config.memory) - left, training, inferring)
    return size


def step_bytes(config: RunConfig, spec: ModelSpec | None, trial: Trial) -> float:
    """Return what training on one minibatch takes beside the macrobatches."""
    reached, edges = trial.reached, trial.edges
    numbers = trial.row_bytes * reached[-1] + _EDGE_BYTES * edges
    if spec is None:
        # A foreign layer makes a message of each edge, and keeps it.
        assert config.hidden is not None
        return numbers + 4.0 * 4 * config.hidden * (edges + reached[-1])
    kept = peak = 0.0
    for number in range(spec.layers):
        hop = min(spec.layers - 1 - number, len(reached) - 1)
        written, read = reached[hop], reached[min(hop + 1, len(reached) - 1)]
        layer, projected = layer_rows(spec, number), _projected_first(spec, number)
        inner = read if projected else written
        dropped = kept + layer_widths(spec, number).into * read
        kept += layer.entered * read + (layer.kept - layer.entered) * inner
        # The input of the first layer is given no gradient.
        peak = max(peak, dropped, kept + layer.backward * (inner if number == 0 else read))
    heads = 8 * spec.heads * edges if spec.card.attends else 0
    return numbers + 4 * peak + heads


def least_sampled_bytes(config: RunConfig, spec: ModelSpec, num_nodes: int) -> float:
    """Return what training on the smallest macrobatches takes at most, beside what a rank holds."""
    reached, edges = [min(config.batch_size, num_nodes)], 0.0
    for fanout in read_fanout(config.fanout, config.layers):
        drawn = reached[-1] * fanout if fanout > 0 else num_nodes
        edges += drawn
        reached.append(min(num_nodes, reached[-1] + drawn))
    row_bytes = 4 * spec.in_width + 32
    trial = Trial(
        curve=[float(reached[-1])],
        graph_bytes=16.0 * edges,
        row_bytes=row_bytes,
        reached=tuple(reached),
        edges=int(edges),
    )
    step = step_bytes(config, spec, trial)
    return _RUNTIME_BYTES + step + _BUILDING * trial.macrobatch_bytes(1)


def _projected_first(spec: ModelSpec, number: int) -> bool:
    """Whether a layer maps the rows it reads before it gathers them, not the ones it writes."""
    width, when = layer_widths(spec, number), spec.card.maps_first
    return when == "always" or (when == "narrower" and width.out < width.into)


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
