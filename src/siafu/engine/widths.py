"""The widths of messages in a run's summary, and what a rank's next messages depend on on disk.

Shapes: G channels of a rank, K messages that it sends.
"""

from pathlib import Path
from typing import Any

import torch

from siafu.checkpoint import Share, load_share, save_share
from siafu.comm import FORMATS, World, bring_files
from siafu.errors import StoreError
from siafu.strategy import WidthBook


def width_counts(book: WidthBook, world: World) -> list[dict[str, Any]]:
    """Return how many rows of all ranks had each format, by exchange and epoch."""
    mine = [float(entry.rows.get(each, 0)) for entry in book.history for each in book.choices]
    if not mine:
        return []
    total = iter(torch.tensor(world.gather_numbers(mine)).sum(dim=0).long().tolist())
    return [
        {
            "epoch": entry.epoch,
            "exchange": entry.exchange,
            "name": entry.name,
            "direction": entry.direction,
            "rows": {str(each): next(total) for each in book.choices},
        }
        for entry in book.history
    ]


def kept_counts(book: WidthBook, world: World) -> list[dict[str, Any]]:
    """Return how many rows all ranks keep from epoch to epoch, and their bytes, by exchange."""
    mine = book.kept()
    if not mine:  # on one rank or on all
        return []
    numbers = [float(number) for each in mine for number in (each.rows, each.num_bytes)]
    totals = torch.tensor(world.gather_numbers(numbers), dtype=torch.float64).sum(dim=0).long()
    return [
        {
            "exchange": each.exchange,
            "name": each.name,
            "direction": each.direction,
            "rows": rows,
            "bytes": size,
        }
        for each, (rows, size) in zip(mine, totals.view(-1, 2).tolist(), strict=True)
    ]


def shares_of(book: WidthBook, world: World) -> int:
    """Return how many ranks add to a checkpoint: all, or none where messages depend on nothing."""
    has_any = book.strategy.assigns_widths or book.strategy.keeps_rows
    return world.size if has_any and world.size > 1 else 0


def save_widths(book: WidthBook, world: World, checkpoints: Path, epochs: int) -> None:
    """Save what later messages of each rank depend on; every rank calls this together."""
    if shares_of(book, world):
        save_share(book.state(), checkpoints, epochs, world.rank)
        bring_files(world, checkpoints, f"epoch-{epochs:06d}.rank-*/*")
        world.gather_numbers([0.0])  # the checkpoint itself is written once all are there


def read_share(checkpoint: Path, rank: int) -> tuple[Share, str]:
    """Return what `save_widths` has saved of this rank, and what is wrong with it, if anything."""
    try:
        share = load_share(checkpoint, rank)
    except StoreError as error:
        return {}, error.seen
    return share, fault_of(share) or ""


def fault_of(share: Share) -> str | None:
    """Return what is wrong with a share, if anything."""
    wanted = {"channels": (torch.int64, 2), "codes": (torch.uint8, 2), "ranges": (torch.float32, 1)}
    known = torch.tensor([each.code for each in FORMATS])
    for name, tensor in share.items():
        is_kept = name.startswith("kept-") and tensor.dim() == 2 and tensor.is_floating_point()
        if not is_kept and wanted.get(name) != (tensor.dtype, tensor.dim()):
            return f"array {name} {tensor.dtype} {list(tensor.shape)}"
        if tensor.is_floating_point() and not tensor.isfinite().all():
            return f"array {name} has numbers that are not finite"
    if not wanted.keys() <= share.keys():
        return f"arrays {', '.join(sorted(share))}"
    heads_G6, codes_K2 = share["channels"], share["codes"]
    if heads_G6.size(1) != 6 or not ((heads_G6 >= 0) & (heads_G6 < 2**31)).all():
        return "a number of a channel is out of range"
    told = int(heads_G6[:, 3].sum())
    if codes_K2.size(1) != 2 or not told == len(codes_K2) == len(share["ranges"]):
        return f"{told} messages told, {len(codes_K2)} there"
    return None if torch.isin(codes_K2.long(), known).all() else "a format that is not known"
