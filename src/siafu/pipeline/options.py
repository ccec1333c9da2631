"""What can be told of a pipeline of intervals."""

from typing import ClassVar, Literal

from siafu.elastic.options import PIPELINE
from siafu.options import SCORED, STATIC, Options, Scope, setting
from siafu.strategy.options import NO_MINIBATCHES

LAGGING = Scope(
    lambda kind: kind.lags,
    "where nothing lags that could stop lagging",
    "add --staleness 1 or --gather latest",
)


class PipelineOptions(Options):
    """How an epoch is cut into intervals, and how far they may drift apart."""

    panel: ClassVar[str] = "Pipeline (--strategy dorylus)"

    intervals: int | None = setting(
        None, "slices of a rank's nodes in a pipeline (default: 8)", STATIC, PIPELINE, ge=1
    )
    staleness: int | None = setting(
        None,
        "epochs that rows and weights may lag in a pipeline; with halo and sar 1: rows and "
        "gradients of others are those of the epoch before (default: 0)",
        STATIC,
        NO_MINIBATCHES,
        ge=0,
    )
    gather: Literal["wait", "latest"] | None = setting(
        None,
        "in a pipeline, wait for rows as new as --staleness says (default), or read what is there, "
        "one epoch older at most",
        STATIC,
        PIPELINE,
    )
    exact_from: float | None = setting(
        None,
        "validation score from which nothing lags any more; of errors (rmse, mae) down to which",
        STATIC,
        PIPELINE,
        LAGGING,
        SCORED,
        ge=0,
    )
