"""From the settings of a run to a strategy with every choice made."""

import math
import re
from collections.abc import Callable

import psutil
import torch

from siafu.comm import World
from siafu.config import RunConfig
from siafu.errors import BudgetError, ConfigError
from siafu.nn import ModelSpec
from siafu.plan.memory import measure_sizes, predict_bytes
from siafu.record import counted
from siafu.shard import Shard
from siafu.strategy import Strategy, find_strategy

RUNTIME_BYTES = 120 * 10**6
"""What a process takes beyond tensors once it trains, evaluates and writes: compiled kernels, the
sockets' buffers, the writer of Parquet. 80 to 110 MB were seen."""
Say = Callable[[str], None]
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def read_bytes(text: str, what: str = "memory budget") -> int:
    """Return the bytes that `4GB`, `512 MiB` or a plain number mean."""
    match = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]?)(i?)B?\s*", text, re.IGNORECASE)
    try:
        assert match is not None
        number, unit, binary = float(match[1]), match[2].upper(), bool(match[3])
    except (AssertionError, ValueError):
        raise ConfigError(
            f"The {what} can't be read.", seen=text, fix="write it as 4GB or 512MiB"
        ) from None
    powers = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
    size = number * (1024 ** powers[unit] if binary else _UNITS[unit])
    if text.strip()[-1] in ".0123456789" and 0 < size < _UNITS["M"]:
        raise ConfigError(
            f"The {what} has no unit.",
            seen=f"{text}: {number:g} bytes",
            fix=f"did you mean {number:g}GB? Write it as 4GB or 512MiB",
        )
    return int(min(size, 2**63))


def named_strategy(config: RunConfig) -> Strategy:
    """Return the strategy that the settings name, with their own choices on top."""
    if config.memory is not None:
        read_bytes(config.memory)
    if config.memory is None and config.stages == "auto":
        raise ConfigError(
            "The number of stages can't be chosen.",
            seen="--stages auto without a memory budget",
            fix="add --memory 4GB, or set --stages to a number from 1 to the ranks",
        )
    strategy = find_strategy(config.strategy).with_choices(
        stages=_stages(config),
        recompute=config.recompute,
        input_cache=config.input_cache,
        prune=config.prune,
        wire=_wire(config),
        wire_bits=config.wire_bits,
        wire_period=config.wire_period,
        overlap=config.overlap,
        intervals=config.intervals,
        staleness=config.staleness,
        gather=config.gather,
        pool=config.pool,
        pool_bits=config.pool_bits,
        macrobatch=_count("macrobatch", config.macrobatch, "1 or more minibatches, or auto"),
    )
    if strategy.unit == "interval" and config.device == "cuda":
        raise ConfigError(
            "A pipeline's graph work is done on CPUs.",
            seen="--device cuda with --strategy dorylus",
            fix="use --device cpu, or another strategy on the GPU",
        )
    return strategy


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
    strategy = named_strategy(config)
    if not training:
        stages = shard.world.size if strategy.stages == "auto" else None
        return strategy.with_choices(stages=stages, prune=False, input_cache=False)
    if spec is None and strategy.stages == "auto":
        check_budget(
            config, strategy
        )  # else a resumed run has chosen, by an earlier version's rules
    if config.memory is None or strategy.unit == "macrobatch" or spec is None:
        return strategy
    try:
        return _within_budget(config, spec, shard, strategy, say)
    except BudgetError as error:
        raise BudgetError(error.problem, seen=error.seen, fix=remedy() + error.fix) from None


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
    if named.stages != "auto":
        return [named]
    if config.recompute is not None:
        return [named.with_choices(stages=count) for count in range(1, ranks + 1)]
    lean = [named.with_choices(stages=count, recompute=True) for count in range(1, ranks + 1)]
    # What is kept needs no second fetch, if there is room for it.
    return [named.with_choices(stages=1, recompute=False), *lean]


def _within_budget(
    config: RunConfig, spec: ModelSpec, shard: Shard, named: Strategy, say: Say
) -> Strategy:
    """Return the strategy with the fewest stages that the budget allows."""
    assert config.memory is not None
    possible = candidates(named, config, shard.world.size)
    counts = [candidate.stages_of(shard.world.size) for candidate in possible]
    sizes = measure_sizes(shard, counts)
    budget, base = read_bytes(config.memory), memory_in_use(shard.world) + RUNTIME_BYTES
    needs = [
        float(base + predict_bytes(spec, size, candidate))
        for size, candidate in zip(sizes, possible, strict=True)
    ]
    worst = [max(column) for column in zip(*shard.world.gather_numbers(needs), strict=True)]
    for candidate, need, count in zip(possible, worst, counts, strict=True):
        if need <= budget:
            without_prune = named.prune and not candidate.prune
            say(
                f"Planned {counted(count, 'stage')}: a rank is predicted to need "
                f"{need / 1e9:.2f} GB at its peak, of --memory {config.memory}."
                + (" --prune is left out: it would take more." if without_prune else "")
            )
            return candidate
    raise BudgetError(
        "The memory budget is too small for this model on so many ranks.",
        seen=f"--memory {config.memory}; a rank needs {min(worst) / 1e9:.2f} GB at least, "
        f"{base / 1e9:.2f} GB of it before training starts",
        fix=f"give --memory {math.ceil(1.05 * min(worst) / 1e7) / 100:.2f}GB, use more ranks, "
        "or a narrower model",
    )


def predict_training_bytes(config: RunConfig, spec: ModelSpec, shard: Shard) -> int:
    """Return what training is predicted to take on this rank; every rank calls this together."""
    strategy = choose_strategy(config, spec, shard)
    assert strategy.stages != "auto", "choices are made"
    return predict_bytes(spec, measure_sizes(shard, [strategy.stages])[0], strategy)


def memory_in_use(world: World) -> int:
    """Return what this rank holds now: on its device, or resident."""
    if world.device.type == "cuda":
        return torch.cuda.memory_allocated(world.device)
    return int(psutil.Process().memory_info().rss)


def _wire(config: RunConfig) -> int | str | None:
    return int(config.wire) if config.wire is not None and config.wire.isdigit() else config.wire


def _stages(config: RunConfig) -> int | str | None:
    if config.stages is None:
        whole_graph = find_strategy(config.strategy).unit == "graph"
        return "auto" if config.memory is not None and whole_graph else None
    return _count("stages", config.stages, "1 to the number of ranks, or auto")


def _count(name: str, text: str | None, fix: str) -> int | str | None:
    """Return a number, or `auto`, as settings have it."""
    if text is None or text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        what = {"stages": "number of stages", "macrobatch": "size of macrobatches"}[name]
        raise ConfigError(
            f"The {what} can't be read.", seen=f"{name}={text}", fix=f"use {fix}"
        ) from None
