"""Settings about the columns of tables: what they say of a source, and where they say nothing."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from siafu.config import RunConfig, is_asked, make_columns, settings_of, shown_flag
from siafu.errors import ConfigError, DataError
from siafu.graph import FeatureColumn, Schema
from siafu.ingest import TableOptions, as_tables, find_tables
from siafu.ingest.formats.ogb import find_ogb
from siafu.ingest.load import is_missing, no_such_source
from siafu.ingest.options import TableColumns
from siafu.ingest.tables.kinds import NAMIBIA
from siafu.ingest.tables.nodes import label_columns
from siafu.partitioning.options import ColumnOptions
from siafu.record import shortened


def table_options(data: Any, config: RunConfig) -> TableOptions:
    """Return how the tables of a source are read; raise where it is none and columns are named."""
    check_columns(data, config)
    return config.table_options(config.task)


def check_columns(data: Any, config: RunConfig) -> None:
    """Raise where a setting names columns of a source that is no table, or is not there."""
    asked = [name for name in settings_of(TableColumns) if is_asked(config, name)]
    if not asked or as_tables(data) is not None:
        return
    if is_missing(data):
        raise no_such_source(Path(data))
    shown = data if isinstance(data, str | Path) else type(data).__name__
    flags = " ".join(shown_flag(name, getattr(config, name)) for name in asked)
    raise ConfigError(
        "Only tables have columns that could be named.",
        seen=f"{flags} with {shown}, which is no table",
        fix=f"leave that out{_by_schema(config)}",
    )


def _by_schema(config: RunConfig) -> str:
    """Return how columns of a store are left out, where that was asked for."""
    options = config.table_options()
    groups = {"nodes": options.left_out, "edges": options.edge_left_out}
    lines = [
        f"{group}: {{{', '.join(f'{name}: {{use: false}}' for name in names)}}}"
        for group, names in groups.items()
        if names
    ]
    return f"; a store of tables takes --schema '{{{', '.join(lines)}}}'" if lines else ""


def check_targets(data: Any, config: RunConfig) -> None:
    """Raise where no column of tables is there to be learnt: their heads tell, no row is read."""
    tables = as_tables(data)
    if tables is None or config.task == "link" or find_ogb(tables) is not None:
        return
    if config.task == "edge":
        if config.edge_label is None:
            raise ConfigError(
                "Nothing tells what is to be learnt of the edges.",
                seen=f"--task edge with {data}",
                fix="name the column of the edges to predict: --edge-label COLUMN",
            )
        return
    options = config.table_options(config.task)
    nodes = find_tables(tables, options).nodes
    if nodes is None or label_columns(nodes.schema(), options):
        return
    raise ConfigError(
        "Nothing tells which column is to be learnt.",
        seen=f"{nodes.files[0].name} with {shortened(nodes.schema().names)}",
        fix="name it: --label COLUMN",
    )


def check_node_table(data: Any, config: RunConfig, learnt: Schema) -> None:
    """Raise where a run reads columns of a table of nodes, and other tables come without one."""
    tables = as_tables(data)
    if tables is None or not learnt.nodes or find_ogb(tables) is not None:
        return
    if find_tables(tables, config.table_options(config.task)).nodes is None:
        raise DataError(
            "The run was trained with a table of nodes, and the data has none.",
            seen=f"{data}; the model reads {shortened([one.name for one in learnt.nodes])}",
            fix="name it, with the nodes of the new edges: --nodes TABLE",
        )


def options_of_inference(options: TableOptions, learnt: Schema) -> TableOptions:
    """Return how tables are read for a run that knows its columns: what it predicts may be missing.

    Kinds are those of the training: few rows would not tell them. Nor would the order of columns
    tell which end of an edge is which.
    """
    ids: dict[str, Any] = {r: n for r, n in learnt.ids.items() if getattr(options, r) is None}
    return replace(
        options,
        **ids,
        needs_labels=False,
        features=None if learnt.nodes else options.features,
        left_out=(),
        edge_left_out=(),
        # Nothing is read that the model does not.
        edge_attr=None if learnt.edges else () if learnt.nodes else options.edge_attr,
        node_kinds=kinds_of(learnt.nodes),
        edge_kinds=kinds_of(learnt.edges),
    )


def kinds_of(columns: Sequence[FeatureColumn]) -> tuple[tuple[str, str, str], ...] | None:
    """Return what the columns were read as, whatever they are used as."""
    return tuple((column.name, column.held, _beside(column)) for column in columns) or None


def _beside(column: FeatureColumn) -> str:
    """Return what comes first in its dates, or NA where that is one of its categories."""
    if column.held == "category":
        return NAMIBIA if NAMIBIA in column.categories else ""
    return column.first or ""


def with_columns_of_inference(config: RunConfig, data: Any, given: dict[str, Any]) -> RunConfig:
    """Return a run's settings for other data: its columns by the same names, but for `given`.

    The node table of the training is not that of other edges.
    """
    told = make_columns(**given)
    prepared = [name for name in settings_of(ColumnOptions) if name in given]
    if prepared:
        raise ConfigError(
            "The columns of a run are prepared as they were in training.",
            seen=", ".join(f"{name}={given[name]}" for name in prepared),
            fix="leave that out, or train again with it",
        )
    if data is None and given:
        raise ConfigError(
            "A run's own graph was read when it was trained.",
            seen=", ".join(f"{name}={value}" for name, value in given.items()),
            fix="name other data too (--data), or leave that out",
        )
    if data is None:
        return config
    check_columns(data, told)
    changes = {name: getattr(told, name) for name in given}
    return config.model_copy(update={"nodes": None, **changes})
