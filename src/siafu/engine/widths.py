"""The widths of messages of all ranks together: in a run's summary, and in its checkpoints.

Shapes: G legs of all ranks, K rows that all ranks send.
"""

from typing import Any

import torch
from torch import Tensor

from siafu.comm import World
from siafu.comm.widths import CHOICES
from siafu.engine.score import gather_rows
from siafu.strategy import WidthBook

_ROWS = 4
"""Where a leg's number of rows stands, after the rank."""


def histogram(book: WidthBook, world: World) -> list[dict[str, Any]]:
    """Return how many rows of all ranks had each width, by exchange and epoch."""
    mine = [float(entry.rows.get(bits, 0)) for entry in book.history for bits in CHOICES]
    if not mine:
        return []
    total = iter(torch.tensor(world.gather_numbers(mine)).sum(dim=0).long().tolist())
    return [
        {
            "epoch": entry.epoch,
            "exchange": entry.exchange,
            "direction": entry.direction,
            "rows": {str(bits): next(total) for bits in CHOICES},
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
    return {"legs": heads, "rows": gather_rows(rows, world)} if len(heads) else {}


def restore_widths(book: WidthBook, wire: dict[str, Tensor], world: World) -> None:
    """Take this rank's share of what `gather_widths` returned."""
    if not wire:
        return
    legs_G, mine_G = wire["legs"], wire["legs"][:, 0] == world.rank
    rows_K = mine_G.repeat_interleave(legs_G[:, _ROWS].long())
    book.restore(legs_G[mine_G, 1:], wire["rows"][rows_K])
