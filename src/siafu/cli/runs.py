"""`siafu runs`: the runs of a folder side by side."""

import re
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from siafu.cli.show import out, print_json
from siafu.config import settings_of
from siafu.ingest.options import TableColumns
from siafu.launch.run_list import RunSummary, differing_settings, list_runs
from siafu.record import brief, shortened, shown_score

_MOST_SETTINGS = 6
_MOST_WIDTH = 10_000
_MOST_STATE = 40
_MOST_REASONS = 8
_MAY_BE_ALIKE = ("model", "data", "ranks", "metric", "state")


def runs(
    folder: Annotated[Path, typer.Argument(help="folder of runs, or one run")] = Path("runs"),
    sort: Annotated[
        str, typer.Option(help="time, name, seconds, epochs, loss, or a score: test, val, f1 ...")
    ] = "time",
    everything: Annotated[
        bool, typer.Option("--all", help="all columns, be they wider than the screen")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="one JSON object as the last line")] = False,
) -> None:
    """List and compare runs: score, epochs, state, and the settings in which they differ."""
    show_runs(folder, list_runs(folder, sort), sort=sort, as_json=json, everything=everything)


def show_runs(
    path: Path,
    found: list[RunSummary],
    *,
    sort: str = "time",
    as_json: bool,
    everything: bool = False,
) -> None:
    """Print runs, for people or for programs."""
    if as_json:
        rows = [run.to_json() for run in found]
        print_json({"path": str(path), "kind": "runs", "runs": rows})
    elif everything:
        _show_everything(path, found)
    else:
        _show_what_fits(path, found, sort)


def _show_what_fits(path: Path, found: list[RunSummary], sort: str) -> None:
    """Print the few columns that tell most, then settings that differ while there is room."""
    rows, shown = _few_columns(found, sort), list[str]()
    for name in ("when", "epochs", "model"):
        if _width(_table(str(path), rows)) > out.width:
            rows = [{key: row[key] for key in row if key != name} for row in rows]
    # Those two are columns already: as they came out.
    differ = [name for name in differing_settings(found) if name not in ("epochs", "metric")]
    for name in sorted(differ, key=settings_of(TableColumns).__contains__):
        wider = [row | _settings(run, [name]) for row, run in zip(rows, found, strict=True)]
        if _width(_table(str(path), wider)) <= out.width:
            rows, shown = wider, [*shown, name]
    _print_whole(_table(str(path), rows))
    reasons = [f"{run.run} {run.state}" for run in found if ": " in run.state]
    for line in reasons[-_MOST_REASONS:]:
        out.print(line if len(line) <= out.width else f"{line[: out.width - 3].rstrip()}...")
    if rest := [name for name in differ if name not in shown]:
        out.print(f"They differ in {shortened(rest, 4)} too: --all shows it.", soft_wrap=True)


def _few_columns(found: list[RunSummary], sort: str) -> list[dict[str, str]]:
    """Return a row for each run; where all have the same score, its name is the column's."""
    scores = [_first_score(run, sort) for run in found]
    names = {name for name, _ in scores if name}
    head, told = "score", 0
    if len({name.split()[0] for name in names}) == 1:
        head, told = f"{next(iter(names)).split()[0]} score", 1
    if len(names) == 1:
        head, told = names.pop(), 2
    return [
        {
            "run": run.run,
            "model": run.model.rpartition(":")[2],
            head: " ".join([value, *name.split()[told:]]),
            "epochs": str(run.epochs),
            "state": re.split("[:,]", run.state)[0],
            "when": time.strftime("%b %d %H:%M", time.localtime(run.begun)),
        }
        for run, (name, value) in zip(found, scores, strict=True)
    ]


def _first_score(run: RunSummary, sort: str) -> tuple[str, str]:
    """Return the score that runs are sorted by, or that counts, as `test f1`, and its value."""
    for split in ("test", "val", "train"):
        if sort in run.scores.get(split, {}):
            return f"{split} {sort}", shown_score(sort, run.scores[split][sort])
    for split in (sort, "test", "val", "train"):
        if (found := run.score(split)) is not None:
            return f"{split} {found[0]}", shown_score(*found)
    return "", ""


def _show_everything(path: Path, found: list[RunSummary]) -> None:
    differ = differing_settings(found)
    rows = [_columns(run) for run in found]
    settings = [_settings(run, differ[:_MOST_SETTINGS]) for run in found]
    # A column that is the same everywhere is told once, below.
    alike = {name: rows[0][name] for name in _MAY_BE_ALIKE if len({row[name] for row in rows}) == 1}
    rows = [{name: row[name] for name in row if name not in alike} for row in rows]
    together = _table(
        str(path), [{**row, **asked} for row, asked in zip(rows, settings, strict=True)]
    )
    if _width(together) <= out.width:
        out.print(together)
    else:
        names = [{"run": run.run} for run in found]
        _print_whole(_table(str(path), rows))
        if differ:
            pairs = zip(names, settings, strict=True)
            _print_whole(
                _table("settings that differ", [{**name, **asked} for name, asked in pairs])
            )
    if told := [f"{name} {value}" for name, value in alike.items() if value]:
        out.print(f"{'All: ' if len(found) > 1 else ''}{', '.join(told)}", soft_wrap=True)
    if len(differ) > _MOST_SETTINGS:
        out.print(f"Other settings that differ: {shortened(differ[_MOST_SETTINGS:])}")


def _table(title: str, rows: list[dict[str, str]]) -> Table:
    """Return a table of the columns in which any row has something."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    shown = [name for name in rows[0] if any(row[name] for row in rows)]
    for name in shown:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*(row[name] for name in shown))
    return table


def _width(table: Table) -> int:
    return out.measure(table, options=out.options.update(width=_MOST_WIDTH)).maximum


def _print_whole(table: Table) -> None:
    """Print lines as long as they are: a number that is cut would be another one."""
    width = max(out.width, _width(table))
    Console(highlight=False, markup=False, emoji=False, width=width).print(table)


def _columns(run: RunSummary) -> dict[str, str]:
    epochs = f"{run.epochs}" if run.best_epoch is None else f"{run.best_epoch} of {run.epochs}"
    return {
        "run": run.run,
        "model": run.model,
        "data": Path(run.data).name,
        "ranks": str(run.ranks) if run.ranks else "",
        "best epoch": epochs,
        "metric": run.metric,
        "test": _score(run, "test"),
        "val": _score(run, "val"),
        "time": "" if run.seconds is None else brief(run.seconds),
        "state": _brief_state(run.state),
    }


def _brief_state(state: str) -> str:
    return state if len(state) <= _MOST_STATE else f"{state[: _MOST_STATE - 3].rstrip()}..."


def _settings(run: RunSummary, differ: list[str]) -> dict[str, str]:
    return {name: _value(run.settings.get(name)) for name in differ}


def _score(run: RunSummary, split: str) -> str:
    found = run.score(split)
    return "" if found is None else shown_score(*found)


def _value(value: Any) -> str:
    return "" if value is None else str(value)
