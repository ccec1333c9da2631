"""Folders of siafu's that are damaged on purpose, with manifests that are right about it."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from siafu.graph.manifest import ArrayEntry, fingerprint


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return what a manifest says."""
    return json.loads((folder / "manifest.json").read_text())


def edit_manifest(
    folder: Path, edit: Callable[[dict[str, Any]], None], *, seal: bool = True
) -> None:
    """Change a manifest; `seal` makes its fingerprint right again."""
    said = read_manifest(folder)
    edit(said)
    if seal:
        arrays = {name: ArrayEntry(**row) for name, row in said["arrays"].items()}
        kind = said["format"].removeprefix("siafu-")
        said["fingerprint"] = fingerprint(kind, said["version"], arrays, said["facts"])
    (folder / "manifest.json").write_text(json.dumps(said))


def put_array(folder: Path, name: str, array: np.ndarray) -> None:
    """Put another array into a folder, its manifest made to match."""
    np.save(folder / f"{name}.npy", array)
    sha256 = hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
    row = {"shape": list(array.shape), "dtype": array.dtype.str, "sha256": sha256}
    edit_manifest(folder, lambda said: said["arrays"].update({name: row}))


def change_array(folder: Path, name: str, at: Any, value: Any) -> None:
    """Set one number of an array, with the right checksum."""
    array = np.load(folder / f"{name}.npy")
    array[at] = value
    put_array(folder, name, array)
