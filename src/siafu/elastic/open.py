"""From the options of a run to a rank's pool, watched and counted."""

import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from siafu.comm import World
from siafu.elastic.costs import TaskCosts
from siafu.elastic.dispatch import Dispatcher, RetryPolicy
from siafu.elastic.options import PoolOptions, address_of_rank, is_loopback, split_address
from siafu.elastic.pools.cloud import CloudModel
from siafu.elastic.pools.pool import Deliver, LocalPool, Pool
from siafu.elastic.pools.process import ProcessPool
from siafu.elastic.pools.simulated import SimulatedPool
from siafu.elastic.runner import Autotuner, PoolUse, Runner
from siafu.errors import ConfigError, PoolError
from siafu.files import read_mapping
from siafu.options import readable


def open_runner(
    options: PoolOptions,
    pool: str,
    intervals: int,
    world: World,
    deliver: Deliver,
    step_seconds: float = 0.001,
    seed: int = 0,
) -> Runner:
    """Return the pool of that name, watched, sized and counted in steps of so many seconds.

    `seed` is that of a simulated pool's delays and failures.
    """
    use = PoolUse(step_seconds)
    make = partial(_simulated, seed=seed) if pool == "simulated" else _MAKERS[pool]
    workers = _workers(options, pool, intervals)

    def make_pool(deliver_to: Deliver) -> Pool:
        return make(options, world, workers, use.counting(deliver_to), use)

    def say(line: str) -> None:
        sys.stderr.write(f"rank {world.rank}: {line}\n")
        sys.stderr.flush()

    if pool == "aws-lambda" and options.pool_encryption is False:
        say("Tensors, and the key that functions show, travel in clear: --no-pool-encryption.")
    tuner = None
    if options.pool_workers in (None, "auto") and pool != "none":
        tuner = Autotuner(intervals=intervals, most=workers)
    # A pool that never answers is given up well before the wait for it passes its deadline.
    policy = RetryPolicy(first_seconds=min(_FIRST_SECONDS, options.deadline / 10))
    return Runner(Dispatcher(make_pool, deliver, say=say, policy=policy), use, tuner)


def check_pool_settings(options: PoolOptions, pool: str) -> None:
    """Raise where the settings of a pool can't be used, before anything of it is started.

    Ranks on other machines may have a cloud's file where this one has not.
    """
    _workers(options, pool, intervals=1)
    if pool == "simulated" and (options.launcher == "local" or not _is_file_name(options.cloud)):
        read_cloud(options.cloud)
    if pool == "aws-lambda":
        _check_lambda(options)


def _workers(options: PoolOptions, pool: str, intervals: int) -> int:
    """Return how many workers to begin with."""
    if options.pool_workers in (None, "auto"):
        return min(intervals, _cores() if pool in ("none", "process") else _MOST_WORKERS)
    assert options.pool_workers is not None
    count = int(options.pool_workers) if options.pool_workers.isdecimal() else 0
    if count < 1:
        raise ConfigError(
            "The number of workers can't be read.",
            seen=f"pool_workers={options.pool_workers}",
            fix="use a number from 1, or auto",
        )
    return count


_FIRST_SECONDS = 30.0
"""How long a task of a kind that nobody knows yet may take before it is tried again."""


def _cores() -> int:
    """Return this rank's share of the machine's cores."""
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


_MOST_WORKERS = 100
"""Workers a rank begins with at most, where they cost nothing until they are asked."""


def _local(
    options: PoolOptions, world: World, workers: int, deliver: Deliver, use: PoolUse
) -> Pool:
    return LocalPool(deliver, workers=workers)


def _process(
    options: PoolOptions, world: World, workers: int, deliver: Deliver, use: PoolUse
) -> Pool:
    return ProcessPool(deliver, workers=workers, deadline_seconds=options.deadline)


def _simulated(
    options: PoolOptions,
    world: World,
    workers: int,
    deliver: Deliver,
    use: PoolUse,
    *,
    seed: int,
) -> Pool:
    model = replace(read_cloud(options.cloud), billing_seconds=use.step_seconds)

    def make_inner(deliver_to: Deliver) -> Pool:
        # Processes, as the cloud's workers would share no cores' caches or locks with the rank.
        return ProcessPool(
            deliver_to, workers=min(workers, _cores()), deadline_seconds=options.deadline
        )

    pool = SimulatedPool(
        deliver, model=model, workers=workers, seed=seed + world.rank, make_inner=make_inner
    )
    pool.costs = use.costs = TaskCosts()
    use.memory_gb = model.memory_gb or None
    use.paid = lambda: (pool.bill.requests, pool.bill.seconds)
    return pool


