"""What can be told of the data of a run."""

from pathlib import Path
from typing import ClassVar, Literal

from siafu.errors import ConfigError
from siafu.ingest.tables.options import TableOptions
from siafu.options import OVER_TIME, STATIC, Options, names_in, setting


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


class TableColumns(Options):
    """What the columns of a node table and an edge table are; of no other source of a graph."""

    panel: ClassVar[str] = "Columns of tables"

    nodes: str | None = setting(
        None, "node table, a file or folder, if it is not beside the edges", STATIC, usual=10
    )
    label: str | None = setting(None, "column(s) to predict, comma between", STATIC, usual=10)
    label_as: Literal["classes", "numbers"] | None = setting(
        None, "what whole numbers to predict are (default: few different ones are classes)", STATIC
    )
    node_id: str | None = setting(
        None, "id column of the node table (default: found)", STATIC, usual=10
    )
    src: str | None = setting(None, "column an edge starts at (default: found)", STATIC, usual=10)
    dst: str | None = setting(None, "column an edge ends at (default: found)", STATIC, usual=10)
    features: str | None = setting(
        None,
        "feature columns, comma between; -age,-zip: all but these (default: all that look like "
        "some)",
        STATIC,
        usual=10,
    )
    split_column: str | None = setting(None, "column with train, val, test", STATIC)
    edge_weight: str | None = setting(
        None, "weight column of the edges (default: weight, where it can be)", STATIC
    )
    edge_attr: str | None = setting(
        None,
        "edge feature columns, or all but -a,-b (default: all that look like some); of events over "
        "time those named",
    )
    edge_type: str | None = setting(None, "type column of the edges", STATIC)
    edge_label: str | None = setting(
        None, "column(s) of the edges to predict, comma between", STATIC, usual=10
    )
    id_type: Literal["integer", "text"] | None = setting(
        None, "read ids as these (default: as the columns have them)", STATIC
    )
    drop_unknown: bool | None = setting(
        None,
        "drop edges with unknown ids and rows without one (default: up to 1 in 100)",
        STATIC,
    )

    def table_options(self, task: str | None = None) -> TableOptions:
        """Return how tables are read; a task may tell what their targets are."""
        features, left_out = _features("features", self.features)
        edge_attr, edge_left_out = _features("edge_attr", self.edge_attr)
        return TableOptions(
            node_id=self.node_id,
            src=self.src,
            dst=self.dst,
            label=_one_or_more(self.label),
            target=_TARGETS.get(self.label_as or task or ""),
            split=self.split_column,
            features=features,
            left_out=left_out,
            edge_weight=self.edge_weight,
            edge_attr=edge_attr,
            edge_left_out=edge_left_out,
            edge_type=self.edge_type,
            edge_label=_one_or_more(self.edge_label),
            drop_unknown=self.drop_unknown,
            id_type=self.id_type,
            nodes=None if self.nodes is None else Path(self.nodes),
        )


_TARGETS: dict[str, Literal["class", "number"]] = {
    "classes": "class",
    "numbers": "number",
    "classification": "class",
    "regression": "number",
}


def _names(text: str | None) -> tuple[str, ...] | None:
    """Return the names of a list; none where nothing stands between quotes."""
    return None if text is None else names_in(text)


def _features(setting: str, text: str | None) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Return the features that are named, None for all, and those that are to be left out."""
    names = _names(text)
    left_out = [name for name in names or () if name.startswith("-")]
    if names is None or not left_out:
        return names, ()
    if len(left_out) < len(names):
        flag = f"--{setting.replace('_', '-')}"
        raise ConfigError(
            "Features are named, or those that are none, not both.",
            seen=f"{flag} {text}",
            fix=f"name all features ({flag} a,b), or what is to be left out ({flag} -a,-b)",
        )
    return None, tuple(name[1:] for name in left_out)


def _one_or_more(text: str | None) -> str | tuple[str, ...] | None:
    names = _names(text)
    return names[0] if names and len(names) == 1 else names


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
