"""What the cache of stores and downloads holds, and emptying it."""

import os
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from siafu.errors import StoreError
from siafu.files import cache_folder
from siafu.graph import REMOTE, folder_kind, writing
from siafu.ingest.datasets.named import NAMED
from siafu.ingest.load import is_key

CUTS = "cuts"
"""Where notes lie of cuts that runs have."""
_NOTE = "[0-9a-f]{32}[.]json"
_REMOVED = ".removed"
_CONTENT = r"[0-9a-f]{16}|[.].*[.]removed"
"""Name of a folder with a table that was given in memory, by its content; or of one that goes."""
_COPY = r"(?:[.]?outgoing-)?[0-9a-f]{32}(?:[.]partial)?|[.].*[.](?:tmp|removed)"
"""Name of a copy of a folder that has a URL, or of one that is to be sent there."""
_PASSING = r"[.](.+)[.][0-9a-f]{8}[.](?:tmp|removed)"
"""Name of what is being made or removed; inside is the name that it gets or had."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A store or download in the cache, whole or half made."""

    path: Path
    num_bytes: int


def list_cache() -> list[Kept]:
    """Return what siafu put into the cache; anything else that lies there is passed over."""
    home = cache_folder()
    tables = [path for path in _inside(home / "tables") if is_key(_name_when_whole(path))]
    named = [path for path in _inside(home / "named") if _is_fetched(_name_when_whole(path))]
    stores = [path for path in [*tables, *named] if _is_store(path)]
    frames = [path for path in _inside(home / "frames") if re.fullmatch(_CONTENT, path.name)]
    downloads = [path for path in _inside(home / "downloads") if _is_download(path)]
    copies = [path for path in _inside(home / REMOTE) if re.fullmatch(_COPY, path.name)]
    notes = [path for path in _inside(home / CUTS) if re.fullmatch(_NOTE, _name_when_whole(path))]
    return [
        Kept(path, _bytes_below(path)) for path in [*stores, *frames, *downloads, *copies, *notes]
    ]


def empty_cache() -> list[Kept]:
    """Remove what siafu put into the cache and return it; raise while a process uses any of it.

    What is being removed has another name from the first moment, so that nobody takes it for whole.
    """
    held = list_cache()
    if users := processes_using([kept.path for kept in held]):
        raise StoreError(
            "The cache is in use.",
            seen=f"{cache_folder()} is read or written by process {', '.join(map(str, users))}",
            fix="wait for it to end, and empty the cache then",
        )
    with writing(cache_folder()):
        for kept in held:
            going = kept.path
            if not going.name.endswith(_REMOVED):
                name = f".{going.name}.{secrets.token_hex(4)}{_REMOVED}"
                going = going.rename(going.with_name(name))
            shutil.rmtree(going) if going.is_dir() else going.unlink()
    return held


def processes_using(paths: list[Path]) -> list[int]:
    """Return which other processes have files below open or mapped, as far as can be seen (Linux).

    Those of other users can't be looked into.
    """
    roots = [str(path.resolve()) for path in paths]
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) != os.getpid() and any(
            name == root or name.startswith(f"{root}/")
            for name in _files_of(process)
            for root in roots
        ):
            found.append(int(process.name))
    return sorted(found)


def _files_of(process: Path) -> set[str]:
    try:
        # address, rights, offset, device and inode come before the path, which may have spaces
        fields = [line.split(maxsplit=5) for line in (process / "maps").read_text().splitlines()]
        names = {words[5] for words in fields if len(words) == 6}
        for link in (process / "fd").iterdir():
            names.add(os.readlink(link))
    except OSError:  # it has ended meanwhile, or is another user's
        return set()
    return names


def _inside(folder: Path) -> list[Path]:
    """Return what lies in a folder, without links: these may lead anywhere."""
    if not folder.is_dir() or folder.is_symlink():
        return []
    return sorted(path for path in folder.iterdir() if not path.is_symlink())


def _is_store(path: Path) -> bool:
    half_made = path.name.endswith((".partial", ".tmp")) and (path / "lock").is_file()
    return folder_kind(path) == "store" or half_made or path.name.endswith(_REMOVED)


def _is_download(path: Path) -> bool:
    name = _name_when_whole(path)
    archive = name.removesuffix(".sha256") if name.endswith(".zip.sha256") else name
    return _is_fetched(archive.removesuffix(".zip"))


def _is_fetched(name: str) -> bool:
    """Return whether siafu itself fetches this data set; others are here only if a user's."""
    return NAMED.get(name) is not None


def _name_when_whole(path: Path) -> str:
    """Return the name without what marks things half made or half removed."""
    name = path.name
    while passing := re.fullmatch(_PASSING, name):
        name = passing[1]
    return name.removesuffix(".partial")


def _bytes_below(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.lstat().st_size for file in files)
