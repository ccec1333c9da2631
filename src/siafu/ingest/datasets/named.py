"""Public data sets by name: from the folder SIAFU_DATA, else from their public home.

The only reader of the environment variables SIAFU_DATA and SIAFU_CACHE.
"""

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from siafu.errors import DataError
from siafu.files import cache_folder
from siafu.graph import Graph, folder_kind, load_store, rows_to_sum_one
from siafu.ingest.datasets.download import fetch, unpack_archive
from siafu.ingest.formats.npz import graph_from_npz
from siafu.ingest.formats.ogb import build_ogb_store, find_ogb
from siafu.ingest.tables.options import TableOptions
from siafu.record import Progress


@dataclass(frozen=True, slots=True)
class Home:
    """Where a data set is published without pickles."""

    url: str
    sha256: str | None = None
    """None: no sum is published, so the first download's own sum is kept and checked later."""
    undirected: bool = False
    """The archive has each edge once, and the official loader adds the reverse."""


_OGB = "https://snap.stanford.edu/ogb/data/nodeproppred"

NAMED: dict[str, Home | None] = {
    "cora": None,
    "citeseer": None,
    "pubmed": None,
    "ogbn-arxiv": Home(f"{_OGB}/arxiv.zip"),
    "ogbn-products": Home(f"{_OGB}/products.zip", undirected=True),
}
"""Public data sets; None where the public home offers pickles only, which are never read."""


WORD_COUNTS = frozenset({"cora", "citeseer", "pubmed"})
"""Sets whose published results (Kipf and Welling 2017 onwards) all scale rows to sum to 1."""


def load_named(name: str, progress: Progress | None = None) -> tuple[Graph, list[str]]:
    """Return the data set, from SIAFU_DATA if it is there, and notes for the user."""
    name = canonical(name)
    files = data_files()
    if name in files:
        graph, notes = graph_from_npz(files[name])
        if name not in WORD_COUNTS or graph.x is None:
            return graph, notes
        note = f"Feature rows of {name} are scaled to sum to 1, as in its published results."
        return replace(graph, x=rows_to_sum_one(graph.x)), [*notes, note]
    home = NAMED.get(name)
    if home is None:
        raise _not_here(name)
    store = cache_folder() / "named" / name
    if folder_kind(store) == "store":
        return load_store(store), []
    notes = _build(name, home, store, progress)
    return load_store(store), notes


def _build(name: str, home: Home, store: Path, progress: Progress | None) -> list[str]:
    """Write the store of a data set from its archive, which stays in the cache."""
    downloads = cache_folder() / "downloads"
    archive = fetch(home.url, downloads / f"{name}.zip", sha256=home.sha256, progress=progress)
    unpacked = downloads / name
    shutil.rmtree(unpacked, ignore_errors=True)
    try:
        unpack_archive(archive, unpacked)
        folder = find_ogb(unpacked)
        if folder is None:
            raise DataError(
                "The archive is not laid out as expected.",
                seen=f"{archive} without raw/edge.csv.gz",
                fix="delete it and download it again",
            )
        options = TableOptions(undirected=home.undirected)
        notes = build_ogb_store(folder, store, name=name, options=options, progress=progress)
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)
    added = ["Both directions of each edge were stored, as the official loader does."]
    return notes + (added if home.undirected else [])


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


def names_in_data_folder() -> list[str]:
    """Return the names that SIAFU_DATA offers."""
    return sorted(data_files())


def data_files() -> dict[str, Path]:
    """Return the files of SIAFU_DATA by the names of their data sets."""
    folder = data_folder()
    return {} if folder is None else {canonical(p.stem): p for p in sorted(folder.glob("*.npz"))}


def _not_here(name: str) -> DataError:
    folder = data_folder()
    return DataError(
        f"The data set {name} is not here, and its public home offers pickles only.",
        seen=f"no {name}.npz in {folder}" if folder else "SIAFU_DATA is not set",
        fix=f"put {name}.npz (edge_index, x, y, masks) into a folder and set SIAFU_DATA to it",
    )
