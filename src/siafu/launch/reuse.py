"""Cuts that former runs made of the same data, found again and used.

The cache holds a note per cut: which run has it. Its files are linked into the new run, so that
each run stays whole when another is removed, and nothing takes the disk twice. Another key comes
of any file, setting or version that changed; a folder that is no longer the one noted is not used.
"""

import hashlib
import json
import os
import shutil
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from siafu.files import read_json, replacing_folder, sync_folder, write_text_atomically
from siafu.graph import file_facts, folder_kind, partial_path
from siafu.graph.manifest import MANIFEST, VERSIONS
from siafu.ingest import CUTS, as_tables, cache_folder
from siafu.launch.cut import Say, SourceReading
from siafu.partitioning import Cut, open_parts
from siafu.record import counted, installed


def cut_key(data: Any, cut: Cut, reading: SourceReading) -> str | None:
    """Return what a cut of these files, as they are now, is noted by; None where nothing is."""
    root = _files_of(data)
    if root is None:
        return None
    nodes = reading.options.nodes
    try:
        files = file_facts(root, *([] if nodes is None else [Path(nodes)]))
    except OSError:  # a file went meanwhile; reading it tells better
        return None
    made_by = {"siafu": installed("siafu"), "parts": VERSIONS["parts"], "part": VERSIONS["part"]}
    text = json.dumps([files, asdict(cut), reading.facts(), made_by], default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _files_of(data: Any) -> Path | None:
    """Return where the files of a source are; what has a name, or is in memory, is made quickly."""
    if not isinstance(data, str | Path):
        return None
    path = Path(data)
    if folder_kind(path) == "store" or (path.suffix == ".npz" and path.is_file()):
        return path
    return as_tables(data)


def take_cut(key: str, target: Path, say: Say) -> bool:
    """Link a noted cut to `target` and return whether there was one."""
    former = _noted(key)
    if former is None or partial_path(target).exists():  # which goes on where it was
        return False
    try:
        with replacing_folder(target) as made:
            shutil.copytree(former, made, copy_function=_link, dirs_exist_ok=True)
            _check_same(made, former)
    except (OSError, shutil.Error):  # the other run was removed meanwhile, or the disk is full
        return False
    sync_folder(target.parent)
    parts = open_parts(target)
    counts = f"{counted(parts.num_parts, 'part')}, {parts.facts['method']}"
    say(f"Used the cut of {_shown(former.parent)}: the same data and settings ({counts}).")
    return True


def _check_same(made: Path, former: Path) -> None:
    if _digest(made) != _digest(former):
        raise OSError("it was changed meanwhile")


def _shown(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _link(source: str, target: str) -> None:
    """Give a file that never changes a second name; where disks have none, copy it."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(source, target)


def note_cut(key: str, parts: Path) -> None:
    """Note where a cut is; notes of cuts that are gone go."""
    home = cache_folder() / CUTS
    with suppress(OSError):  # a cache that can't be written to is no reason to fail
        home.mkdir(parents=True, exist_ok=True)
        note = {"parts": str(parts.absolute()), "digest": _digest(parts)}
        write_text_atomically(home / f"{key}.json", json.dumps(note) + "\n")
        for other in home.glob("*.json"):
            if _noted(other.stem) is None:
                other.unlink(missing_ok=True)


def _noted(key: str) -> Path | None:
    """Return the folder of a noted cut, where it is still the one that was noted."""
    try:
        note = read_json(cache_folder() / CUTS / f"{key}.json")
        parts = Path(note["parts"])
        return parts if _digest(parts) == note["digest"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _digest(parts: Path) -> str:
    """Return the hash of the manifests, which hold the checksums of all files."""
    manifests = sorted(parts.rglob(MANIFEST))
    if not manifests or manifests[0].parent != parts:
        raise FileNotFoundError(parts)
    content = b"".join(file.read_bytes() for file in manifests)
    return hashlib.sha256(content).hexdigest()
