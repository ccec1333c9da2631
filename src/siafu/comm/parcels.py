"""Files that travel between rank 0 and ranks whose machine does not share its disk.

They go in pieces from rank to rank, counted, and appear whole or not at all.
"""

import json
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from siafu.comm.peers import post
from siafu.comm.world import World
from siafu.errors import CommError
from siafu.files import replacing

_PIECE_BYTES = 1 << 24


def bring_files(world: World, root: Path, pattern: str) -> None:
    """Bring files below `root` of ranks apart to rank 0's `root`; all ranks call this together."""
    if not world.apart:
        return
    mine: dict[str, int] = {}
    if world.rank in world.apart:
        found = sorted(path for path in root.glob(pattern) if path.is_file())
        mine = {path.relative_to(root).as_posix(): path.stat().st_size for path in found}
    lists = world.gather_texts(json.dumps(mine))
    for rank in world.apart:
        for name, size in json.loads(lists[rank]).items():
            if world.rank == rank:
                _send(world, root / name, size, 0)
            elif world.rank == 0:
                _receive(world, _inside(root, name), size, rank)


def give_files(
    world: World, root: Path, files_of: Callable[[int], dict[str, Path]], ranks: list[int]
) -> None:
    """Bring files of rank 0 to `root` of some ranks, by the names that rank 0 gives them there.

    All ranks call this together; only rank 0 is asked for its files.
    """
    if not ranks:
        return
    files = {rank: files_of(rank) for rank in ranks} if world.rank == 0 else {}
    sizes = {
        rank: {name: path.stat().st_size for name, path in chosen.items()}
        for rank, chosen in files.items()
    }
    told = json.loads(world.share_text(json.dumps(sizes)))
    for rank in ranks:
        for name, size in told[str(rank)].items():
            if world.rank == 0:
                _send(world, files[rank][name], size, rank)
            elif world.rank == rank:
                _receive(world, _inside(root, name), size, 0)


def _inside(root: Path, name: str) -> Path:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise CommError(
            "A rank sent a file with a name that leads elsewhere.",
            seen=name,
            fix="start every rank with the same version",
        )
    return root / path


def _send(world: World, path: Path, size: int, peer: int) -> None:
    with path.open("rb") as file:
        for start in range(0, size, _PIECE_BYTES):
            count = min(_PIECE_BYTES, size - start)
            raw = bytearray(file.read(count))
            if len(raw) != count:
                raise CommError(
                    "A file became shorter while it was sent to another machine.",
                    seen=f"{path}: {size:,} bytes when it was told, {start + len(raw):,} now",
                    fix="leave the run's files alone while it starts, and start it again",
                )
            piece = torch.frombuffer(raw, dtype=torch.uint8)
            if world.backend == "nccl":
                piece = piece.to(world.device)
            world.meter.count("file", piece.nbytes)
            _pass(world, peer, dist.isend, piece)


def _receive(world: World, path: Path, size: int, peer: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("wb") as file:
        for start in range(0, size, _PIECE_BYTES):
            device = world.device if world.backend == "nccl" else torch.device("cpu")
            piece = torch.empty(min(_PIECE_BYTES, size - start), dtype=torch.uint8, device=device)
            _pass(world, peer, dist.irecv, piece)
            file.write(piece.cpu().numpy().data)


def _pass(world: World, peer: int, call: Any, piece: Tensor) -> None:
    for message in post([(peer, call, piece)], world.tag_of("file"), world, "a file"):
        message.wait(world, "a file")
