"""What can be told of the data of a run."""

from typing import ClassVar, Literal

from siafu.options import OVER_TIME, Options, setting


class DataOptions(Options):
    """What is learnt from, and where it goes."""

    panel: ClassVar[str] = "Data"

    data: str = setting(..., "built-in name, .npz, Parquet or CSV folder, store, or parts folder")
    undirected: bool = setting(False, "add missing reverse edges", usual=10)
    split: str | None = setting(
        None,
        "draw masks: 0.6,0.2 fractions or 20,30 per class (default: the data's); shares of edges "
        "with --task link (default: 0.8,0.1)",
        usual=11,
    )
    out: str | None = setting(None, "run folder (default: runs/NAME-MODEL-NUMBER)", usual=14)


class SnapshotOptions(Options):
    """How timed events become snapshots."""

    panel: ClassVar[str] = "Events into snapshots"

    window: str | None = setting(
        None, "events per snapshot: 14d, 12h, a number, 500e events, or each", OVER_TIME
    )
    columns: str | None = setting(
        None,
        "of events: the columns that are src, dst, time, weight or label, where they have other "
        "names: src=from,time=when",
        OVER_TIME,
    )
    time_unit: Literal["s", "ms", "us", "ns"] = setting(
        "s", "what times that are numbers count, for windows as 14d", OVER_TIME
    )
    partial_window: Literal["keep", "drop"] = setting(
        "keep", "whether a last window that the data only begins to fill counts", OVER_TIME
    )
    edge_life: int = setting(1, "snapshots that an edge stays alive for", OVER_TIME, ge=1)
