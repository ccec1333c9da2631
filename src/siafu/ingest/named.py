"""Public data sets by name: from the folder SIAFU_DATA, else from their public home.

The only reader of the environment variables SIAFU_DATA and SIAFU_CACHE.
"""

import os
from pathlib import Path

from siafu.errors import DataError
from siafu.graph import Graph
from siafu.ingest.npz import graph_from_npz
from siafu.ingest.progress import Progress

NAMED = ("cora", "citeseer", "pubmed", "ogbn-arxiv", "ogbn-products")


def load_named(name: str, progress: Progress | None = None) -> tuple[Graph, list[str]]:
    """Return the data set, from SIAFU_DATA if it is there, and notes for the user."""
    name = canonical(name)
    files = _data_files()
    if name in files:
        return graph_from_npz(files[name])
    raise _not_here(name)


def canonical(name: str) -> str:
    """Return the name with dashes, in lower case; underscores mean the same."""
    return name.replace("_", "-").lower()


def data_folder() -> Path | None:
    """Return the folder of the user's own copies of data sets, or None when none is set."""
    text = os.environ.get("SIAFU_DATA")
    if not text:
        return None
    if not Path(text).is_dir():
        raise DataError(
            "SIAFU_DATA does not name a folder.",
            seen=f"SIAFU_DATA={text}",
            fix="set it to a folder of NAME.npz files, or unset it",
        )
    return Path(text)


def cache_folder() -> Path:
    """Return where downloads and stores made from tables are kept."""
    return Path(os.environ.get("SIAFU_CACHE") or Path.home() / ".cache" / "siafu")


def names_in_data_folder() -> list[str]:
    """Return the names that SIAFU_DATA offers."""
    return sorted(_data_files())


def _data_files() -> dict[str, Path]:
    folder = data_folder()
    return {} if folder is None else {canonical(p.stem): p for p in sorted(folder.glob("*.npz"))}


def _not_here(name: str) -> DataError:
    folder = data_folder()
    return DataError(
        f"The data set {name} is not here, and its public home offers pickles only.",
        seen=f"no {name}.npz in {folder}" if folder else "SIAFU_DATA is not set",
        fix=f"put {name}.npz (edge_index, x, y, masks) into a folder and set SIAFU_DATA to it",
    )
