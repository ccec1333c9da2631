"""`siafu watch`: a run that another process works on, live in the terminal."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from siafu.cli.show import out
from siafu.launch.run_list import newest_run
from siafu.launch.run_state import begun_run
from siafu.launch.watching import Sight, look
from siafu.record import RunFolder

_NOT_FINISHED = 1
_LINE_EVERY_SECONDS = 5.0
Sleep = Callable[[float], None]


def watch(
    run: Annotated[
        Path | None, typer.Argument(help="a run folder (default: the newest in runs/)")
    ] = None,
    every: Annotated[float, typer.Option(help="seconds between two looks", min=0.1)] = 1.0,
) -> None:
    """Follow a run that another process works on: phase, time left, losses, scores.

    It ends with the run, exit code 0 where that came to its end, else 1. Without a terminal a plain
    line comes at most every five seconds.
    """
    folder = begun_run(run or newest_run(Path("runs")))
    follow = follow_live if out.is_terminal else follow_in_lines
    if not follow(folder, every, time.sleep):
        raise typer.Exit(_NOT_FINISHED)


def follow_live(folder: RunFolder, every: float, sleep: Sleep) -> bool:
    """Draw the run anew at every look until it is over; return whether it is finished."""
    with Live(console=out, auto_refresh=False) as screen:
        while True:
            sight = look(folder)
            screen.update(_drawn(sight), refresh=True)
            if sight.is_over:
                return sight.summary.finished
            sleep(every)


def follow_in_lines(folder: RunFolder, every: float, sleep: Sleep) -> bool:
    """Print how far the run is, now and then, and at its end all that is to be told."""
    printed, waited = "", _LINE_EVERY_SECONDS
    while True:
        sight = look(folder)
        if sight.is_over:
            out.print("\n".join([sight.doing(), *sight.lines(out.width)]), soft_wrap=True)
            return sight.summary.finished
        if waited >= _LINE_EVERY_SECONDS and sight.line() != printed:
            printed, waited = sight.line(), 0.0
            out.print(printed, soft_wrap=True)
        waited += every
        sleep(every)


def _drawn(sight: Sight) -> RenderableType:
    title, *rest = sight.lines(out.width)
    return Group(Text(title, style="bold"), _bar(sight), *(Text(line) for line in rest))


def _bar(sight: Sight) -> RenderableType:
    if sight.share is None:
        return Text(sight.doing())
    row = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=1.0, completed=sight.share, width=24)
    row.add_row(Text(sight.doing()), bar, f"{100 * sight.share:.0f} %", sight.left())
    return row
