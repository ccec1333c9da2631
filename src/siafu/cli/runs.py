"""`siafu runs`: the runs of a folder side by side."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from siafu.cli.show import out, print_json
from siafu.launch.run_list import RunSummary, differing_settings, list_runs
from siafu.record import brief, shortened, shown_score

_MOST_SETTINGS = 6
_WHOLE = ("run", "test", "val", "time")
_MAY_BE_ALIKE = ("model", "data", "ranks", "metric", "state")


def runs(
    folder: Annotated[Path, typer.Argument(help="folder of runs, or one run")] = Path("runs"),
    sort: Annotated[
        str, typer.Option(help="time, name, seconds, epochs, loss, or a score: test, val, f1 ...")
    ] = "time",
    json: Annotated[bool, typer.Option("--json", help="one JSON object as the last line")] = False,
) -> None:
    """List and compare runs: scores, time, state, and the settings in which they differ."""
    show_runs(folder, list_runs(folder, sort), as_json=json)


def show_runs(path: Path, found: list[RunSummary], *, as_json: bool) -> None:
    """Print runs, for people or for programs."""
    if as_json:
        rows = [run.to_json() for run in found]
        print_json({"path": str(path), "kind": "runs", "runs": rows})
        return
    differ = differing_settings(found)
    columns = [_columns(run, differ[:_MOST_SETTINGS]) for run in found]
    # A column that is the same everywhere is told once, below.
    alike = {
        name: columns[0][name] for name in _MAY_BE_ALIKE if len({row[name] for row in columns}) == 1
    }
    shown = [name for name in columns[0] if name not in alike and any(r[name] for r in columns)]
    table = Table(title=str(path), title_justify="left", box=None, pad_edge=False)
    for name in shown:
        table.add_column(name, no_wrap=name in _WHOLE, overflow="fold")
    for row in columns:
        table.add_row(*(row[name] for name in shown))
    out.print(table)
    if told := [f"{name} {value}" for name, value in alike.items() if value]:
        out.print(f"{'All: ' if len(found) > 1 else ''}{', '.join(told)}", soft_wrap=True)
    if len(differ) > _MOST_SETTINGS:
        out.print(f"Other settings that differ: {shortened(differ[_MOST_SETTINGS:])}")


def _columns(run: RunSummary, differ: list[str]) -> dict[str, str]:
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
        "state": run.state,
        **{name: _value(run.settings.get(name)) for name in differ},
    }


def _score(run: RunSummary, split: str) -> str:
    found = run.score(split)
    return "" if found is None else shown_score(*found)


def _value(value: Any) -> str:
    return "" if value is None else str(value)
