"""Printing for people and for programs: tables, sizes, one JSON object."""

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from siafu.record import notes

# Paths and names are printed as they are: brackets and colons in them mean nothing.
out = Console(highlight=False, markup=False, emoji=False)


def say(line: str) -> None:
    """Print a remark for the user; it goes to stderr, so that stdout stays for results."""
    notes.print(line, soft_wrap=True)


def print_table(title: str, rows: dict[str, Any]) -> None:
    """Print names and values in two columns."""
    table = Table(title=title, title_justify="left", show_header=False, box=None)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, str(value))
    out.print(table)


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object on one line."""
    print(json.dumps(value), flush=True)


def size(num_bytes: float) -> str:
    """Return bytes in a readable unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.3g} {unit}" if unit != "B" else f"{int(num_bytes)} B"
        num_bytes /= 1024
    return f"{num_bytes:.3g} TiB"