def _ray(options: PoolOptions, world: World, workers: int, deliver: Deliver, use: PoolUse) -> Pool:
    address = None if options.ray_address == "local" else options.ray_address
    pool: Pool = _imported("pools.ray", "ray").RayPool(
        deliver, workers=workers, address=address, deadline_seconds=options.deadline
    )
    return pool


def _check_lambda(options: PoolOptions) -> None:
    if options.lambda_function is None:
        raise ConfigError(
            "The function in AWS Lambda has no name.",
            seen="--pool aws-lambda without --lambda-function",
            fix="deploy it as packaging/lambda/README.md says, and name it",
        )
    url = options.lambda_endpoint or ""
    if url.startswith("http://") and urlsplit(url).hostname not in _LOOPBACK:
        raise ConfigError(
            "The run's key would travel in clear.",
            seen=f"lambda_endpoint={url}",
            fix="use https, or a service on this machine",
        )
    _check_reach(options)


def _check_reach(options: PoolOptions) -> None:
    """Raise where the setting is no address, or functions in AWS would look for a rank in vain."""
    host = split_address(options.pool_address)[0] if options.pool_address else "127.0.0.1"
    elsewhere = options.lambda_endpoint or any(name in os.environ for name in _SERVICES)
    if is_loopback(host) and not elsewhere:
        raise ConfigError(
            "Functions in AWS can't reach a rank that listens on loopback.",
            seen=f"pool_address={options.pool_address}",
            fix="write --pool-address tcp://auto:7000, where functions reach this machine's "
            "network; or name a service on this machine by --lambda-endpoint",
        )


def _lambda(
    options: PoolOptions, world: World, workers: int, deliver: Deliver, use: PoolUse
) -> Pool:
    _check_lambda(options)
    assert options.lambda_function is not None
    module = _imported("aws_lambda.pool", "aws")
    seconds = min(options.deadline, _LONGEST_INVOCATION_SECONDS)
    address = address_of_rank(options.pool_address, world.rank)
    encrypted = options.pool_encryption is not False
    client = module.open_client(
        region=os.environ.get("AWS_REGION", ""),  # which boto3 itself passes over
        endpoint_url=options.lambda_endpoint or "",
        deadline_seconds=seconds,
    )
    pool = module.LambdaPool(
        deliver,
        function=options.lambda_function,
        workers=workers,
        client=client,
        address=address,
        deadline_seconds=seconds,
        encrypted=encrypted,
    )

    def paid() -> tuple[int, float]:
        use.memory_gb = pool.memory_gb or None  # known once a call has returned
        return pool.requests, pool.billed_seconds

    use.paid = paid
    made: Pool = pool
    return made


_LONGEST_INVOCATION_SECONDS = 60.0
_SERVICES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_LAMBDA")
"""By which AWS's client finds another service than its own."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def read_cloud(text: str | None) -> CloudModel:
    """Return the model that a setting names: a known cloud, a latency as 20ms, or a YAML file."""
    if text in (None, "aws-lambda"):
        return CloudModel.aws_lambda()
    if text == "dorylus":
        return CloudModel.dorylus()
    if match := re.fullmatch(r"([0-9]+(?:[.][0-9]+)?) *(ms|s)", text):
        unit = 0.001 if match[2] == "ms" else 1.0
        return CloudModel.ideal(latency_seconds=float(match[1]) * unit)
    if _is_file_name(text):
        return CloudModel.from_mapping(_read_numbers(Path(text)))
    raise ConfigError(
        "The simulated cloud can't be read.",
        seen=f"cloud={text}",
        fix="use aws-lambda, dorylus, a latency as 20ms, or a YAML file with the model's numbers",
    )


def _read_numbers(path: Path) -> dict[str, Any]:
    fix = "check path and syntax; write lines as `loss: 0.01`"
    with readable(f"{path}", "The file of the simulated cloud can't be read.", fix):
        return read_mapping(path)


def _is_file_name(cloud: str | None) -> bool:
    return cloud is not None and Path(cloud).suffix in (".yaml", ".yml", ".toml")


def _imported(name: str, extra: str) -> Any:
    """Return a module of a pool whose packages may not be installed."""
    try:
        return import_module(f"siafu.elastic.{name}")
    except ModuleNotFoundError as error:
        raise PoolError(
            "The pool's packages are not installed.",
            seen=f"no module {error.name}",
            fix=f"pip install 'siafu[{extra}]'",
        ) from error


_MAKERS: dict[str, Callable[[PoolOptions, World, int, Deliver, PoolUse], Pool]] = {
    "none": _local,
    "process": _process,
    "ray": _ray,
    "aws-lambda": _lambda,
}
