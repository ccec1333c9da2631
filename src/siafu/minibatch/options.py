"""What can be told of sampled minibatches."""

from typing import ClassVar, Literal

from pydantic import field_validator

from siafu.errors import ConfigError
from siafu.options import STATIC, Options, Scope, setting

MINIBATCHES = Scope(
    lambda kind: kind.unit == "macrobatch",
    "where there are no minibatches",
    "add --strategy batchgnn",
)


class SamplingOptions(Options):
    """How minibatches are drawn and fetched."""

    panel: ClassVar[str] = "Minibatches (--strategy batchgnn)"

    fanout: str | None = setting(
        None,
        "in-edges drawn per node at each hop, as 15,10,5; -1: all; without --layers there are as "
        "many as numbers",
        STATIC,
        MINIBATCHES,
    )
    batch_size: int = setting(
        1000, "training nodes or edges per minibatch", STATIC, MINIBATCHES, ge=1
    )
    steps_per_epoch: int | None = setting(
        None,
        "the most steps of an epoch; the next one goes on from there (default: a pass over all "
        "training nodes or edges)",
        STATIC,
        MINIBATCHES,
        ge=1,
    )
    macrobatch: str | None = setting(
        None, "steps sampled and fetched in one go, or auto (the default)", STATIC, MINIBATCHES
    )
    seed_order: Literal["local", "global"] = setting(
        "local", "minibatches of a rank's own nodes, or alike for any ranks", STATIC, MINIBATCHES
    )
    step_minibatches: int | None = setting(
        None,
        "minibatches per step with seed_order global (default: ranks)",
        STATIC,
        MINIBATCHES,
        ge=1,
    )
    sample_replace: bool = setting(
        False, "an edge may be drawn more than once", STATIC, MINIBATCHES
    )
    sample_weighted: bool = setting(
        False, "draw edges in proportion to their weights", STATIC, MINIBATCHES
    )
    share_draws: int = setting(
        0,
        "steps in turn whose minibatches draw by the same numbers of source nodes, so that they "
        "meet fewer of them: 1 within each minibatch alone, 0 none",
        STATIC,
        MINIBATCHES,
        ge=0,
    )
    hot_rows: str | None = setting(
        None,
        "memory for rows kept near, as 200MB: of other ranks, or of pinned rows on the device",
        STATIC,
        MINIBATCHES,
    )
    rows_on: Literal["auto", "device", "pinned", "host"] = setting(
        "auto",
        "where edges are drawn and features lie for a GPU: on it (of several ranks, all of the "
        "graph on each), in pinned memory that it reads, or on the host; auto takes the nearest "
        "that has room",
        STATIC,
        MINIBATCHES,
    )
    feature_bits: int = setting(
        32,
        "bits per input feature as minibatches fetch it: 32, or 8, rounded once",
        STATIC,
        MINIBATCHES,
    )

    @field_validator("feature_bits")
    @classmethod
    def _known_bits(cls, value: int) -> int:
        if value not in (8, 32):
            raise ConfigError(
                "Unknown width of features.", seen=f"feature_bits={value}", fix="use 8 or 32"
            )
        return value
