"""What a folder's `manifest.json` may say: its kind and version, its arrays, its facts.

Facts and arrays are under one fingerprint, so that no edit or flipped bit goes unnoticed.
"""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from siafu.errors import StoreError
from siafu.files import read_json

MANIFEST = "manifest.json"
VERSIONS = {"store": 2, "parts": 2, "part": 2, "links": 2, "dynamic": 2, "checkpoint": 2}
"""The version that is written of each kind; older ones are read too.

1 had a fingerprint of checksums and facts alone; from 2 on it covers kind, shapes and dtypes too.
"""
MOST_ROWS = 1 << 48
_PREFIX = "siafu-"
_SHA256 = r"^[0-9a-f]{64}$"

Dtype = Literal[
    "|b1",
    "|i1",
    "<i2",
    "<i4",
    "<i8",
    "|u1",
    "<u2",
    "<u4",
    "<u8",
    "<f2",
    "<f4",
    "<f8",
    "<c8",
    "<c16",
]


class ArrayEntry(BaseModel):
    """What the manifest says about one array."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    shape: Annotated[
        tuple[Annotated[int, Field(ge=0, le=MOST_ROWS)], ...],
        Field(min_length=1, max_length=32, strict=False),
    ]
    dtype: Dtype
    sha256: Annotated[str, Field(pattern=_SHA256)]


class Manifest(BaseModel):
    """All that a manifest says; what the facts of a kind are, its reader checks."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    format: str
    version: int
    fingerprint: Annotated[str, Field(pattern=_SHA256)]
    facts: dict[str, Any]
    # A name is one of a file in the folder: never a path.
    arrays: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$")], ArrayEntry]


def make_manifest(kind: str, arrays: dict[str, ArrayEntry], facts: dict[str, Any]) -> Manifest:
    """Return the manifest of a folder that is written now."""
    facts = json.loads(json.dumps(facts))  # as a reader will find them
    version = VERSIONS[kind]
    return Manifest(
        format=_PREFIX + kind,
        version=version,
        fingerprint=fingerprint(kind, version, arrays, facts),
        facts=facts,
        arrays=dict(sorted(arrays.items())),
    )


def fingerprint(
    kind: str, version: int, arrays: dict[str, ArrayEntry], facts: dict[str, Any]
) -> str:
    """Return one hash over all contents, so that two folders of one graph can be told apart."""
    said: list[Any]
    if version == 1:
        said = [sorted((name, entry.sha256) for name, entry in arrays.items()), facts]
    else:
        rows = {name: entry.model_dump(mode="json") for name, entry in arrays.items()}
        said = [kind, version, rows, facts]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path, kind: str) -> Manifest:
    """Return the manifest of a folder, refusing one of another kind, a later version or damaged."""
    command = "ingest" if kind in ("store", "dynamic") else "partition"
    make = f"check the path, or make it with `siafu {command}`"
    file = folder / MANIFEST
    try:
        said = read_json(file, follow=False)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(f"No siafu {kind} there.", seen=str(folder), fix=make) from error
    except (OSError, ValueError) as error:
        raise damaged(file, str(error), kind=kind) from error
    found = said.get("format") if isinstance(said, dict) else None
    if found != _PREFIX + kind:
        raise StoreError(f"Not a siafu {kind}.", seen=f"{folder} holds {found!r}", fix=make)
    version, newest = said.get("version"), VERSIONS[kind]
    if version not in range(1, newest + 1) or not isinstance(version, int):
        raise StoreError(
            f"This {kind} was written by another version.",
            seen=f"format version {version}, this siafu reads 1 to {newest}",
            fix="make it again with this version",
        )
    try:
        manifest = Manifest.model_validate(said)
    except ValidationError as error:
        raise damaged(file, first_fault(error), kind=kind) from error
    _check_fingerprint(file, kind, manifest)
    return manifest


def _check_fingerprint(file: Path, kind: str, manifest: Manifest) -> None:
    found = fingerprint(kind, manifest.version, manifest.arrays, manifest.facts)
    if found != manifest.fingerprint:
        said = manifest.fingerprint
        seen = f"its contents have fingerprint {found[:12]}..., it says {said[:12]}..."
        raise damaged(file, f"wrong checksum: {seen}", kind=kind)


def manifest_kind(folder: Path) -> str | None:
    """Return the kind of siafu folder at `folder`, or None when it is no such folder."""
    try:
        found = read_json(folder / MANIFEST, follow=False)["format"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found.removeprefix(_PREFIX) if isinstance(found, str) else None


def first_fault(error: ValidationError) -> str:
    """Return where a model found the first fault, and which."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "all of it"
    shown = repr(first["input"])
    missing = first["type"] == "missing"
    return f"{where}: {first['msg']}" + ("" if missing else f" (it is {shown[:60]})")


_REMEDIES = {
    "store": "make {folder!r} again from its source (siafu ingest)",
    "dynamic": "make {folder!r} again from its events (siafu train)",
    "checkpoint": "remove {path}; `siafu train --resume` goes on from the checkpoint before it",
}


def damaged(file: Path, seen: str, *, kind: str = "") -> StoreError:
    """Return the error that names a file of a folder and what is wrong with it."""
    usual = "make {folder!r} again from its source (siafu ingest, siafu partition)"
    fix = _REMEDIES.get(kind, usual).format(folder=file.parent.name, path=file.parent)
    return StoreError(f"{file.name} is damaged.", seen=f"{file}: {seen}", fix=fix)
