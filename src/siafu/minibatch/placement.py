"""Where a rank's graph and rows lie while it trains on minibatches: on the device, or near it.

Shapes: N rows, R rows read, K rows with copies on the device.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, cast

import torch
from torch import Tensor

from siafu.comm import World, sharers
from siafu.errors import BudgetError, ConfigError
from siafu.ops import gather_rows, has_fast_kernels
from siafu.shard import HeldRows, RowReader, Shard

RowsOn = Literal["auto", "device", "pinned", "host"]
_HELD_SHARE = 0.6
"""Of a device's free memory that edges and rows may take: the rest is for training on them."""
_GB = 1e9


class Movable(Protocol):
    """Rows in memory that may lie elsewhere."""

    @property
    def nbytes(self) -> int:
        """What they take."""
        ...

    def to(self, device: torch.device) -> RowReader:
        """Return the same rows on a device."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where edges are drawn and rows lie."""

    rows: Literal["device", "pinned", "host"] = "host"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    hot_bytes: int = 0
    """Of the device, for copies of the rows read most, where rows are in pinned memory."""
    everywhere: bool = False
    """Each of several ranks has the whole graph on its device."""
    told: str = ""
    """What was chosen and why, in words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What would lie on a device, in bytes."""

    graph: int = 0
    rows: int = 0
    is_dense: bool = True
    """Rows that are not packed may be read from pinned memory."""
    deals_edges: bool = False
    """Seeds are made of edges, which ranks deal each other."""


def choose_place(
    wanted: RowsOn, shard: Shard, load: Load, free: Callable[[], int], hot_bytes: int
) -> Place:
    """Return where rows go: where was asked for, or the nearest place they fit in.

    `hot_bytes` 0 lets copies of the rows read most take what is left. Several ranks are told the
    same of what is free, and of a load that is of all of them.
    """
    obstacle, is_alone = _obstacle(shard, load), shard.world.size == 1
    if wanted == "pinned" and not (is_alone or obstacle):
        obstacle = f"with {shard.world.size} ranks, which would hold it once each"
    if wanted == "host" or (wanted == "auto" and obstacle):
        return Place()
    if obstacle:
        raise ConfigError(
            "Rows can't lie on the device or in pinned memory.",
            seen=f"--rows-on {wanted} {obstacle}",
            fix="leave --rows-on out",
        )
    device, room = shard.world.device, int(_HELD_SHARE * free())
    fits_all, fits_graph = load.graph + load.rows <= room, load.graph <= room
    size = f"{load.graph / _GB:.2f} GB of edges, {load.rows / _GB:.2f} GB of rows"
    whose = "the device" if is_alone else "each rank's device"
    told = f"{size}; {room / _GB:.2f} GB of {whose} for them"
    if wanted == "device" or (wanted == "auto" and fits_all):
        if not fits_all:
            instead = "pinned" if is_alone else "host"
            raise _too_large("The graph and its rows do not fit on the device.", told, instead)
        what = "Rows on the device" if is_alone else "All edges and rows on each rank's device"
        return Place(rows="device", device=device, everywhere=not is_alone, told=f"{what}: {told}.")
    if not fits_graph and wanted == "pinned":
        raise _too_large("The edges do not fit on the device.", told, "host")
    if not (fits_graph and load.is_dense and is_alone):
        return Place(told=f"Rows on the host: {told}.")
    hot = min(hot_bytes or room - load.graph, load.rows, max(0, room - load.graph))
    return Place(
        rows="pinned",
        device=device,
        hot_bytes=hot,
        told=f"Rows in pinned memory, {hot / _GB:.2f} GB of them on the device too: {told}.",
    )


def free_bytes(device: torch.device) -> int:
    """Return what may still be taken of a device, memory that torch keeps for itself included."""
    if device.type != "cuda":
        return 1 << 62
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def free_here(world: World, mine: int) -> int:
    """Return what each of several ranks may take of its device, of what this one finds free.

    Some may share one. Every rank calls this together.
    """
    mine //= sharers(world)[0]
    return int(min(row[0] for row in world.gather_numbers([float(mine)])))


