"""A part's data on its rank: rows, edges, labels, masks, and the plan that reaches others' rows.

Shapes: N owned rows, R halo rows, E edges into owned rows, F features.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor

from siafu.comm import HaloPlan, World, exchange_halo
from siafu.errors import PlanError
from siafu.graph import MASKS, Array, Folder, Ids, SparseFeatures, forget, load_features, load_ids
from siafu.ops import CSR
from siafu.partitioning import open_parts
from siafu.shard.objective import Objective
from siafu.shard.readers import HeldRows, RowReader, rows_of_file


@dataclass(frozen=True, kw_only=True, repr=False)
class Shard:
    """What one rank holds of the graph, ready for its device."""

    world: World
    name: str
    num_nodes: int
    """Nodes of the whole graph."""
    num_classes: int
    multi_label: bool
    class_names: tuple[str | int, ...]
    """What the user calls each class; empty where numbers are all there is."""
    csr: CSR
    """N x (N + R): in-edges of the owned rows; columns are owned rows, then halo rows."""
    plan: HaloPlan
    row_ids: Tensor
    """int64 [N]: each owned row's number in the whole graph; keys random draws."""
    ids: Ids
    """The user's ids of the owned rows."""
    x: Tensor | CSR | None
    """Features: dense [N, F], or a CSR whose weights are the values."""
    y: Tensor | None
    masks: dict[str, Tensor]
    """Row numbers of the owned train, val and test nodes."""
    mask_totals: dict[str, int]
    """The same counted over all ranks."""
    edge_attr: Tensor | None
    edge_type: Tensor | None
    """int32 [E], in the order of `csr`: the relation of each edge. As uint8 it would index like a
    mask; a shard on disk has it as it lies there, for `reader`."""
    num_edge_types: int
    """Types of the whole graph, also those that no edge here has; 0 where edges have none."""
    edge_type_names: tuple[str | int, ...]
    """What the user calls each edge type; empty where numbers are all there is."""
    feature_names: tuple[str, ...] = ()
    """The columns of `x` by name; empty where the data names none."""
    edge_attr_names: tuple[str, ...] = ()
    """The columns of `edge_attr` by name; empty where the data names none."""
    num_targets: int = 0
    """Numbers to tell of each node; 0 where classes are."""
    target_names: tuple[str, ...] = ()
    """What the user calls each of these numbers; empty where the data names none."""
    edge_y: Tensor | None = None
    """int64 [E] with -1 for no class, or float32 [E, T]."""
    num_edge_classes: int = 0
    num_edge_targets: int = 0
    """Numbers to tell of each edge; 0 where classes are."""
    edge_class_names: tuple[str | int, ...] = ()
    edge_target_names: tuple[str, ...] = ()
    edge_split: Tensor | None = None
    """uint8 [E]: 0 for none, 1 train, 2 val, 3 test."""
    objective: Objective = field(default_factory=Objective)
    """What is learnt of the targets."""
    part_of: Array
    """The part that owns each node of the whole graph, memory-mapped."""
    fingerprint: str
    """Hash of the whole graph, the same for every partition of it."""
    memory_bytes: int | None = None
    """What this rank may hold on its device; None for what is free."""
    _halo_ids: list[Tensor] = field(default_factory=list)
    _files: dict[str, Array] = field(default_factory=dict)
    """Memory-mapped arrays of a shard that stays on disk."""
    _mapped: list[Array] = field(default_factory=list)
    """What the tensors of such a shard are views of."""

    def __repr__(self) -> str:
        at = f"rank {self.world.rank} of {self.world.size}"
        return f"Shard({self.name!r}, {at}, nodes={self.num_owned}, edges={self.csr.num_edges})"

    @property
    def num_owned(self) -> int:
        """N."""
        return self.csr.num_rows

    @property
    def num_halo(self) -> int:
        """R."""
        return self.plan.num_halo

    @property
    def num_outputs(self) -> int:
        """Numbers that are told of each node: of classes one each."""
        return self.num_targets or self.num_classes

    @property
    def train(self) -> Tensor:
        """Row numbers of the owned training nodes."""
        return self.masks["train"]

    @property
    def val(self) -> Tensor:
        """Row numbers of the owned validation nodes."""
        return self.masks["val"]

    @property
    def test(self) -> Tensor:
        """Row numbers of the owned test nodes."""
        return self.masks["test"]

    @property
    def column_ids(self) -> Tensor:
        """int64 [N + R]: number in the whole graph of each column; fetched once."""
        if not self._halo_ids:
            self._halo_ids.append(exchange_halo(self.row_ids, self.plan, self.world))
        return torch.cat([self.row_ids, self._halo_ids[0]])

    @property
    def edge_index(self) -> Tensor:
        """int64 [2, E], PyG's form: source columns (owned, then halo) and destination rows."""
        return torch.stack([self.csr.index.long(), self.csr.rows()])

    @property
    def is_mapped(self) -> bool:
        """True when edges and features stay on disk."""
        return bool(self._files)

    def reader(self, name: str) -> RowReader | None:
        """Return the rows of `x`, `src`, `edge_weight`, `edge_attr` or `edge_type`, by number."""
        if name in self._files:
            # As in memory: narrower integers would index like a mask.
            dtype = torch.int32 if name == "edge_type" else None
            # Of a GPU's memory, a budget says nothing about pages of files.
            budget = self.memory_bytes if self.world.device.type == "cpu" else None
            return rows_of_file(self._files[name], dtype, budget)
        held = {
            "x": self.x,
            "src": self.csr.index,
            "edge_weight": self.csr.weight,
            "edge_attr": self.edge_attr,
            "edge_type": self.edge_type,
        }[name]
        return HeldRows(held) if isinstance(held, Tensor) else None

    def edge_pieces(self) -> Iterator[tuple[int, int, CSR]]:
        """Yield (low, high, in-edges of these rows) over all rows.

        Of a shard on disk one piece at a time is in memory.
        """
        for low, high in self.csr.row_spans(_PIECE_EDGES):
            bounds = self.csr.indptr[low : high + 1]
            span = slice(int(bounds[0]), int(bounds[-1]))
            index = self._edges("src", self.csr.index, span)
            weight = self.csr.weight
            if weight is not None:
                weight = self._edges("edge_weight", weight, span)
            yield low, high, CSR(bounds - span.start, index, self.csr.num_cols, weight)

    def _edges(self, name: str, held: Tensor, span: slice) -> Tensor:
        if name not in self._files:
            return held[span]
        piece = torch.from_numpy(np.array(self._files[name][span]))
        forget(self._files[name])
        return piece

    def let_go(self) -> None:
        """Let go of pages of files that were read through the tensors of a shard on disk."""
        for array in self._mapped:
            forget(array, unchanged=True)

    def mean(self, losses: Tensor) -> Tensor:
        """Return the mean of per-row losses over the rows of all ranks.

        Its value is the same on every rank; its gradient is this rank's share, so that gradients
        summed over the ranks are those of one process.
        """
        local = losses.sum()
        figures = [float(local.detach()), float(losses.numel())]
        total = torch.tensor(figures, dtype=torch.float64, device=local.device)
        total = self.world.sum_in_place(total, "metric")
        share = local / total[1].to(local.dtype).clamp(min=1)
        return share + (total[0] / total[1].clamp(min=1) - share.detach()).to(local.dtype)


