"""Runs as rows: what each came to, its state, and the settings by which runs differ."""

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from siafu.config import make_config, read_run_config
from siafu.errors import ConfigError, SiafuError, StoreError
from siafu.files import is_locked
from siafu.graph import folder_kind
from siafu.ingest import frames_named
from siafu.record import LOWER_IS_BETTER, RunFolder, suggestion
from siafu.strategy import AUTO

Scores = dict[str, dict[str, float]]
"""By split and name; the score that counts comes first."""
_OF_ITS_OWN = ("data", "model", "ranks", "out", "strategy")
_SPLITS = ("test", "val", "train")
BY_NUMBER = ("seconds", "epochs", "loss")
SORTS = ("time", "name", *BY_NUMBER)
"""What runs are sorted by beside scores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """One run, whatever state it is in."""

    run: str
    path: str
    state: str
    """finished, running, unfinished, failed or damaged, and why."""
    finished: bool = False
    begun: float = 0.0
    """Seconds since 1970."""
    data: str = ""
    model: str = ""
    strategy: str = ""
    ranks: int = 0
    epochs: int = 0
    best_epoch: int | None = None
    metric: str = ""
    scores: Scores = field(default_factory=dict)
    loss: float | None = None
    seconds: float | None = None
    """Of all phases, of all processes that worked on it."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Those that are not the defaults of the model."""

    def score(self, name: str) -> tuple[str, float] | None:
        """Return the name and value of a score: a split's, or by its own name of the first split
        that has it; None where the run has none."""
        if name in self.scores:
            return next(iter(self.scores[name].items()), None)
        found = [self.scores[s][name] for s in _SPLITS if name in self.scores.get(s, {})]
        return (name, found[0]) if found else None

    def to_json(self) -> dict[str, Any]:
        """Return what is known, by name."""
        return asdict(self)


def runs_in(path: Path) -> list[RunFolder]:
    """Return the runs in a folder, or the folder itself where it is one; by name."""
    if looks_like_run(path):
        return [RunFolder(path)]
    if not path.is_dir() or folder_kind(path) is not None:
        return []
    return [RunFolder(child) for child in sorted(path.iterdir()) if looks_like_run(child)]


def newest_run(folder: Path) -> Path:
    """Return the run of a folder that was begun last; raise where there is none."""
    found = runs_in(folder)
    if not found:
        raise _none_there(folder)
    return max(found, key=_begun).path


def looks_like_run(path: Path) -> bool:
    """Return whether a folder holds what a run writes, be some of it lost."""
    run = RunFolder(path)
    return path.is_dir() and any(file.exists() for file in (run.config, run.metrics, run.result))


def summary_of(run: RunFolder, rows: list[dict[str, Any]] | None = None) -> RunSummary:
    """Return what a run folder tells; what can't be read makes it a damaged one.

    `rows` are those of its metrics, where they were read already.
    """
    told: dict[str, Any] = {"run": run.path.name, "path": str(run.path), "begun": _begun(run)}
    try:
        told |= _settings(run)
        told |= _so_far(run, run.read_metrics() if rows is None else rows)
        told |= _result(run) if run.result.exists() else {}
    except SiafuError as error:
        return RunSummary(**told, state=f"damaged: {error.problem.rstrip('.')}")
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        return RunSummary(**told, state=f"damaged: {type(error).__name__} {error}")
    return RunSummary(**told, state=_state(run, told["epochs"]), finished=run.is_finished)


def _begun(run: RunFolder) -> float:
    files = [file for file in (run.config, run.metrics, run.result) if file.exists()]
    return run.first_phase() or min(file.stat().st_mtime for file in files)


def _state(run: RunFolder, epochs: int) -> str:
    if run.is_finished:
        return "finished"
    if is_locked(run.path / "lock"):
        return "running"
    if problem := run.read_failure():
        return f"failed: {problem}"
    return "unfinished" if epochs else "unfinished, before its first epoch"


