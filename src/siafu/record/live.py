"""How far a run is, in a file of its own, for whoever watches it from another process."""

import json
import os
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from siafu.files import read_json
from siafu.record.phases import Clock

_EVERY_SECONDS = 1.0
_LEAST_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveState:
    """What a run was doing when it last told."""

    at: float
    """Seconds since 1970."""
    what: str
    share: float | None = None
    """Of all that is to be done."""
    left: float | None = None
    """Seconds, as they were then."""
    bound: str = ""
    """Stands before the time left."""


class LiveFile:
    """Keeps a file up to date, at most every second; new words are written at once.

    A run is not lost for want of it: what can't be written is left out.
    """

    def __init__(self, path: Path, clock: Clock = time.time) -> None:
        self._path, self._clock = path, clock
        self._last, self._words, self._known = 0.0, "", set[str]()

    def tell(self, what: str, share: float | None, left: float | None, bound: str) -> None:
        """Note what is done now."""
        now, words = self._clock(), re.sub(r"[\d,]+", "", what)
        wait = 0.0 if words not in self._known else _LEAST_SECONDS
        if now - self._last < (_EVERY_SECONDS if words == self._words else wait):
            return
        self._last, self._words = now, words
        self._known.add(words)
        state = LiveState(at=now, what=what, share=share, left=left, bound=bound)
        beside = self._path.with_suffix(".tmp")
        try:
            beside.write_text(json.dumps(asdict(state)) + "\n")
            os.replace(beside, self._path)
        except OSError:
            beside.unlink(missing_ok=True)


def read_live(path: Path) -> LiveState | None:
    """Return what a run told last; None where it told nothing, or nothing that can be read."""
    try:
        said = read_json(path)
        numbers = {name: said[name] for name in ("share", "left")}
        known = {name: None if one is None else float(one) for name, one in numbers.items()}
        at, what, bound = float(said["at"]), str(said["what"]), str(said["bound"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return LiveState(at=at, what=what, bound=bound, **known)
