"""Any source of a graph, by name, path or object, as one `Graph` ready for training."""

from pathlib import Path
from typing import Any

from siafu.errors import DataError
from siafu.graph import Graph, add_reverse_edges, folder_kind, load_store
from siafu.ingest.builtin import BUILTINS, builtin, is_builtin
from siafu.ingest.masks import with_split
from siafu.ingest.named import NAMED, load_named, names_in_data_folder
from siafu.ingest.npz import graph_from_npz
from siafu.ingest.progress import Progress
from siafu.ingest.pyg import graph_from_pyg, is_pyg
from siafu.ingest.spelling import did_you_mean

Noted = tuple[Graph, list[str]]


def load(
    source: Any,
    *,
    undirected: bool = False,
    split: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Graph:
    """Return the graph that `source` names or holds, with masks where it has labels.

    A built-in graph (`planted`, `powerlaw:100k`), a public data set (`cora`), an `.npz` file, a
    store, a Parquet or CSV file or folder, a PyG `Data` or a `Graph`. `seed` draws masks where
    the data has none; built-in graphs stay the same at any seed.
    """
    return load_with_notes(
        source, undirected=undirected, split=split, seed=seed, progress=progress
    )[0]


def load_with_notes(
    source: Any,
    *,
    undirected: bool = False,
    split: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Noted:
    """Return what `load` does, and sentences for the user on what was done to the data."""
    graph, notes = _open(source, progress)
    if undirected:
        before = graph.num_edges
        graph = add_reverse_edges(graph)
        notes.append(f"Added {graph.num_edges - before:,} reverse edges.")
    graph, split_notes = with_split(graph, split, seed)
    return graph, notes + split_notes


def _open(source: Any, progress: Progress | None) -> Noted:
    if isinstance(source, Graph):
        return source, []
    if isinstance(source, str) and is_builtin(source):
        return builtin(source), []
    if isinstance(source, str) and source.replace("_", "-") in NAMED:
        return load_named(source, progress)
    if isinstance(source, str | Path):
        return _open_path(Path(source), progress)
    if is_pyg(source):
        return graph_from_pyg(source), []
    raise DataError(
        "This kind of object is not a graph we know.",
        seen=type(source).__name__,
        fix="give a name, a path, a PyG Data or a siafu Graph",
    )


def _open_path(path: Path, progress: Progress | None) -> Noted:
    if path.suffix == ".npz":
        return graph_from_npz(path)
    if folder_kind(path) == "store":
        return load_store(path), []
    if path.name == str(path) and path.name.replace("_", "-") in names_in_data_folder():
        return load_named(path.name, progress)
    raise _unknown(path)


def _unknown(path: Path) -> DataError:
    names = [*BUILTINS, *NAMED, *names_in_data_folder()]
    return DataError(
        "No such data set, file or folder.",
        seen=str(path),
        fix=f"{did_you_mean(str(path), names)}names: {', '.join(sorted(set(names)))}; "
        "or a path to an .npz file, a store, a Parquet or CSV file or folder",
    )
