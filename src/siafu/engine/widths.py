"""The widths of messages of all ranks together: in a run's summary, and in its checkpoints.

Shapes: G channels of all ranks, K rows that all ranks send.
"""

from typing import Any

import torch
from torch import Tensor

from siafu.comm import FORMATS, World
from siafu.engine.scores import gather_rows
from siafu.errors import StoreError
from siafu.strategy import WidthBook
from siafu.strategy.rounding import CHOICES

_HEADS = "legs"
"""The name in checkpoints of what is known of each channel; older ones have it too."""
_ROWS = 4
"""Where a channel's number of rows stands, after the rank."""


def width_counts(book: WidthBook, world: World) -> list[dict[str, Any]]:
    """Return how many rows of all ranks had each format, by exchange and epoch."""
    mine = [float(entry.rows.get(each, 0)) for entry in book.history for each in CHOICES]
    if not mine:
        return []
    total = iter(torch.tensor(world.gather_numbers(mine)).sum(dim=0).long().tolist())
    return [
        {
            "epoch": entry.epoch,
            "exchange": entry.exchange,
            "direction": entry.direction,
            "rows": {str(each): next(total) for each in CHOICES},
        }
        for entry in book.history
    ]


def gather_widths(book: WidthBook, world: World) -> dict[str, Tensor]:
    """Return what later widths of all ranks depend on; nothing where all rows have one width."""
    if world.size == 1 or not book.strategy.assigns_widths:
        return {}
    heads, rows = book.state()
    rank = heads.new_full((len(heads), 1), world.rank)
    heads = gather_rows(torch.cat([rank, heads], dim=1), world)
    return {_HEADS: heads, "rows": gather_rows(rows, world)} if len(heads) else {}


def _check_widths(wire: dict[str, Tensor], world: World) -> None:
    """Raise unless every channel is of a rank that is there, with the widths of all its rows."""
    heads, rows = wire.get(_HEADS), wire.get("rows")
    problem, codes = None, tuple(each.code for each in FORMATS)
    if heads is None or rows is None or heads.shape[1:] != (7,) or rows.shape[1:] != (3,):
        problem = f"arrays {', '.join(f'{name} {list(wire[name].shape)}' for name in sorted(wire))}"
    elif not ((heads >= 0) & (heads < 2**31)).all() or int(heads[:, 0].max()) >= world.size:
        problem = "a number of a channel is out of range"
    elif int(heads[:, _ROWS].long().sum()) != len(rows):
        problem = f"{int(heads[:, _ROWS].long().sum())} rows told, {len(rows)} there"
    elif not torch.isin(rows[:, :2], torch.tensor(codes, dtype=rows.dtype)).all():
        problem = f"a width that is none of {codes}"
    if problem is not None:
        raise StoreError(
            "The widths of messages in the checkpoint can't be used.",
            seen=problem,
            fix="resume with as many ranks, or remove the newest folder in checkpoints/ of the run",
        )


def restore_widths(book: WidthBook, wire: dict[str, Tensor], world: World) -> None:
    """Take this rank's share of what `gather_widths` returned."""
    if not wire:
        return
    _check_widths(wire, world)
    heads_G, mine_G = wire[_HEADS], wire[_HEADS][:, 0] == world.rank
    rows_K = mine_G.repeat_interleave(heads_G[:, _ROWS].long())
    book.restore(heads_G[mine_G, 1:], wire["rows"][rows_K])
