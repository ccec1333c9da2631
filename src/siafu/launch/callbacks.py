"""A function of the caller's after every epoch, wherever the ranks are.

Ranks of their own write their record and wait for an answer, which the caller's process gives from
its main thread: training stops after the same epoch as it would on one process.
"""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from siafu.files import write_text_atomically
from siafu.record import RunFolder

OnEpoch = Callable[[int, dict[str, Any]], bool | None]
"""Called with the epoch, from 1, and its metrics; True ends the training after it."""
_POLL_SECONDS = 0.005


def told_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of metrics as callbacks get it: loss, seconds and the score of each split.

    Of several scores, the first is the one that counts; all are there by split and name.
    """
    told = {"loss": row["loss"], "seconds": row["seconds"]}
    for split, scores in row.get("scores", {}).items():
        told |= {f"{split}_{name}": value for name, value in scores.items()}
        told[split] = next(iter(scores.values()), None)
    return told | row.get("score", {})


class Answering:
    """The caller's side: reads what the ranks have recorded, and answers."""

    def __init__(self, folder: RunFolder, on_epoch: OnEpoch) -> None:
        self._folder, self._on_epoch = folder, on_epoch
        self._size, self._seen = 0, folder.read_metrics()  # before it was resumed

    def __call__(self) -> None:
        """Answer for epochs that were not yet."""
        metrics = self._folder.metrics
        size = metrics.stat().st_size if metrics.exists() else 0
        if size == self._size:
            return
        self._size = size
        rows, seen = self._folder.read_metrics(), self._seen
        self._seen = rows
        # Ranks that go on with an older checkpoint have dropped some and write them again.
        pairs = enumerate(zip(rows, seen, strict=False))
        alike = next((k for k, (now, then) in pairs if now != then), min(len(rows), len(seen)))
        for row in rows[alike:]:
            stops = bool(self._on_epoch(row["epoch"], told_of(row)))
            text = json.dumps({"epoch": row["epoch"], "stops": stops})
            write_text_atomically(_answer(self._folder), text)

    def close(self) -> None:
        """Leave nothing behind."""
        _answer(self._folder).unlink(missing_ok=True)


def await_answer(folder: RunFolder, epoch: int, most_seconds: float) -> bool:
    """Return, on rank 0, whether the caller has had enough after this epoch."""
    latest = time.monotonic() + most_seconds
    while time.monotonic() < latest:
        with suppress(FileNotFoundError):
            answer = json.loads(_answer(folder).read_text())
            if answer["epoch"] == epoch:
                return bool(answer["stops"])
        time.sleep(_POLL_SECONDS)
    return False  # other ranks have given up by now, and say so


def _answer(folder: RunFolder) -> Path:
    return folder.path / ".answer.json"
