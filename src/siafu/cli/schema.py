"""What `siafu inspect` tells of the columns of tables."""

from pathlib import Path
from typing import Any

import typer

from siafu.cli.show import print_json
from siafu.errors import StoreError
from siafu.graph import FeatureColumn, Schema, TargetColumn, folder_kind, load_store
from siafu.launch.learnt import learnt_schema, schema_of_parts
from siafu.record import RunFolder, counted, shortened

_MOST_COLUMNS = 20


def schema_at(path: Path) -> Schema:
    """Return the schema of a store, of parts, or of a run; raise where there is none."""
    kind, run = folder_kind(path), RunFolder(path)
    schema = None
    if kind == "store":
        schema = load_store(path, verify=False).schema
    elif kind == "parts":
        schema = schema_of_parts(path)
    elif run.schema.exists():
        schema = learnt_schema(run)
    if schema is None:
        raise StoreError(
            "There is no schema.",
            seen=str(path),
            fix="name a store of tables, parts cut from one, or a run on them; columns of other "
            "sources are used as they are",
        )
    return schema


def print_schema(path: Path, *, as_json: bool) -> None:
    """Print the schema at a path, as YAML that can be edited and given back, or as JSON."""
    schema = schema_at(path)
    if as_json:
        print_json({"path": str(path), "schema": schema.to_dict()})
    else:
        typer.echo(schema.to_yaml(), nl=False)


def schema_rows(schema: Schema | None) -> dict[str, Any]:
    """Return a row for each kind of columns, those of a row one below the other."""
    if schema is None:
        return {}
    rows = {
        "node columns": [_column_line(column) for column in schema.nodes],
        "edge columns": [_column_line(column) for column in schema.edges],
        "targets": [_target_line(target) for target in (*schema.targets, *schema.edge_targets)],
        "not used": [f"{name}: {why}" for name, why in schema.unused.items()],
        "not used of edges": [f"{name}: {why}" for name, why in schema.edge_unused.items()],
    }
    return {name: _below(lines) for name, lines in rows.items() if lines}


def _below(lines: list[str]) -> str:
    rest = len(lines) - _MOST_COLUMNS
    return "\n".join(lines[:_MOST_COLUMNS] + ([f"and {rest:,} more"] if rest > 0 else []))


def _column_line(column: FeatureColumn) -> str:
    told: list[str] = [column.kind]
    if column.kind == "category" and column.categories:
        names = shortened(column.categories, 4)
        told[0] = f"{len(column.categories):,} categories ({names})"
    if column.gaps:
        told.append(counted(column.gaps, "gap"))
    if not column.use:
        told.append("not used")
    elif column.learnt is not None:
        told.append(_fate(column))
    return f"{column.name}: {', '.join(told)}"


def _fate(column: FeatureColumn) -> str:
    learnt = column.learnt
    assert learnt is not None
    if learnt.left_out:
        return f"left out ({learnt.left_out})"
    if column.kind == "category":
        return f"{counted(len(column.prepared_names()), 'feature')}"
    filled = f", gaps filled with {float(learnt.fill):.6g}" if column.is_flagged else ""
    return f"centre {learnt.centre:.6g}, spread {learnt.spread:.6g}{filled}"


def _target_line(target: TargetColumn) -> str:
    kinds = {"class": "one of the classes", "labels": "any of the classes", "number": "a number"}
    gaps = f", {target.gaps:,} rows without" if target.gaps else ""
    return f"{target.name}: {kinds[target.kind]}{gaps}"
