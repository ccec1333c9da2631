"""Any source of a graph, by name, path or object: a `Graph` for training, or a store on disk."""

import hashlib
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from siafu.errors import DataError
from siafu.files import cache_folder
from siafu.graph import (
    ALONE,
    Crew,
    Graph,
    Help,
    add_reverse_edges,
    folder_kind,
    load_store,
    open_folder,
    save_store,
)
from siafu.ingest.arrays import Noted, with_split
from siafu.ingest.datasets.builtin import BUILTINS, is_builtin, load_builtin
from siafu.ingest.datasets.drifting import NAME as DRIFTING
from siafu.ingest.datasets.drifting import is_drifting
from siafu.ingest.datasets.named import (
    NAMED,
    canonical,
    load_named,
    names_in_data_folder,
)
from siafu.ingest.formats.npz import graph_from_npz
from siafu.ingest.formats.ogb import build_ogb_store, find_ogb
from siafu.ingest.formats.pyg_hetero import graph_from_pyg_with_notes, is_pyg
from siafu.ingest.tables.build import build_store, find_tables, table_helps
from siafu.ingest.tables.files import TABLE_ENDINGS
from siafu.ingest.tables.options import TableOptions
from siafu.ingest.tables.store_builder import Drawing, table_job
from siafu.ingest.tables.told import told_before
from siafu.memory import Budget
from siafu.record import Progress, suggestion


def load(
    source: Any,
    *,
    undirected: bool = False,
    split: str | None = None,
    seed: int = 0,
    options: TableOptions | None = None,
    store: Path | str | None = None,
    progress: Progress | None = None,
) -> Graph:
    """Return the graph that `source` names or holds, with masks where it has labels.

    A built-in graph (`planted`, `powerlaw:100k`), a public data set (`cora`), an `.npz` file, a
    store, a Parquet or CSV file or folder, a PyG `Data` or `HeteroData`, or a `Graph`. Names come
    before paths: write `./cora` for a folder of that name. `seed` draws masks where the data has
    none; built-in graphs stay the same at any seed. Tables become a store first, at `store` or in
    the cache, and are memory-mapped from there.
    """
    return load_with_notes(
        source,
        undirected=undirected,
        split=split,
        seed=seed,
        options=options,
        store=store,
        progress=progress,
    )[0]


def load_with_notes(
    source: Any,
    *,
    undirected: bool = False,
    split: str | None = None,
    seed: int = 0,
    options: TableOptions | None = None,
    store: Path | str | None = None,
    progress: Progress | None = None,
) -> Noted:
    """Return what `load` does, and sentences for the user on what was done to the data."""
    graph, notes = load_as_it_is(
        source, undirected=undirected, options=options, store=store, progress=progress
    )
    graph, split_notes = with_split(graph, split, seed)
    return graph, notes + split_notes


def load_as_it_is(
    source: Any,
    *,
    undirected: bool = False,
    options: TableOptions | None = None,
    store: Path | str | None = None,
    progress: Progress | None = None,
    budget: Budget | None = None,
) -> Noted:
    """Return what `load_with_notes` does with the masks of the data alone: none are drawn.

    Reading tables, and graphs that are held in memory, have to fit into the `budget`.
    """
    tables = as_tables(source)
    if tables is not None:
        options = replace(_with_direction(options, undirected), budget=budget)
        return _through_store(tables, store, options, progress)
    graph, notes = _open(source, progress, budget or Budget())
    if undirected:
        before = graph.num_edges
        graph = add_reverse_edges(graph)
        notes.append(f"Added {graph.num_edges - before:,} reverse edges.")
    return graph, notes


