"""The folder of a run: config, environment, metrics, weights, predictions, checkpoints, result."""

import json
import os
import platform
import shlex
import shutil
import sys
import time
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from siafu.errors import SiafuError, StoreError
from siafu.files import (
    read_json,
    read_regular,
    read_text,
    sync_file,
    sync_folder,
    write_text_atomically,
)
from siafu.memory import total_bytes

_PACKAGES = ("siafu", "torch", "numpy", "numba", "pyarrow", "torch_geometric", "pymetis", "triton")

_MOST_METRICS_BYTES = 1 << 34


class RunFolder:
    """Names of the files of a run, and the writing of its small ones."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.environment = path / "environment.json"
        self.job = path / "job.json"
        self.metrics = path / "metrics.jsonl"
        self.phases = path / "phases.jsonl"
        self.live = path / "live.json"
        self.warnings = path / "warnings.txt"
        self.weights = path / "weights.safetensors"
        self.predictions = path / "predictions"
        self.inference = path / "inference"
        self.checkpoints = path / "checkpoints"
        self.parts = path / "data.parts"
        self.result = path / "result.json"
        self.schema = path / "schema.yaml"
        self.failure = path / "failure.json"
        self.report = path / "report.html"
        self.forecast = path / "forecast.json"

    @classmethod
    def create(cls, path: Path | None, name: str) -> "RunFolder":
        """Return a new, empty run folder: `path`, or the next free number under runs/."""
        try:
            if path is not None:
                # A kill may have left it empty; a folder with anything inside is not ours to fill.
                path.mkdir(parents=True, exist_ok=path.is_dir() and not any(path.iterdir()))
                sync_folder(path.parent)
                return cls(path)
            parent = Path("runs")
            parent.mkdir(exist_ok=True)
            for number in range(1, 1_000_000):
                candidate = parent / f"{name}-{number:03d}"
                try:
                    candidate.mkdir()
                except FileExistsError:
                    continue
                return cls(candidate)
        except FileExistsError as error:
            assert path is not None, "free names are looked for elsewhere"
            raise _taken(cls(path)) from error
        except OSError as error:
            raise StoreError(
                "The run folder can't be made.",
                seen=f"{error.strerror}: {path or Path('runs').absolute()}",
                fix="name a folder you may write to with --out",
            ) from error
        raise AssertionError("a million runs of one name")

    @property
    def is_finished(self) -> bool:
        """Whether the run has come to its end: weights and result come before predictions."""
        is_written = self.weights.exists() and self.result.exists()
        return is_written and (self.predictions.exists() or not self._predicts())

    def _predicts(self) -> bool:
        try:
            return "inference: none" not in read_text(self.config).splitlines()
        except (OSError, ValueError):
            return True

    def discard(self) -> None:
        """Remove the folder, and `runs/` where nothing else is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.path.parent == Path("runs"):
            with suppress(OSError):
                self.path.parent.rmdir()

    def write_environment(self) -> None:
        """Write what the run runs on, to explain its figures later."""
        text = json.dumps(environment(), indent=1)
        write_text_atomically(self.environment, text + "\n")

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Append one row; each is a complete line, so a killed run leaves readable metrics."""
        with self.metrics.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the rows written so far; a line that was cut short or damaged is not one."""
        return self.read_metrics_and_damage()[0]

    def read_metrics_and_damage(self) -> tuple[list[dict[str, Any]], int]:
        """Return the rows written so far, and how many lines can't be read."""
        try:
            raw = read_regular(self.metrics, most_bytes=_MOST_METRICS_BYTES)
        except FileNotFoundError:
            return [], 0
        except (OSError, ValueError) as error:
            raise _unreadable(self.metrics, str(error)) from error
        lines = raw.splitlines(keepends=True)
        found = [_row(line) if line.endswith(b"\n") else None for line in lines]
        rows = [_with_score(row) for row in found if row is not None]
        return rows, len(found) - len(rows)

    def note_failure(self, error: SiafuError | None) -> None:
        """Write what ended the run, for its report; None takes an earlier one back."""
        if error is None:
            self.failure.unlink(missing_ok=True)
            return
        told = {"problem": error.problem, "seen": error.seen, "fix": error.fix}
        with suppress(OSError):  # the disk may be what has failed
            write_text_atomically(self.failure, json.dumps(told, indent=1) + "\n")

    def keep_metrics(self, epochs: int) -> None:
        """Drop rows after the first `epochs`: a resumed run writes them again."""
        rows = [row for row in self.read_metrics() if row["epoch"] <= epochs]
        write_text_atomically(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))

    def note_phases(self, seconds: dict[str, float]) -> None:
        """Append what phases took, and that it is now: the ranks go on from there."""
        row = {"at": time.time(), "seconds": {name: round(s, 4) for name, s in seconds.items()}}
        with self.phases.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def note_warning(self, line: str) -> None:
        """Append what a user was warned of."""
        with self.warnings.open("a") as file:
            file.write(line + "\n")

    def read_warnings(self) -> list[str]:
        """Return what the user was warned of, each once."""
        try:
            return list(dict.fromkeys(read_text(self.warnings).splitlines()))
        except (OSError, ValueError):
            return []

    def read_phases(self) -> dict[str, float]:
        """Return the seconds of each phase, of all processes that worked on the run."""
        total: dict[str, float] = {}
        for row in self._phase_rows():
            for name, seconds in row["seconds"].items():
                total[name] = total.get(name, 0.0) + seconds
        return total

    def last_phase(self) -> tuple[float, float]:
        """Return when the last process noted its phases, and the seconds these took."""
        rows = self._phase_rows() or [{"at": time.time(), "seconds": {}}]
        return rows[-1]["at"], sum(rows[-1]["seconds"].values())

    def first_phase(self) -> float | None:
        """Return when the first process noted its phases."""
        rows = self._phase_rows()
        return rows[0]["at"] - sum(rows[0]["seconds"].values()) if rows else None

    def read_failure(self) -> str:
        """Return what ended the run, in words; nothing where no failure was noted."""
        try:
            return str(read_json(self.failure)["problem"]).rstrip(".")
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def _phase_rows(self) -> list[dict[str, Any]]:
        try:
            rows = [json.loads(line) for line in read_text(self.phases).splitlines()]
            return [_checked_phases(row) for row in rows]
        except (OSError, ValueError):  # none, or damaged: times are no reason to stop
            return []

    def write_result(self, result: dict[str, Any]) -> None:
        """Write the summary at once, after the metrics it sums up are on the disk."""
        if self.metrics.exists():
            sync_file(self.metrics)
        write_text_atomically(self.result, json.dumps(result, indent=1) + "\n")

    def read_result(self) -> dict[str, Any]:
        """Return the summary of a run that ended."""
        try:
            result = read_json(self.result)
        except (OSError, ValueError) as error:
            raise _unreadable(self.result, str(error)) from error
        if not isinstance(result, dict):
            raise _unreadable(self.result, "no summary of a run")
        result, phases = _with_score(result), self.read_phases()
        return {**result, "phases": phases} if phases else result

    def read_job(self) -> str:
        """Return the text of what the ranks were last asked to do."""
        try:
            return read_text(self.job)
        except (OSError, ValueError) as error:
            raise _unreadable(self.job, str(error)) from error