def open_shard(
    path: Path | str,
    world: World,
    *,
    verify: bool = True,
    place: Literal["device", "host", "disk"] = "device",
    memory_bytes: int | None = None,
) -> Shard:
    """Return this rank's shard of a parts folder; there must be one part per rank.

    It lies on the rank's device, on its host, or there but for edges and dense features, which stay
    on disk, for work that reads them through `reader`. `verify` reads the part once and checks
    every checksum and index; without it they are trusted. Files that are small beside
    `memory_bytes`, or else beside what is free, are read through the page cache.
    """
    parts = open_parts(path)
    if parts.num_parts != world.size:
        raise PlanError(
            "The number of ranks differs from the number of parts.",
            seen=f"{world.size} ranks, {parts.num_parts} parts in {path}",
            fix=f"start {parts.num_parts} ranks, or partition again with --parts {world.size}",
        )
    folder = parts.open_part(world.rank, verify=verify)
    world.check_agreement("parts folder", folder.facts["graph_fingerprint"])
    device = world.device if place == "device" else torch.device("cpu")
    on_disk = _ON_DISK if place == "disk" else ()
    shard = _shard(folder, world, device, on_disk, parts.part_of)
    return replace(shard, memory_bytes=memory_bytes)


def part_bytes(path: Path | str, part: int) -> int:
    """Return the bytes of a part's edges and dense features, which a shard may leave on disk."""
    entries = open_parts(path).part(part).entries
    return sum(
        math.prod(entry.shape) * np.dtype(entry.dtype).itemsize
        for name, entry in entries.items()
        if name in _ON_DISK
    )


