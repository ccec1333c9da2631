"""`siafu demo`: the same training on several ranks and on one, side by side."""

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from siafu.cli.show import out, print_json, say, size
from siafu.config import make_config
from siafu.launch import Run, start_run
from siafu.record import counted, percent

SAME_WITHIN = 1e-4
"""Losses of the same training differ by rounding alone, far less than this."""


def demo(
    ranks: Annotated[int, typer.Option(help="ranks to compare with one process", min=2)] = 4,
    model: Annotated[str, typer.Option(help="gcn, sage, gin or gat")] = "gcn",
    epochs: Annotated[int, typer.Option(help="epochs", min=1)] = 100,
    json: Annotated[bool, typer.Option("--json", help="one JSON object as last line")] = False,
) -> None:
    """Train on the built-in graph with several ranks and with one: the losses are the same."""
    runs = []
    for count in (ranks, 1):
        say(f"Training {model} on the built-in graph 'planted' with {counted(count, 'rank')} ...")
        config = make_config(data="planted", model=model, ranks=count, epochs=epochs)
        runs.append(start_run(config, say=_say_what_is_asked))
    many, one = runs
    gaps = [abs(a - b) for a, b in zip(many.result["losses"], one.result["losses"], strict=True)]
    same = max(gaps) < SAME_WITHIN
    if json:
        pairs = {"ranks": many.result, "one": one.result, "largest_difference": max(gaps)}
        print_json(pairs)
    else:
        _show(many, one, gap=max(gaps), same=same)
    if not same:
        raise typer.Exit(1)


def _say_what_is_asked(line: str) -> None:
    """Leave out where results are, which is told at the end, and that more ranks are no faster."""
    if not line.startswith(("Run: ", "Report: ", "Warning: ")):
        say(line)


def _show(many: Run, one: Run, *, gap: float, same: bool) -> None:
    result = many.result
    epochs, ranks, model = result["epochs"], result["ranks"], result["model"]
    out.print(_table(many, one, epochs))
    out.print(
        f"\nOver {epochs} epochs the losses are {'the same' if same else 'NOT the same'}: "
        f"they differ by {gap:.1e} at most "
        f"(dropout is on; only the order of float32 sums differs)."
    )
    sent = size(sum(result["bytes_sent"].values()))
    out.print(f"{ranks} ranks sent each other {sent}; strategy {result['strategy']}.")
    out.print(f"Results: {many.path} and {one.path} (predictions/, metrics.jsonl, weights)")
    command = shutil.which("siafu") or Path(sys.argv[0])
    out.print(f"Next:    {command} train YOUR_DATA --model {model} --ranks {ranks}")


def _table(many: Run, one: Run, epochs: int) -> Table:
    table = Table()
    for name in ("epoch", f"loss, {many.result['ranks']} ranks", "loss, one process"):
        table.add_column(name, justify="right")
    shown = sorted({0, epochs // 4, epochs // 2, 3 * epochs // 4, epochs - 1})
    for number in shown:
        values = (run.result["losses"][number] for run in (many, one))
        table.add_row(str(number + 1), *(f"{value:.6f}" for value in values))
    table.add_section()
    table.add_row("test accuracy", *(percent(run.score["test"]) for run in (many, one)))
    return table
