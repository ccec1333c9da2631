"""From the settings of a run to a strategy with every choice made."""

import math
from bisect import bisect_right
from collections.abc import Callable

import psutil
import torch

from siafu.comm import World, sharers
from siafu.config import RunConfig
from siafu.errors import BudgetError, ConfigError
from siafu.memory import free_bytes
from siafu.minibatch.placement import free_bytes as device_bytes
from siafu.nn import ModelSpec
from siafu.options import read_bytes
from siafu.plan.bytes import weight_bytes
from siafu.plan.memory import Sizes, least_offload, measure_sizes, predict_bytes
from siafu.record import counted
from siafu.shard import Shard
from siafu.strategy import Strategy

RUNTIME_BYTES = 120 * 10**6
"""What a process takes beyond tensors once it trains, evaluates and writes: compiled kernels, the
sockets' buffers, the writer of Parquet. 80 to 110 MB were seen."""
_PRODUCTS_BYTES = 2 * 32 * 2**20
"""What cuBLAS has of a GPU's memory, once for the thread of forward and once for that of backward:
an H200 took 563 MiB where 515 were predicted without it."""
OF_HOST = 0.5
"""Of the host's free memory that rows of its GPUs may take."""
SURE = 0.9
"""Of a GPU's free memory, what is planned with where it is short: predictions are not exact."""
Say = Callable[[str], None]


def choose_strategy(
    config: RunConfig,
    spec: ModelSpec | None,
    shard: Shard,
    *,
    training: bool = True,
    say: Say = lambda line: None,
    remedy: Callable[[], str] = lambda: "",
) -> Strategy:
    """Return the strategy of a run with every choice made; all ranks choose alike.

    `spec` is None for a model of the user's own, whose memory can't be told beforehand. Inference
    keeps no rows for backward, so it takes one peer at a time and asks for no budget. What a rank
    is predicted to need is said where there is a budget to compare it with; where none fits,
    `remedy` tells what would.
    """
    strategy = config.chosen
    if not training:
        stages = shard.world.size if strategy.stages == "auto" else None
        return strategy.with_choices(stages=stages, prune=False, input_cache=False)
    if spec is None and strategy.stages == "auto":
        check_budget(
            config, strategy
        )  # else a resumed run has chosen, by an earlier version's rules
    check_offload(strategy, shard.world)
    if strategy.unit == "macrobatch" or spec is None:
        return strategy
    if config.memory is None:
        return _within_device(spec, shard, strategy, say)
    try:
        return _within_budget(config, spec, shard, strategy, say)
    except BudgetError as error:
        raise BudgetError(error.problem, seen=error.seen, fix=remedy() + error.fix) from None


def check_offload(strategy: Strategy, world: World) -> None:
    """Raise where rows are asked to leave a device that has none but the host's memory."""
    if strategy.offload and world.device.type == "cpu":
        raise ConfigError(
            "Rows are in the host's memory already.",
            seen=f"--offload {strategy.offload / 1e9:g}GB on a CPU",
            fix="leave --offload out, or use a GPU; for less memory use --memory",
        )


def check_budget(config: RunConfig, strategy: Strategy) -> None:
    """Raise where memory is limited, but can't be told beforehand."""
    if config.memory is None:
        return
    if strategy.unit == "interval":
        raise ConfigError(
            "The memory of a pipeline can't be told beforehand.",
            seen=f"--memory {config.memory} with --strategy {config.strategy}",
            fix="leave --memory out, or use --strategy sar",
        )
    if ":" in config.model and strategy.unit == "graph":
        raise ConfigError(
            "The memory of a model of your own can't be told beforehand.",
            seen=f"--memory {config.memory} with --model {config.model}",
            fix="leave --memory out; --strategy sar, or --stages up to the ranks, needs less",
        )


def candidates(named: Strategy, config: RunConfig, ranks: int) -> list[Strategy]:
    """Return what may be chosen, the fastest first."""
    if named.prune:
        # Its own edges for every layer may take more than the rows that it leaves out.
        whole = candidates(named.with_choices(prune=False), config, ranks)
        return [choice.with_choices(prune=True) for choice in whole] + whole
    counts = range(1, ranks + 1) if named.stages == "auto" else [named.stages]
    if config.recompute is not None or named.by_columns or named.unit != "graph":
        return [named.with_choices(stages=count) for count in counts]
    lean = [named.with_choices(stages=count, recompute=True) for count in counts]
    # What is kept needs no second fetch, if there is room for it.
    return [named.with_choices(stages=counts[0], recompute=False), *lean]