_ON_DISK = ("src", "x", "edge_weight", "edge_attr", "edge_type")
_NAMES = (
    "class_names",
    "edge_type_names",
    "feature_names",
    "edge_attr_names",
    "target_names",
    "edge_class_names",
    "edge_target_names",
)
_COUNTS = ("num_edge_types", "num_targets", "num_edge_classes", "num_edge_targets")
_PIECE_BYTES = 1 << 24
"""Of a file that is copied at once."""
_PIECE_EDGES = 1 << 20
"""Edges gone through at once: what is made of them takes some tens of megabytes."""


def _shard(
    folder: Folder,
    world: World,
    device: torch.device,
    on_disk: tuple[str, ...],
    part_of: Array,
) -> Shard:
    facts = folder.facts
    files = {name: folder.load(name) for name in on_disk if name in folder}
    mapped: list[Array] = []
    load = partial(_column, folder, device, files, mapped)
    masks = {name: _rows_of(folder.load_if_present(name), device) for name in MASKS}
    counts = world.gather_numbers([float(rows.numel()) for rows in masks.values()])
    totals = {name: int(sum(row[k] for row in counts)) for k, name in enumerate(MASKS)}
    y = folder.load_if_present("y")
    index = load("src")
    assert index is not None
    num_owned = int(facts["num_owned"])
    plan = HaloPlan.build(
        _tensor(folder.load("send_rows"), device),
        folder.load("send_counts").tolist(),
        folder.load("halo_counts").tolist(),
        num_owned,
    )
    return Shard(
        world=world,
        name=facts["name"],
        num_nodes=int(facts["num_nodes"]),
        num_classes=int(facts["num_classes"]),
        multi_label=bool(facts["multi_label"]),
        csr=CSR(
            indptr=_tensor(folder.load("indptr"), device),
            index=index,
            num_cols=num_owned + plan.num_halo,
            weight=load("edge_weight"),
        ),
        plan=plan,
        row_ids=_tensor(folder.load("rows"), device),
        ids=load_ids(folder),
        x=_features(folder, device, files, mapped),
        y=None if y is None else _tensor(y, device),
        masks=masks,
        mask_totals=totals,
        edge_attr=load("edge_attr"),
        edge_type=load("edge_type", np.int32),
        edge_y=load("edge_y"),
        edge_split=load("edge_split"),
        **_told_of_columns(facts),
        objective=Objective(per_row=int(facts["num_classes"]) if facts["multi_label"] else 1),
        part_of=part_of,
        fingerprint=str(facts["graph_fingerprint"]),
        _files=files,
        _mapped=mapped,
    )


def _told_of_columns(facts: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of columns of nodes and edges: their names, and how many there are."""
    names: dict[str, Any] = {name: tuple(facts.get(name, ())) for name in _NAMES}
    return names | {name: int(facts.get(name, 0)) for name in _COUNTS}


def _column(
    folder: Folder,
    device: torch.device,
    files: dict[str, Array],
    mapped: list[Array],
    name: str,
    dtype: DTypeLike | None = None,
) -> Tensor | None:
    """Return an array of the part as a tensor, of the file itself where that stays on disk."""
    if name not in folder:
        return None
    if name not in files:
        return _tensor(folder.load(name), device, dtype)
    array = files[name]
    if not isinstance(array, np.memmap):  # an empty file is not mapped
        return torch.from_numpy(array)
    # Copy on write: torch has no tensors that can't be written to.
    assert array.filename is not None
    private = np.memmap(array.filename, array.dtype, "c", array.offset, array.shape)
    mapped.append(private)
    return torch.from_numpy(private)


def _tensor(array: Array, device: torch.device, dtype: DTypeLike | None = None) -> Tensor:
    # A copy, so that training never waits for a page of the file; in pieces, so that file and copy
    # are not resident together.
    copy = np.empty(array.shape, dtype or array.dtype)
    rows = max(1, _PIECE_BYTES // max(1, copy[:1].nbytes))
    for low in range(0, len(array), rows):
        copy[low : low + rows] = array[low : low + rows]
        forget(array)
    return torch.from_numpy(copy).to(device)


def _rows_of(mask: Array | None, device: torch.device) -> Tensor:
    rows = np.empty(0, np.int64) if mask is None else np.flatnonzero(mask)
    return torch.from_numpy(rows).to(device)


def _features(
    folder: Folder, device: torch.device, files: dict[str, Array], mapped: list[Array]
) -> Tensor | CSR | None:
    x = load_features(folder)
    if x is None or not isinstance(x, SparseFeatures):
        return _column(folder, device, files, mapped, "x")
    return CSR(
        indptr=_tensor(x.indptr, device),
        index=_tensor(x.index, device),
        num_cols=x.width,
        weight=_tensor(x.value, device),
    )