def asked_settings(run: RunFolder) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return all settings of a run, and those that are not the defaults of its model."""
    config = make_config(**read_run_config(run.config))
    plain = make_config(data=config.data, model=config.model).resolved()
    named = config.model_dump(exclude_none=True)
    asked = {
        name: value
        for name, value in named.items()
        # A strategy may be the one that was taken unasked.
        if value != getattr(plain, name) and name not in ("data", "model", "strategy")
    }
    return named, asked


def _settings(run: RunFolder) -> dict[str, Any]:
    named, asked = asked_settings(run)
    own = {name: _shown(named.get(name) or "") for name in ("data", "model", "strategy")}
    own["strategy"] = "" if own["strategy"] == AUTO else own["strategy"]  # over time there is none
    settings = {name: _shown(value) for name, value in asked.items() if name not in _OF_ITS_OWN}
    return {**own, "ranks": int(named.get("ranks", 1)), "settings": settings}


def _shown(value: Any) -> Any:
    return frames_named(value) if isinstance(value, str) else value


def _so_far(run: RunFolder, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the rows of metrics tell of a run that may still go on."""
    phases = run.read_phases()
    seconds = sum(phases.values()) or math.fsum(row.get("seconds", 0.0) for row in rows)
    told: dict[str, Any] = {"epochs": len(rows), "seconds": seconds if rows or phases else None}
    if rows:
        told["loss"] = float(rows[-1]["loss"])
    scored = [row for row in rows if "score" in row or "scores" in row]
    if scored:
        told["scores"] = _scores(scored[-1], scored[-1].get("metric", "accuracy"))
        told["metric"] = next(iter(next(iter(told["scores"].values()), {})), "")
    return told


def _result(run: RunFolder) -> dict[str, Any]:
    result = run.read_result()
    metric = str(result["metric"])
    return {
        "epochs": int(result["epochs"]),
        "best_epoch": int(result["best_epoch"]),
        "metric": metric,
        "scores": _scores(result, metric),
        "loss": float(result["losses"][-1]),
    }


def _scores(row: dict[str, Any], metric: str) -> Scores:
    """Return scores by split and name, of a result or of a row of metrics."""
    details = row.get("scores") or {}
    scores: Scores = {}
    for split, value in (row.get("score") or {}).items():
        scores[split] = {metric: float(value)}
    for split, found in details.items():
        known = scores.setdefault(split, {})
        numbers = {name: v for name, v in found.items() if isinstance(v, int | float)}
        scores[split] = known | {name: float(v) for name, v in numbers.items()}
    return scores


def differing_settings(runs: list[RunSummary]) -> list[str]:
    """Return the settings in which runs differ, those that most runs name first."""
    counts: dict[str, int] = {}
    for name in (name for run in runs for name in run.settings):
        counts[name] = counts.get(name, 0) + 1
    differ = [name for name in counts if len({repr(run.settings.get(name)) for run in runs}) > 1]
    return sorted(differ, key=lambda name: (-counts[name], name))


def sorted_runs(runs: list[RunSummary], by: str) -> list[RunSummary]:
    """Return runs by time (newest last), name, a number (least first) or a score (best first).

    Those that lack it come last. Runs scored by different metrics can't be compared: those of the
    metric that most runs have come first.
    """
    if by == "time":
        return sorted(runs, key=lambda run: run.begun)
    if by == "name":
        return sorted(runs, key=lambda run: run.run)
    if by in BY_NUMBER:
        return sorted(runs, key=lambda run: _least_first(getattr(run, by)))
    known = {name for run in runs for split in run.scores for name in run.scores[split]}
    known |= {split for run in runs for split in run.scores}
    if runs and by not in known:
        names = [*SORTS, *sorted(known)]
        raise ConfigError(
            "Runs can't be sorted by that.",
            seen=f"--sort {by}",
            fix=f"{suggestion(by, names)}use one of: {', '.join(names)}",
        )
    counts = Counter(found[0] for run in runs if (found := run.score(by)) is not None)
    place = {name: number for number, (name, _) in enumerate(counts.most_common())}

    def rank(run: RunSummary) -> tuple[float, float]:
        found = run.score(by)
        return (math.inf, 0.0) if found is None else (place[found[0]], _best_first(*found))

    return sorted(runs, key=rank)


def _least_first(value: float | None) -> float:
    return math.inf if value is None or math.isnan(value) else value


def _best_first(name: str, value: float) -> float:
    if math.isnan(value):
        return math.inf
    return value if name in LOWER_IS_BETTER else -value


def list_runs(path: Path, sort: str = "time") -> list[RunSummary]:
    """Return all runs of a folder, sorted; raise where there is none."""
    found = [summary_of(run) for run in runs_in(path)]
    if not found:
        raise _none_there(path)
    return sorted_runs(found, sort)


def _none_there(path: Path) -> StoreError:
    return StoreError(
        "No runs there.", seen=str(path), fix="name a folder that holds what train wrote"
    )