def _obstacle(shard: Shard, load: Load) -> str:
    """Return why rows must stay on the host, as the end of a sentence; empty where they need not.

    Several ranks that have not the whole graph serve each other rows and draws through their hosts.
    """
    if shard.world.device.type != "cuda":
        return "on a CPU"
    if shard.world.size > 1 and load.deals_edges:
        return f"with {shard.world.size} ranks that deal each other edges"
    if shard.is_mapped:
        return "with a graph that stays on disk (--memory)"
    return "" if has_fast_kernels("cuda") else "without Triton"


def _too_large(problem: str, seen: str, instead: str) -> BudgetError:
    return BudgetError(problem, seen=seen, fix=f"use --rows-on {instead}, or leave it out")


class PinnedRows(HeldRows):
    """Rows in memory of the host that the device reads itself, the hottest of them copied to it."""

    def __init__(
        self, rows_N: Tensor, device: torch.device, hottest_K: Tensor | None = None
    ) -> None:
        """`hottest_K` are the numbers of the rows to copy."""
        super().__init__(rows_N.contiguous())
        self.device = device
        if device.type == "cuda" and self.rows.numel() and not self.rows.is_pinned():
            self._pin()
        self._slot_N: Tensor | None = None
        self._copies_K: Tensor | None = None
        self._found = torch.zeros(2, dtype=torch.int64, device=device)
        """Rows read, and those of them that had copies."""
        if hottest_K is not None and len(hottest_K):
            slot_N = torch.full((len(rows_N),), -1, dtype=torch.int32)
            slot_N[hottest_K] = torch.arange(len(hottest_K), dtype=torch.int32)
            self._slot_N = slot_N.to(device)
            self._copies_K = gather_rows(self.rows, hottest_K.to(device))

    def read(self, rows_R: Tensor) -> Tensor:
        """Return these rows, on the device."""
        rows_R = rows_R.to(self.device)
        self._found[0] += len(rows_R)
        if self._slot_N is not None:
            self._found[1] += (self._slot_N.index_select(0, rows_R) >= 0).sum()
        return gather_rows(self.rows, rows_R, self._slot_N, self._copies_K)

    @property
    def copies(self) -> list[Tensor]:
        """The hottest rows on the device, and which they are."""
        return [each for each in (self._copies_K, self._slot_N) if each is not None]

    @property
    def hits(self) -> float:
        """The share of rows read that had copies on the device."""
        asked, found = self._found.tolist()
        return float(found / max(1, asked))

    def to(self, device: torch.device) -> HeldRows:
        """Return the same rows for readers on a device, or on the host."""
        return HeldRows(self.rows.to(device))

    def _pin(self) -> None:
        """Have the driver pin the rows where they are, or else a copy of them."""
        runtime, address = torch.cuda.cudart(), self.rows.data_ptr()
        if int(runtime.cudaHostRegister(address, self.rows.nbytes, 0)) == 0:
            weakref.finalize(self.rows, runtime.cudaHostUnregister, address)
        else:
            self.rows = self.rows.pin_memory()


def hottest(shard: Shard, row_bytes: int, room: int) -> Tensor:
    """Return the rows that most edges start at, as many as there is room for."""
    count = min(shard.num_owned, room // max(1, row_bytes))
    reads_N = torch.zeros(shard.num_owned, dtype=torch.int64)
    for _, _, piece in shard.edge_pieces():
        reads_N += torch.bincount(piece.index, minlength=shard.num_owned)
    return reads_N.argsort(descending=True, stable=True)[:count]


def placed(reader: RowReader, place: Place, hottest_K: Tensor | None) -> RowReader:
    """Return features, or what stands for them, where they are to lie."""
    if place.rows == "device":
        return moved(reader, place.device)
    held = moved(reader, torch.device("cpu"))
    assert isinstance(held, HeldRows), "only dense rows are pinned"
    return PinnedRows(held.rows, place.device, hottest_K)


def moved(reader: RowReader, device: torch.device) -> RowReader:
    """Return rows in memory on a device."""
    return as_movable(reader).to(device)


def as_movable(reader: RowReader) -> Movable:
    """Return the reader as one of rows in memory, which it is unless the shard is on disk."""
    assert hasattr(reader, "to"), "rows of a file stay there"
    return cast(Movable, reader)
