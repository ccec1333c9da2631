"""What can be told of how the work is cut up and how rows travel."""

from typing import Any, ClassVar, Literal

from pydantic import field_validator

from siafu.nn import CARDS
from siafu.nn.options import TEMPORAL
from siafu.nn.precision import Precision
from siafu.options import OVER_TIME, STATIC, Options, Scope, setting
from siafu.strategy.strategy import AUTO, PRESETS

NO_MINIBATCHES = Scope(lambda kind: kind.unit != "macrobatch", "where minibatches are drawn")
NO_PIPELINE = Scope(lambda kind: kind.unit != "interval", "where intervals are in a pipeline")
WIDTHS = Scope(
    lambda kind: kind.assigns_widths, "where all rows have one width", "add --wire adaptive"
)
PERIODS = Scope(
    lambda kind: kind.assigns_widths or kind.config.wire == "0",
    "where rows travel alike in every epoch",
    "add --wire adaptive",
)
CHANGES = Scope(lambda kind: bool(kind.config.changes), "where no rows are kept", "add --changes")
SUMS = Scope(
    lambda kind: kind.config.model in CARDS and CARDS[kind.config.model].adds_up,
    "where neighbours are not simply added up",
    "use --model gcn, sage, gin or rgcn",
)
CHOOSING = Scope(
    lambda kind: kind.config.strategy == AUTO,
    "where the strategy is named",
    "leave --strategy out",
)
UNCUT_ROWS = Scope(
    lambda kind: not kind.over_time or kind.config.node_parts == 1,
    "between groups of nodes, whose rows travel whole",
    "leave --node-parts out",
)


BLOCKS = Scope(
    lambda kind: kind.config.time_block > 0,
    "where an epoch is one time block",
    "add --time-block 8",
)


class StrategyOptions(Options):
    """How an epoch is cut up, and what may be lost."""

    panel: ClassVar[str] = "Strategy"

    strategy: str = setting(
        AUTO,
        f"how an epoch is cut up: {', '.join(PRESETS)}; auto: the exact one predicted as fastest",
        STATIC,
        usual=3,
    )
    allow: Literal["exact", "rounded", "sampled"] = setting(
        "exact",
        "what auto may take: exact strategies alone, rounded rows where they are faster, or "
        "sampled minibatches too, where nothing else fits",
        STATIC,
        CHOOSING,
    )
    memory: str | None = setting(
        None,
        "memory per rank while training, as 4GB; sets stages to auto",
        STATIC,
        usual=4,
    )
    stages: str | None = setting(
        None, "groups of peers fetched one after another: 1 to the ranks, or auto", STATIC
    )
    recompute: bool | float | None = setting(
        None,
        "fetch rows again in backward instead of keeping them; in files and Python also from 0 to "
        "1: those of that share of the stages",
        STATIC,
    )
    offload: str | None = setting(
        None,
        "rows kept for backward that wait in the host's memory, as 4GB, with a GPU; by default what"
        " --memory, or the GPU's own, asks for",
        STATIC,
        NO_MINIBATCHES,
        NO_PIPELINE,
    )
    input_cache: bool = setting(
        False, "aggregate the constant first-layer input once", STATIC, NO_PIPELINE
    )
    prune: bool = setting(
        False, "train on what influences labelled nodes only, layer by layer", STATIC
    )
    by_columns: bool | None = setting(
        None,
        "each rank works on all nodes and a slice of the columns; for graphs that cut badly",
        STATIC,
    )
    overlap: bool | None = setting(
        None, "work on owned rows while others travel (default: true)", STATIC, NO_MINIBATCHES
    )
    once_per_host: bool | None = setting(
        None,
        "send a row once to each host, whose ranks share it (default: true)",
        STATIC,
        NO_MINIBATCHES,
        NO_PIPELINE,
    )
    precision: Precision = setting(
        "float32",
        "float32, float64, or bf16: rows and products in bfloat16, sums, weights and losses in "
        "float32; half the bytes between ranks, and less memory",
    )
    wire: str | None = setting(
        None,
        "bits per entry between ranks: 32, 16, 8, 4, 2, bf16, fp8, adaptive or random; with "
        "--changes 1, 0",
        UNCUT_ROWS,
    )
    changes: bool | None = setting(
        None,
        "send what changed of rows since the last epoch, rounded by --wire; both ends keep them",
        STATIC,
    )
    kept_bits: int | None = setting(
        None,
        "bits per entry of the rows that both ends keep for --changes: 32, or 16 as bfloat16 "
        "(default: 32)",
        STATIC,
        CHANGES,
    )
    boundary: float | None = setting(
        None,
        "share of the rows between ranks that travel in an epoch, drawn by lot and scaled, for sums"
        " of neighbours (default: 1)",
        STATIC,
        SUMS,
        gt=0,
        le=1,
    )
    wire_bits: float | None = setting(
        None,
        "mean bits per entry, 2 to 8, for adaptive (default: 4); with --changes from 0.5",
        WIDTHS,
        UNCUT_ROWS,
    )
    wire_period: int | None = setting(
        None,
        "epochs between assignments of widths, for adaptive, or from one renewal of rows to the "
        "next, for --wire 0 (default: 50)",
        PERIODS,
        UNCUT_ROWS,
    )
    smoothing: float | None = setting(
        None,
        "share of earlier epochs in rows that --staleness 1 reads in halo and sar, 0 to 0.99",
        STATIC,
        ge=0,
        le=0.99,
    )

    @field_validator("wire", mode="before")
    @classmethod
    def _number_as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int) else value


class TimeOptions(Options):
    """How a sequence of snapshots is cut up."""

    panel: ClassVar[str] = "Strategy over time"

    time_block: int = setting(
        0, "snapshots worked on at once, to save memory; 0: all of them", OVER_TIME, ge=0
    )
    step_every: Literal["epoch", "block"] = setting(
        "epoch",
        "over time, when weights are changed: once per epoch, or after each --time-block, whose "
        "gradients then end at its start",
        OVER_TIME,
        BLOCKS,
    )
    node_parts: int = setting(
        1,
        "groups of nodes that share every snapshot of a dynamic graph out among them, each on "
        "ranks / groups ranks; for snapshots larger than a rank",
        OVER_TIME,
        ge=1,
    )
    time_exchange: Literal["auto", "all-to-all", "banded", "wavefront"] = setting(
        "auto", "how ranks reach each other's snapshots", OVER_TIME, TEMPORAL
    )