def _with_score(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row or a summary by the names of now: a score was called accuracy once."""
    return {"score" if name == "accuracy" else name: value for name, value in row.items()}


def _unreadable(file: Path, seen: str) -> StoreError:
    return StoreError(
        f"{file.name} of the run can't be read.",
        seen=f"{file}: {seen}",
        fix="copy the run folder again, or start the run again in another one with --out",
    )


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:  # bytes that are no text, too
        return None
    is_row = isinstance(row, dict) and isinstance(row.get("epoch"), int)
    return row if is_row else None


def _checked_phases(row: Any) -> dict[str, Any]:
    try:
        seconds = {str(name): float(value) for name, value in row["seconds"].items()}
        return {"at": float(row["at"]), "seconds": seconds}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(row) from error


def _taken(folder: RunFolder) -> StoreError:
    """Return the error for a new run in a folder with something inside."""
    if not folder.config.exists():
        return StoreError(
            "The run folder exists already, and holds no run to go on with.",
            seen=str(folder.path),
            fix="name another with --out, or remove it",
        )
    go_on = f"go on with `siafu train --resume {shlex.quote(str(folder.path))}`"
    return StoreError(
        "The run folder exists already.",
        seen=f"{folder.path}, a run that is {'finished' if folder.is_finished else 'not finished'}",
        fix=f"name another with --out{'' if folder.is_finished else f', or {go_on}'}",
    )


def environment() -> dict[str, Any]:
    """Return versions and machine facts."""
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "memory_gib": round(total_bytes() / 2**30, 1),
        "packages": {name: version for name in _PACKAGES if (version := installed(name))},
    }


@cache
def installed(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