def ingest_to_store(  # noqa: PLR0913 - the settings of one command
    source: Any,
    target: Path | str,
    *,
    overwrite: bool = False,
    undirected: bool = False,
    split: str | None = None,
    seed: int = 0,
    options: TableOptions | None = None,
    draw_masks: bool = True,
    progress: Progress | None = None,
    budget: Budget | None = None,
    crew: Crew = ALONE,
) -> list[str]:
    """Write any source as a store and return notes; tables are never held in memory.

    The edges of tables are read and sorted by all of a `crew`.
    """
    tables = as_tables(source)
    if tables is None:
        graph, notes = load_as_it_is(
            source, undirected=undirected, progress=progress, budget=budget
        )
        if draw_masks:
            graph, split_notes = with_split(graph, split, seed)
            notes += split_notes
        save_store(graph, target, overwrite=overwrite)
        return notes
    return _write_tables(
        tables,
        Path(target),
        options=replace(_with_direction(options, undirected), budget=budget),
        drawing=Drawing(split=split, seed=seed) if draw_masks else None,
        overwrite=overwrite,
        progress=progress,
        crew=crew,
    )


def ingest_helps(
    source: Path, *, undirected: bool, options: TableOptions | None, budget: Budget | None
) -> dict[str, Help]:
    """Return what ranks beside the first do of `ingest_to_store` of tables."""
    return table_helps(source, replace(_with_direction(options, undirected), budget=budget))


def _with_direction(options: TableOptions | None, undirected: bool) -> TableOptions:
    options = options or TableOptions()
    return replace(options, undirected=options.undirected or undirected)


def as_tables(source: Any) -> Path | None:
    """Return the path where the source is a table file, or a folder of tables; else None."""
    if not isinstance(source, str | Path):
        return None
    if isinstance(source, str) and (is_builtin(source) or canonical(source) in NAMED):
        return None
    path = Path(source)
    is_table = path.is_file() and path.name.lower().endswith(TABLE_ENDINGS)
    is_folder = path.is_dir() and folder_kind(path) is None
    return path if is_table or is_folder else None


def _write_tables(
    source: Path,
    target: Path,
    *,
    options: TableOptions,
    drawing: Drawing | None,
    overwrite: bool,
    progress: Progress | None,
    crew: Crew = ALONE,
) -> list[str]:
    settings: dict[str, Any] = {
        "options": options,
        "drawing": drawing,
        "overwrite": overwrite,
        "progress": progress,
    }
    ogb = find_ogb(source)
    try:
        if ogb is not None:
            return build_ogb_store(ogb, target, name=source.name, **settings)
        return build_store(find_tables(source, options), target, crew=crew, **settings)
    finally:
        # Arrow keeps what it freed, in a pool that nothing else can use.
        pa.default_memory_pool().release_unused()


def _through_store(
    source: Path, store: Path | str | None, options: TableOptions, progress: Progress | None
) -> Noted:
    target = Path(store) if store else _cached_at(source, options)
    if store is None and folder_kind(target) == "store":
        used = f"Used the store made earlier from {source}: {target}."
        return load_store(target), [used, *_told_of(target)]
    notes = _write_tables(
        source, target, options=options, drawing=None, overwrite=False, progress=progress
    )
    return load_store(target), [*notes, f"Made a store of {source}: {target}."]


def _told_of(store: Path) -> list[str]:
    """Return what was told of the tables of a store when they were read, columns in short."""
    said = open_folder(store, "store").facts.get("told")
    lines = [line for line in said if isinstance(line, str)] if isinstance(said, list) else []
    return told_before(lines, shlex.quote(str(store)))


def told_of_tables(source: Path, options: TableOptions, *, undirected: bool) -> list[str]:
    """Return what was told of tables whose store is in the cache; nothing of others."""
    target = _cached_at(source, _with_direction(options, undirected))
    return _told_of(target) if folder_kind(target) == "store" else []


def count_nodes(source: Path, options: TableOptions) -> int | None:
    """Return how many nodes the tables have, where files tell it without being read."""
    if find_ogb(source) is not None:
        return None
    tables = find_tables(source, options)
    return None if tables.nodes is None else tables.nodes.num_rows()


