"""`siafu report`: a page that shows what runs did."""

from pathlib import Path
from typing import Annotated

import typer

from siafu.cli.show import out
from siafu.record import RunFolder
from siafu.report import write_report


def report(
    runs: Annotated[list[Path], typer.Argument(help="one run folder, or several to compare")],
    target: Annotated[
        Path | None,
        typer.Option("--out", help="where to write (default: report.html, of one run inside it)"),
    ] = None,
) -> None:
    """Write one HTML page, which needs no network, on what runs did; of several, side by side.

    A run that failed or still goes on has its page too.
    """
    if target is None:
        target = RunFolder(runs[0]).report if len(runs) == 1 else Path("report.html")
    out.print(str(write_report(runs, target)))
