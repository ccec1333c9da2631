"""Rows of a pass over all nodes in files that outlast their process, so that another goes on.

A pass that is killed leaves each layer's rows and how many of its pieces are in them. They are
taken up by a pass that would compute the same bytes: a key of all that these depend on says so.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch

from siafu.comm import World, tell
from siafu.files import LockedError, locked, read_json, write_text_atomically
from siafu.shard import ScratchRows

ROWS = "rows"
"""The name of what a layer makes; others are the caller's."""
_LOCK = "lock"


class Keeper:
    """A rank's folder for the layers of one pass, its own until it is discarded."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._held = folder, ExitStack()
        self._is_held: bool | None = None

    def holds(self) -> bool:
        """Return whether the folder can be written and is no other process's."""
        if self._is_held is None:
            self._is_held = False
            with suppress(OSError, LockedError):
                self._folder.mkdir(parents=True, exist_ok=True)
                self._held.enter_context(locked(self._folder / _LOCK))
                self._is_held = True
        return self._is_held

    def layer(self, number: int, key: str) -> "KeptRows":
        """Return what is kept of a layer; `key` names all that its rows depend on."""
        assert self._is_held, "asked for before"
        return KeptRows(self._folder / f"layer{number}", key)

    def discard(self) -> None:
        """Remove the folder: what came of the pass is written elsewhere."""
        if self._is_held:
            self._held.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            with suppress(OSError):  # others' are still there
                self._folder.parent.rmdir()
        self._is_held = None


class KeptRows:
    """One layer's rows, and how many of its pieces they have."""

    def __init__(self, folder: Path, key: str) -> None:
        self._folder, self.key = folder, key
        self._state, self._open = folder / "state.json", dict[str, ScratchRows]()

    def begin(self, spans: Iterable[tuple[int, int]], channel: World) -> int:
        """Return how many pieces there are already; all ranks call this together.

        Rows of other pieces may round otherwise, on any rank: then all begin anew.
        """
        mine = digest_of(self.key.encode(), repr(list(spans)).encode())
        told = tell([float(int(mine[:12], 16))], channel, "control")
        self.key = digest_of(self.key.encode(), repr(told).encode())
        try:
            state = read_json(self._state)
            if state["key"] == self.key:
                for name, (shape, kind) in state["rows"].items():
                    self._open[name] = self._opened(name, tuple(shape), getattr(torch, kind))
                return int(state["pieces"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self._open.clear()
        # First the state; whoever has the old rows open still reads those.
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        return 0

    def found(self, name: str) -> ScratchRows | None:
        """Return rows that were begun, here or before."""
        return self._open.get(name)

    def new(self, name: str, shape: tuple[int, ...], kind: torch.dtype) -> ScratchRows:
        """Return rows to be written."""
        self._open[name] = ScratchRows(shape, kind, self._folder / name)
        return self._open[name]

    def note(self, pieces: int) -> None:
        """Have so many pieces be found by the next pass; their rows are on the disk before."""
        for rows in self._open.values():
            rows.sync()
        rows_of = {name: (rows.shape, _kind(rows)) for name, rows in self._open.items()}
        state: dict[str, Any] = {"key": self.key, "pieces": pieces, "rows": rows_of}
        write_text_atomically(self._state, json.dumps(state))

    def _opened(self, name: str, shape: tuple[int, ...], kind: torch.dtype) -> ScratchRows:
        path = self._folder / Path(name).name
        size = os.stat(path, follow_symlinks=False).st_size
        rows = ScratchRows(shape, kind, path)
        if size != max(1, rows.array.size) * kind.itemsize:
            raise ValueError(f"{size} bytes")
        return rows


def digest_of(*parts: bytes | memoryview) -> str:
    """Return one hash of several values in turn."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _kind(rows: ScratchRows) -> str:
    return str(rows.dtype).removeprefix("torch.")
