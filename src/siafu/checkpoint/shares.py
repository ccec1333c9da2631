"""What a checkpoint holds of each rank alone, in a folder of its own that this rank writes.

A share is written before the checkpoint it belongs to, so a checkpoint that is there has all.
"""

import shutil
from pathlib import Path

import torch
from torch import Tensor

from siafu.graph import open_folder, write_folder

Share = dict[str, Tensor]


def save_share(share: Share, parent: Path, epochs: int, rank: int) -> None:
    """Write what one rank adds to the checkpoint of an epoch."""
    target = _share(parent / f"epoch-{epochs:06d}", rank)
    with write_folder(target, "checkpoint", overwrite=True) as writer:
        for name, tensor in share.items():
            # Files know no bfloat16: it is the numbers of its bits there, which nothing else is.
            is_narrow = tensor.dtype == torch.bfloat16
            plain = tensor.detach().view(torch.int16) if is_narrow else tensor.detach()
            writer.save(name, plain.cpu().numpy())


def load_share(checkpoint: Path, rank: int) -> Share:
    """Return what a rank had added to a checkpoint, after checking its sums."""
    folder = open_folder(_share(checkpoint, rank), "checkpoint")
    folder.verify()
    found = {name: torch.tensor(folder.load(name)) for name in folder.entries}
    return {
        name: tensor.view(torch.bfloat16) if tensor.dtype == torch.int16 else tensor
        for name, tensor in found.items()
    }


def check_shares(checkpoint: Path, count: int) -> None:
    """Raise where the share of a rank is not there; that it is whole its rank finds out."""
    for rank in range(count):
        open_folder(_share(checkpoint, rank), "checkpoint")


def drop_shares(parent: Path, kept: set[str]) -> None:
    """Remove the shares of checkpoints other than those of these names."""
    for share in parent.glob("epoch-*.rank-*"):
        if share.name.partition(".")[0] not in kept:
            shutil.rmtree(share, ignore_errors=True)


def _share(checkpoint: Path, rank: int) -> Path:
    return checkpoint.with_name(f"{checkpoint.name}.rank-{rank}")
