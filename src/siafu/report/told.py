"""What a run folder tells, as far as it can be read: a run that was killed has its page too."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from siafu.errors import StoreError
from siafu.files import read_json, read_mapping
from siafu.graph import Schema, folder_kind
from siafu.partitioning import Quality, open_parts
from siafu.record import RunFolder
from siafu.record.units import PLAIN

Found = TypeVar("Found")
_MOST_SCHEMA_BYTES = 1 << 26


@dataclass(frozen=True, kw_only=True, slots=True)
class ToldRun:
    """One run, in the words of its files."""

    path: Path
    settings: dict[str, Any]
    rows: list[dict[str, Any]]
    """Of each epoch."""
    damaged: int
    """Lines of metrics that can't be read."""
    result: dict[str, Any] = field(default_factory=dict)
    """Empty where the run did not come to its end."""
    failure: dict[str, str] = field(default_factory=dict)
    """Problem, seen and fix of what ended it."""
    warnings: list[str] = field(default_factory=list)
    """What its user was warned of: ranks that were lost too."""
    machine: dict[str, Any] = field(default_factory=dict)
    forecast: dict[str, Any] = field(default_factory=dict)
    """What was predicted before it began; empty for what no plan is made for."""
    quality: Quality | None = None
    """Of the cut, where its parts are still there."""
    columns: list[str] = field(default_factory=list)
    """Of the table of nodes, those the model was given."""
    edge_columns: list[str] = field(default_factory=list)
    """Of the table of edges, likewise."""

    @property
    def name(self) -> str:
        """What it is called in a comparison."""
        return self.path.name

    @property
    def state(self) -> str:
        """How it ended, in a word or two."""
        if self.result:
            return "finished"
        return "failed" if self.failure else "not finished"

    @property
    def metric(self) -> str:
        """The score that counts."""
        return str(self.result.get("metric") or self.settings.get("metric") or "score")

    @property
    def ranks(self) -> int:
        """Processes that trained."""
        return int(self.result.get("ranks") or self.settings.get("ranks") or 1)

    @property
    def scores(self) -> dict[str, float]:
        """The best, or the last that were told, by split."""
        if self.result:
            return dict(self.result.get("score", {}))
        return next((found for row in reversed(self.rows) if (found := scores_of(row))), {})

    @property
    def is_share(self) -> bool:
        """Whether its score is a share, shown in percent."""
        return self.metric.lower() not in PLAIN


def scores_of(row: dict[str, Any]) -> dict[str, float]:
    """Return the scores of an epoch by split; empty where it was not scored."""
    if isinstance(found := row.get("score"), dict):
        return {name: value for name, value in found.items() if _is_number(value)}
    if isinstance(found := row.get("scores"), dict):
        firsts = {name: next(iter(of.values())) for name, of in found.items() if of}
        return {name: value for name, value in firsts.items() if _is_number(value)}
    return {}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def read_told(path: Path) -> ToldRun:
    """Return what the folder of a run tells; only one that is no run at all is refused."""
    folder = RunFolder(path)
    if not folder.config.exists():
        raise StoreError("No run is there.", seen=str(path), fix="name the folder of a run")
    rows, damaged = folder.read_metrics_and_damage()
    return ToldRun(
        path=path,
        settings=_or({}, lambda: read_mapping(folder.config)),
        rows=rows,
        damaged=damaged,
        result=_or({}, lambda: _whole(folder.read_result())),
        failure=_or({}, lambda: _mapping(read_json(folder.failure))),
        warnings=folder.read_warnings(),
        machine=_or({}, lambda: _mapping(read_json(folder.path / "environment.json"))),
        forecast=_or({}, lambda: _mapping(read_json(folder.forecast))),
        quality=_or(None, lambda: _quality(folder)),
        columns=_or([], lambda: _columns(folder, "nodes")),
        edge_columns=_or([], lambda: _columns(folder, "edges")),
    )


def _mapping(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise TypeError("no mapping")
    return found


def _whole(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result that tells what every result does."""
    return {**result, "epochs": int(result["epochs"]), "best_epoch": int(result["best_epoch"])}


def _or(other: Found, read: Callable[[], Found]) -> Found:
    """Return what is read, or the other where a file is missing or damaged."""
    try:
        return read()
    except (OSError, ValueError, KeyError, TypeError, StoreError):
        return other


def _quality(folder: RunFolder) -> Quality | None:
    parts = Path(str(_mapping(read_json(folder.job))["parts"]))
    return open_parts(parts).quality if folder_kind(parts) == "parts" else None


def _columns(folder: RunFolder, group: str) -> list[str]:
    schema = Schema.from_dict(read_mapping(folder.schema, most_bytes=_MOST_SCHEMA_BYTES))
    return [one.name for one in getattr(schema, group) if one.is_written or one.is_flagged]
