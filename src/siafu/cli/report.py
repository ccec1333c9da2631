"""`siafu report`: a page that shows what runs did."""

import os
from pathlib import Path
from typing import Annotated

import typer

from siafu.cli.show import out, say
from siafu.launch.run_list import newest_run, runs_in, summary_of
from siafu.record import RunFolder
from siafu.report import write_report

_MOST_RUNS = 12


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="a run, several to compare, or a folder of them (default: the newest in runs/)"
        ),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(
            "--out", help="where to write (default: report.html, of one folder inside it)"
        ),
    ] = None,
) -> None:
    """Write one HTML page, which needs no network, on what runs did; of several, side by side.

    A run that failed or still goes on has its page too. Of a folder of runs, the newest 12.
    """
    if int(os.environ.get("RANK", "0")):  # under torchrun one of them is enough
        return
    runs = runs or [newest_run(Path("runs"))]
    if target is None:
        target = RunFolder(runs[0]).report if len(runs) == 1 else Path("report.html")
    if len(runs) == 1 and not RunFolder(runs[0]).config.exists():
        runs = _newest(runs[0]) or runs
    out.print(str(write_report(runs, target)), soft_wrap=True)


def _newest(folder: Path) -> list[Path]:
    """Return the runs of a folder, oldest first: no more than can stand side by side."""
    found = [run.path for run in runs_in(folder) if run.config.exists()]
    found.sort(key=lambda path: summary_of(RunFolder(path)).begun)
    if len(found) > _MOST_RUNS:
        say(f"Compared are the newest {_MOST_RUNS} of {len(found)} runs; name others one by one.")
    return found[-_MOST_RUNS:]