def _within_budget(
    config: RunConfig, spec: ModelSpec, shard: Shard, named: Strategy, say: Say
) -> Strategy:
    """Return the strategy with the fewest stages that the budget allows."""
    assert config.memory is not None
    possible = candidates(named, config, shard.world.size)
    counts = [candidate.stages_of(shard.world.size) for candidate in possible]
    sizes = measure_sizes(shard, counts)
    budget, base = read_bytes(config.memory), memory_in_use(shard.world) + RUNTIME_BYTES
    base += _PRODUCTS_BYTES if shard.world.device.type == "cuda" else 0
    base += weight_bytes(spec)
    needs = [
        float(base + predict_bytes(spec, size, candidate))
        for size, candidate in zip(sizes, possible, strict=True)
    ]
    worst = [max(column) for column in zip(*shard.world.gather_numbers(needs), strict=True)]
    for candidate, size, need in zip(possible, sizes, worst, strict=True):
        if need <= budget:
            chosen = candidate
            if config.recompute is None:
                chosen = _keeping_most(spec, size, candidate, budget - base, shard.world)
                found = shard.world.gather_numbers([base + predict_bytes(spec, size, chosen)])
                need = max(row[0] for row in found)
            without_prune = named.prune and not chosen.prune
            say(
                f"Planned {_told(chosen, size)}: a rank is predicted to need "
                f"{need / 1e9:.2f} GB at its peak, of --memory {config.memory}."
                + (" --prune is left out: it would take more." if without_prune else "")
            )
            return chosen
    for candidate, size in zip(possible, sizes, strict=True):
        # Kernels' own room and what lies between tensors are on top of what is counted.
        away = _offloaded(spec, size, candidate, SURE * (budget - base), shard.world)
        if away is not None:
            say(
                f"Planned {_told(away, size)}, {_told_away(away)}, to stay within --memory "
                f"{config.memory}."
            )
            return away
    raise BudgetError(
        "The memory budget is too small for this model on so many ranks.",
        seen=f"--memory {config.memory}; a rank needs {min(worst) / 1e9:.2f} GB at least, "
        f"{base / 1e9:.2f} GB of it before training starts",
        fix=f"give --memory {math.ceil(1.05 * min(worst) / 1e7) / 100:.2f}GB, use more ranks, "
        "or a narrower model",
    )


def _within_device(spec: ModelSpec, shard: Shard, named: Strategy, say: Say) -> Strategy:
    """Return the strategy with rows in the host's memory where a GPU has no room for all of them.

    Where that would not be enough, it is left as it is: what there is no room for is told before.
    """
    world = shard.world
    if not _may_offload(named, world) or named.offload:
        return named
    size = measure_sizes(shard, [named.stages_of(world.size)])[0]
    on_gpu, _ = sharers(world)
    room = device_bytes(world.device) / on_gpu
    needs = world.gather_numbers([predict_bytes(spec, size, named) / max(1.0, room)])
    if max(row[0] for row in needs) <= 1:
        return named
    away = _offloaded(spec, size, named, SURE * room, world)
    if away is not None:
        say(f"{_told_away(away).capitalize()}: the GPU has no room for all that is kept.")
    return away or named


def _offloaded(
    spec: ModelSpec, sizes: Sizes, strategy: Strategy, room: float, world: World
) -> Strategy | None:
    """Return the strategy with rows in the host's memory, so many that all ranks have room.

    None where there is no GPU, or no number of rows is enough, or the host has no room for them.
    """
    if not _may_offload(strategy, world):
        return None
    found = least_offload(spec, sizes, strategy, room)
    host = OF_HOST * free_bytes() / sharers(world)[1]
    needed = math.inf if found is None or found.offload > host else float(found.offload)
    most = max(row[0] for row in world.gather_numbers([needed]))
    return None if math.isinf(most) else strategy.with_choices(offload=int(most))


def _may_offload(strategy: Strategy, world: World) -> bool:
    return strategy.unit == "graph" and world.device.type == "cuda"


def _told_away(strategy: Strategy) -> str:
    return f"{strategy.offload / 1e9:.2f} GB of rows in the host's memory until backward"


def _keeping_most(
    spec: ModelSpec, sizes: Sizes, lean: Strategy, room: int, world: World
) -> Strategy:
    """Return the strategy with rows of as many stages kept for backward as all ranks have room for.

    What one rank fetches again another sends again, so ranks agree on a number.
    """
    if not lean.recompute or not spec.card.refetches or lean.keeps_rows:
        return lean

    def keeping(kept: int) -> Strategy:
        return lean.with_choices(recompute=1 - kept / sizes.stages if kept else True)

    def fits(kept: int) -> bool:
        return predict_bytes(spec, sizes, keeping(kept)) <= room

    # Not all of them: that was tried before.
    most = bisect_right(range(1, sizes.stages), False, key=lambda kept: not fits(kept))
    return keeping(int(min(row[0] for row in world.gather_numbers([float(most)]))))


def _told(strategy: Strategy, sizes: Sizes) -> str:
    """Return the stages, and how many of them are not fetched again."""
    stages = counted(strategy.stages_of(sizes.ranks), "stage")
    kept = strategy.kept_stages(sizes.stages)
    if not strategy.recompute or not kept:
        return stages
    return f"{stages}, rows of {kept} in {sizes.stages} fetches kept for backward"


def predict_training_bytes(config: RunConfig, spec: ModelSpec, shard: Shard) -> int:
    """Return what training is predicted to take on this rank; every rank calls this together."""
    strategy = choose_strategy(config, spec, shard)
    assert strategy.stages != "auto", "choices are made"
    return predict_bytes(spec, measure_sizes(shard, [strategy.stages])[0], strategy)


def memory_in_use(world: World) -> int:
    """Return what this rank holds now: on its device, or resident.

    Not what torch keeps for later there: training is given that, and all of it together is held to
    the budget (`launch/device_room.py`).
    """
    if world.device.type == "cuda":
        return torch.cuda.memory_allocated(world.device)
    return int(psutil.Process().memory_info().rss)