def has_cached_store(source: Path, options: TableOptions, *, undirected: bool) -> bool:
    """Return whether the cache has the store of these tables, as they are now."""
    return folder_kind(_cached_at(source, _with_direction(options, undirected))) == "store"


def _cached_at(source: Path, options: TableOptions) -> Path:
    return cache_folder() / "tables" / _key(source, options)


def _key(source: Path, options: TableOptions) -> str:
    """Return a name for the store of these tables: another one when a file or option changes."""
    roots = [source, *([options.nodes] if options.nodes else [])]
    text = json.dumps(table_job(roots, options))
    return f"{source.name.split('.')[0]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def is_key(name: str) -> bool:
    """Return whether a store made of tables may have this name in the cache."""
    return re.fullmatch("[^.]*-[0-9a-f]{16}", name) is not None


def _open(source: Any, progress: Progress | None, budget: Budget) -> Noted:
    if isinstance(source, Graph):
        return source, []
    if isinstance(source, str) and is_builtin(source):
        return load_builtin(source, budget=budget), []
    if isinstance(source, str) and canonical(source) in NAMED:
        return load_named(source, progress)
    if isinstance(source, str | Path):
        return _open_path(Path(source), progress, budget)
    if is_pyg(source):
        return graph_from_pyg_with_notes(source)
    raise DataError(
        "This kind of object is not a graph we know.",
        seen=type(source).__name__,
        fix="give a name, a path, a PyG Data or HeteroData, or a siafu Graph",
    )


def unknown_kind(path: Path) -> DataError:
    """Return the error for something at a path that holds no graph in a form that is read."""
    kinds = f"an .npz file, tables ({', '.join(TABLE_ENDINGS)}), a store or a parts folder"
    fix = f"give {kinds}"
    if path.suffix in (".pt", ".pth", ".pkl", ".pickle"):
        fix = f"pickles are never read: load it in Python and call siafu.fit(data), or {fix}"
    what = "This kind of file is not read." if path.is_file() else "This is no file with a graph."
    return DataError(what, seen=str(path), fix=fix)


def _open_path(path: Path, progress: Progress | None, budget: Budget) -> Noted:
    if path.suffix == ".npz":
        return graph_from_npz(path, budget)
    kind = folder_kind(path)
    if kind == "store":
        return load_store(path), []
    if kind == "dynamic" or is_drifting(str(path)):
        raise DataError(
            "This is a dynamic graph, not a static one.",
            seen=str(path),
            fix="train a model of dynamic graphs on it (--model tm-gcn), or use load_dynamic",
        )
    if kind is not None:
        raise DataError(
            "This folder is not a graph.",
            seen=f"{path} is a siafu {kind}",
            fix="give the store it was made from",
        )
    if path.name == str(path) and canonical(path.name) in names_in_data_folder():
        return load_named(path.name, progress)
    if path.exists():
        raise unknown_kind(path)
    raise no_such_source(path)


def is_missing(source: Any) -> bool:
    """Return whether a source is neither a data set by its name nor there."""
    if not isinstance(source, str | Path) or Path(source).exists():
        return False
    return canonical(str(source).partition(":")[0]) not in _known_names()


def _known_names() -> set[str]:
    return {*BUILTINS, DRIFTING, *NAMED, *names_in_data_folder()}


def no_such_source(path: Path) -> DataError:
    """Return the error for a source that is not there, with a file or name that is near."""
    names, beside = sorted(_known_names()), list[str]()
    if path.parent.is_dir():
        beside = [one.name for one in path.parent.iterdir() if not one.name.startswith(".")]
    near = suggestion(path.name, beside) or suggestion(str(path), names)
    return DataError(
        "No such data set, file or folder.",
        seen=str(path),
        fix=f"{near}names: {', '.join(names)}; "
        "or a path to an .npz file, a store, a Parquet or CSV file or folder",
    )
