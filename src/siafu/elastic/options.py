"""What can be told of a pool and its bill."""

from typing import ClassVar, Literal

from siafu.comm.options import MachineOptions
from siafu.options import STATIC, Scope, setting

PIPELINE = Scope(
    lambda kind: kind.unit == "interval",
    "where no intervals are in a pipeline",
    "add --strategy dorylus",
)
SIMULATED = Scope(lambda kind: kind.pool == "simulated", "for this pool", "add --pool simulated")
LAMBDA = Scope(lambda kind: kind.pool == "aws-lambda", "for this pool", "add --pool aws-lambda")


class PoolOptions(MachineOptions):
    """Who does a pipeline's tensor work, and what that costs; beside where ranks run."""

    panel: ClassVar[str] = "Pool and bill (--strategy dorylus)"

    pool: Literal["none", "process", "ray", "aws-lambda", "simulated"] | None = setting(
        None, "who does a pipeline's tensor work (default: process)", STATIC, PIPELINE
    )
    pool_workers: str | None = setting(
        None, "workers per rank in the pool, or auto (the default)", STATIC, PIPELINE
    )
    pool_bits: int | None = setting(
        None, "bits per entry on its way to and from the pool: 32, 16, 8, 4", STATIC, PIPELINE
    )
    cloud: str | None = setting(
        None,
        "the simulated pool's delays and failures: aws-lambda (default), a latency as 20ms, or a "
        "YAML file",
        STATIC,
        PIPELINE,
        SIMULATED,
    )
    lambda_function: str | None = setting(
        None, "name of the function in AWS Lambda (packaging/lambda)", STATIC, PIPELINE, LAMBDA
    )
    lambda_endpoint: str | None = setting(
        None, "URL of a Lambda service other than AWS's own", STATIC, PIPELINE, LAMBDA
    )
    pool_address: str | None = setting(
        None,
        "where functions reach ranks: tcp://auto:7000 (each machine's own address), an interface "
        "as tcp://eth0:7000, or an address of the one machine that all ranks are on; rank r "
        "listens at the port + r (default: loopback alone)",
        STATIC,
        PIPELINE,
        LAMBDA,
    )
    prices: str | None = setting(None, "a price file on top of siafu's own (TOML)", STATIC)
    instance: str | None = setting(
        None, "the instance type a rank is billed as (default: c5.xlarge)", STATIC
    )
