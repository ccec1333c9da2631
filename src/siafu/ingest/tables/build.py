"""A node table and an edge table, Parquet or CSV, as a store, in bounded, predicted memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from siafu.errors import DataError
from siafu.graph import ALONE, Crew, Help, make_in_steps
from siafu.ingest.frames import is_kept_frame
from siafu.ingest.tables.budget import fit_tables
from siafu.ingest.tables.edge_columns import edge_flags
from siafu.ingest.tables.edges import EdgeTable
from siafu.ingest.tables.files import MOST_NAMES, TABLE_ENDINGS, Table, table_files
from siafu.ingest.tables.finding import (
    NODE_IDS,
    SPELLINGS,
    ends_by_values,
    find_ends,
    find_node_id,
    lost_zeros,
    spelled,
)
from siafu.ingest.tables.ids import IdKind, RepeatedIdError
from siafu.ingest.tables.nodes import NodeTable, node_flags
from siafu.ingest.tables.options import TableOptions
from siafu.ingest.tables.problems import Problems
from siafu.ingest.tables.shared_edges import EdgeHelps
from siafu.ingest.tables.store_builder import Drawing, StoreBuilder, drawing_job, table_job
from siafu.record import Progress, shortened, silent

NODE_NAMES = ("nodes", "node", "vertices")
_EDGE_NAMES = ("edges", "edge")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """Where the tables of one graph are."""

    name: str
    edges: Table
    nodes: Table | None = None


def find_tables(source: Path, options: TableOptions) -> Tables:
    """Return the tables of a folder, or of one file of edges."""
    nodes, edges = _beside(options.nodes, source), source
    if source.is_dir():
        nodes = nodes or named_table(source, NODE_NAMES)
        found = named_table(source, _EDGE_NAMES)
        if found is None:
            found, nodes = _by_columns(source, options, nodes)
        if found is None and (nodes is not None or not _holds_edges(source, options)):
            inside = sorted(path.name for path in source.iterdir())
            raise DataError(
                "The folder has no edge table.",
                seen=f"{source} with {', '.join(inside[:12]) or 'nothing'}",
                fix="name the columns of its two ends (--src COLUMN --dst COLUMN) and the node "
                "table (--nodes FILE), or call it edges.csv or edges.parquet",
            )
        edges = found or source
    return Tables(
        name=source.name.split(".")[0],
        edges=Table("edge table", table_files(edges, "edge table")),
        nodes=Table("node table", table_files(nodes, "node table")) if nodes else None,
    )


def _beside(nodes: Path | None, source: Path) -> Path | None:
    """Return the node table that was named: from here, or else from where the edges are."""
    if nodes is None or nodes.exists():
        return nodes
    near = (source if source.is_dir() else source.parent) / nodes
    return near if near.exists() else nodes


def named_table(folder: Path, names: Sequence[str]) -> Path | None:
    """Return the file or folder of the table with one of these names."""
    candidates = [folder / f"{name}{ending}" for name in names for ending in (*TABLE_ENDINGS, "")]
    return next((path for path in candidates if path.exists()), None)


def _by_columns(
    folder: Path, options: TableOptions, nodes: Path | None
) -> tuple[Path | None, Path | None]:
    """Return the one table with both ends of edges, and the one other: whatever they are called."""
    files = [path for path in _files(folder) if nodes is None or not path.samefile(nodes)]
    edges = [path for path in files if _has_ends(path, options)]
    if not edges and len(files) + (nodes is not None) == 2:
        pairs = [(path, nodes or _other(files, path)) for path in files]
        edges = [path for path, other in pairs if _names_ids(path, other)] or [
            path for path, other in pairs if _names_ids(path, other, as_numbers=True)
        ]
    others = [path for path in files if path not in edges]
    if len(edges) != 1 or len(others) > 1 or (others and nodes is not None):
        return None, nodes
    return edges[0], others[0] if others else nodes


def _other(files: list[Path], path: Path) -> Path:
    return next(file for file in files if file != path)


def _names_ids(edges: Path, nodes: Path, *, as_numbers: bool = False) -> bool:
    """Return whether a table has two columns of ids of another."""
    found = (Table(what, (path,)) for what, path in (("edge table", edges), ("node table", nodes)))
    return ends_by_values(*found, as_numbers=as_numbers) is not None


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.name.endswith(TABLE_ENDINGS)]


def _holds_edges(folder: Path, options: TableOptions) -> bool:
    """Return whether the files right in the folder have the columns of edges."""
    files = _files(folder)
    return bool(files) and _has_ends(files[0], options)


def _has_ends(file: Path, options: TableOptions) -> bool:
    """Return whether a table has the columns of both ends of an edge."""
    names = Table("edge table", (file,)).schema().names
    wanted = (options.src, options.dst)
    return all(
        name in names if name is not None else spelled(names, SPELLINGS[role]) is not None
        for role, name in zip(("src", "dst"), wanted, strict=True)
    )


def build_store(
    tables: Tables,
    target: Path | str,
    *,
    options: TableOptions | None = None,
    drawing: Drawing | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    crew: Crew = ALONE,
) -> list[str]:
    """Write the tables as a store at `target`, whole or not at all; return notes for the user."""
    options, report = options or TableOptions(), progress or silent
    job = table_job(tables.edges.files + (tables.nodes.files if tables.nodes else ()), options)
    job |= drawing_job(drawing)
    options, told = find_columns(tables, options)
    options = fit_tables(options, None if tables.nodes is None else tables.nodes.num_rows())
    with make_in_steps(target, "store", job=job, overwrite=overwrite, crew=crew) as partial:
        problems = Problems()
        builder = StoreBuilder(partial, tables.name, drawing, told, id_columns(tables, options))
        if tables.nodes is None:
            edges = EdgeTable(tables.edges, options, report, problems=problems)
            problems.raise_any()
            builder.take_nodes(lambda writer: edges.write_seen_ids(writer, partial))
            builder.take_edges(edges)
            return builder.finish()
        nodes = NodeTable(tables.nodes, options, report, problems)
        edges = EdgeTable(tables.edges, options, report, nodes.kind, problems)
        problems.raise_any()
        builder.take_nodes(nodes.write)
        problems.found.clear()
        problems.take_up(builder.problems)
        try:
            builder.take_edges(edges)
        except RepeatedIdError:
            problems.found.clear()
            builder.take_nodes(nodes.write_once_each, again=True)
            builder.take_edges(edges)
        return builder.finish()


def table_helps(source: Path, options: TableOptions) -> dict[str, Help]:
    """Return what ranks beside the first do of `build_store`."""

    def open_table(kind: IdKind) -> EdgeTable:
        tables = find_tables(source, options)
        found, _ = find_columns(tables, options)
        found = fit_tables(found, None if tables.nodes is None else tables.nodes.num_rows())
        return EdgeTable(tables.edges, found, silent, kind)

    return EdgeHelps(open_table).helps()


def id_columns(tables: Tables, options: TableOptions) -> dict[str, str]:
    """Return which columns are ids, by setting: other data has them under the same names."""
    roles = ("src", "dst") if tables.nodes is None else ("src", "dst", "node_id")
    return {role: name for role in roles if (name := getattr(options, role)) is not None}


def find_columns(tables: Tables, options: TableOptions) -> tuple[TableOptions, list[str]]:
    """Return the options with the id columns of both tables, and notes on those that were found.

    Raises one error for all columns that are named and not there.
    """
    asked = options
    options, notes = find_ends(tables.edges, options, tables.nodes)
    problems = Problems()
    if tables.nodes is not None:
        options, more = find_node_id(tables.nodes, options, tables.edges)
        notes += more
        problems.found += tables.nodes.missing(node_flags(tables.nodes.schema(), options))
    problems.found += _missing_of_edges(tables, asked, options)
    if problems.found and tables.nodes is not None:
        problems.found[:0] = _swapped(tables.edges, tables.nodes, asked)
    problems.raise_any()
    return options, notes


def _missing_of_edges(
    tables: Tables, asked: TableOptions, options: TableOptions
) -> list[DataError]:
    """Return what is wrong with the columns that the edge table is to have.

    Of ends that were neither named nor found, it is why they were not.
    """
    names, flags = tables.edges.schema().names, edge_flags(options)
    named = [name for name in (asked.src, asked.dst) if name is not None]
    unfound = [name for name in (options.src, options.dst) if name not in (*names, *named)]
    if len(named) == 1 and named[0] not in names:
        flags = {name: flag for name, flag in flags.items() if name not in unfound}
    why = None
    if len(unfound) == 2:
        why = (
            _no_ends(tables.edges)
            if tables.nodes is None
            else lost_zeros(tables.edges, tables.nodes)
        )
    if why is None:
        return list(tables.edges.missing(flags))
    flags = {name: flag for name, flag in flags.items() if name not in unfound}
    return [why, *tables.edges.missing(flags)]


def _no_ends(table: Table) -> DataError:
    """Return what to say of a table alone that may be one of nodes."""
    names = shortened([repr(name) for name in table.schema().names], MOST_NAMES)
    return DataError(
        "The edge table has no columns of the two ends of an edge.",
        seen=f"{table.files[0]} with columns {names}",
        fix="name the columns: --src COLUMN --dst COLUMN; where these are nodes, give the edges "
        "and name this table with --nodes",
    )


def _swapped(edges: Table, nodes: Table, options: TableOptions) -> list[DataError]:
    """Return what to say first where the node table has the ends of edges, and the other an id."""
    names, file, other = edges.schema().names, edges.files[0], nodes.files[0]
    known = spelled(names, NODE_IDS) if options.node_id is None else options.node_id
    if _has_ends(file, options) or not (
        (_has_ends(other, options) and known in names)
        or (ends_by_values(edges, nodes) is None and ends_by_values(nodes, edges) is not None)
    ):
        return []
    known = "the ids that they name" if known not in names else known
    return [
        DataError(
            "The two tables seem to be swapped.",
            seen=f"the node table {other} has the ends of edges, the edge table {file} has {known}",
            fix="give them the other way round"
            + ("" if is_kept_frame(str(file)) else f": {other} --nodes {file}"),
        )
    ]
