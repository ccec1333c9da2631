"""One rank among many: what it holds and does is its share, however many others there are.

The others are stood in for: all have as many rows and edges as this one, and what they send is 0.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from siafu.comm import HaloPlan, PendingRows, World, halo
from siafu.graph import graph_from_edges
from siafu.nn import Draws, Dropout, EdgeRows
from siafu.ops import CSR, DotProduct, Gat, GatV2
from siafu.partitioning import write_parts
from siafu.shard import Shard, open_shard
from siafu.strategy import BlockNeighbours, Strategy
from siafu.strategy.rounding import book
from siafu.strategy.strategy import EVERY_PEER
from tests.unit.alive import Alive

NODES, DEGREE, WIDTH, HEADS, TYPES = 1 << 17, 8, 16, 2, 3
RANKS = (8, 64, 256, 1024)
SAR = Strategy(stages=EVERY_PEER, recompute=True)


class StandIn(World):
    """A world of `size` ranks in which all others are like this one."""

    def gather_numbers(self, values: list[float], purpose: str = "control") -> list[list[float]]:
        """Return the same numbers for every rank."""
        return [values] * self.size


@pytest.fixture(autouse=True)
def others_send_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every exchange end at once."""

    def start(rows: Tensor, sent: dict, received: dict, world: World, purpose: str) -> Any:
        # Of formats, those that are sent; of rows, 0.
        fill = 8 if purpose == "control" and rows.dtype == torch.uint8 else 0
        shape = (sum(received.values()), *rows.shape[1:])
        return PendingRows(rows.new_full(shape, fill), [], rows[:0])

    for module in (halo, book):
        monkeypatch.setattr(module, "start_exchange", start)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    """A shard to take all from that does not matter here."""
    target = tmp_path_factory.mktemp("standin") / "parts"
    graph = graph_from_edges([0], [1], 2, name="two")
    write_parts(graph, torch.zeros(2).int().numpy(), target, num_parts=1, method="hash", seed=0)
    return open_shard(Path(target), World())


def shard_of(small: Shard, ranks: int) -> Shard:
    """Return one rank's share of a random graph, which reads from all others alike."""
    draw = torch.Generator().manual_seed(ranks)
    owned, edges = NODES // ranks, NODES // ranks * DEGREE
    source = torch.randint(0, NODES, (edges,), generator=draw)
    owner, node = source % ranks, source // ranks
    halo_ids = (owner * owned + node)[owner > 0].unique()  # by owner, then by row there
    counts = torch.bincount(halo_ids // owned, minlength=ranks).tolist()
    place = torch.searchsorted(halo_ids, owner * owned + node)
    index = torch.where(owner > 0, owned + place, node).int()
    sent = torch.cat([torch.randperm(owned, generator=draw)[:n] for n in counts])
    return replace(
        small,
        world=StandIn(size=ranks),
        num_nodes=NODES,
        csr=CSR(torch.arange(0, edges + 1, DEGREE), index, owned + len(halo_ids)),
        plan=HaloPlan.build(sent, counts, counts, owned),
        row_ids=torch.arange(owned),
        edge_type=torch.randint(0, TYPES, (edges,), generator=draw, dtype=torch.int32),
        num_edge_types=TYPES,
        _halo_ids=[],
    )


def held_bytes(*roots: Any, besides: tuple[Tensor, ...] = ()) -> int:
    """Return the bytes of all tensors that can be reached from objects, each counted once."""
    seen: set[int] = set()
    known = {tensor.untyped_storage()._cdata for tensor in besides}
    found, todo = 0, list(roots)
    while todo:
        thing = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        found += sys.getsizeof(thing) if isinstance(thing, dict | list | tuple) else 0
        if isinstance(thing, Tensor):
            storage = thing.untyped_storage()
            found += 0 if storage._cdata in known else storage.nbytes()
            known.add(storage._cdata)
        elif isinstance(thing, dict):
            todo.extend(thing.values())
        elif isinstance(thing, list | tuple):
            todo.extend(thing)
        elif isinstance(thing, partial):
            todo.extend((thing.func, thing.args, thing.keywords))
        elif isinstance(thing, FunctionType):
            todo.extend(cell.cell_contents for cell in thing.__closure__ or ())
        elif not isinstance(thing, type | ModuleType):
            todo.extend(vars(thing).values() if hasattr(thing, "__dict__") else ())
            names = [name for one in type(thing).__mro__ for name in getattr(one, "__slots__", ())]
            todo.extend(getattr(thing, name, None) for name in names)
    return found


class Work(TorchDispatchMode):
    """Counts the numbers that torch writes."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = [t for t in tree_leaves(args) if isinstance(t, Tensor)]
        if "index_copy" in func.__name__ or "index_add" in func.__name__:  # write some rows
            self.numbers += given[-1].numel()
            return out
        held = {t.untyped_storage()._cdata for t in given} if func.is_view else set()
        made = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        self.numbers += sum(t.numel() for t in made if t.untyped_storage()._cdata not in held)
        return out


DROPOUT = Dropout(0.3, 0)


def attend(neighbours: BlockNeighbours, x: Tensor, **more: Any) -> Tensor:
    z = x.unflatten(1, (HEADS, -1))
    score = z.sum(-1)
    return neighbours.attend(Gat(slope=0.2), (z, score), (score,), dropout=DROPOUT, **more)


def attend_by_edges(neighbours: BlockNeighbours, x: Tensor) -> Tensor:
    weight = torch.ones(2, HEADS, requires_grad=True)
    features = torch.ones(neighbours.view.csr.num_edges, 2)
    return attend(neighbours, x, edges=EdgeRows(lambda data: data @ weight, features))


def attend_by_types(neighbours: BlockNeighbours, x: Tensor) -> Tensor:
    types, type_E = torch.ones(TYPES + 1, HEADS, requires_grad=True), neighbours.edge_type
    assert type_E is not None
    rows = EdgeRows(lambda type_S: types[type_S], type_E, torch.full((1,), TYPES).int())
    return attend(neighbours, x, edges=rows)


def attend_anew(neighbours: BlockNeighbours, x: Tensor) -> Tensor:
    z = x.unflatten(1, (HEADS, -1))
    shared = (torch.ones(z.shape[1:], requires_grad=True),)
    return neighbours.attend(GatV2(slope=0.2), (z,), (z,), shared, dropout=DROPOUT)


def attend_by_products(neighbours: BlockNeighbours, x: Tensor) -> Tensor:
    z = x.unflatten(1, (HEADS, -1))
    return neighbours.attend(DotProduct(scale=1.0), (z, z), (z,), dropout=DROPOUT, loops=False)


def by_edges(neighbours: BlockNeighbours, x: Tensor) -> Tensor:
    features = torch.ones(neighbours.view.csr.num_edges, 1)
    return neighbours.reduce(lambda row, own, edge: row * own * edge, x, x, features)


def softmax(neighbours: BlockNeighbours, x: Tensor) -> Tensor:
    def message(row: Tensor) -> tuple[Tensor, Tensor]:
        return row[:, :HEADS], row.unflatten(1, (HEADS, -1))

    return neighbours.reduce(message, x, reduce="softmax")


OPERATIONS: dict[str, Callable[[BlockNeighbours, Tensor], Tensor]] = {
    "mean": lambda neighbours, x: neighbours.mean(x),
    "max": lambda neighbours, x: neighbours.max(x),
    "attend": attend,
    "attend by edges": attend_by_edges,
    "attend by types": attend_by_types,
    "attend anew": attend_anew,
    "attend by products": attend_by_products,
    "message": lambda neighbours, x: neighbours.reduce(lambda row: row * row, x),
    "message by edges": by_edges,
    "message max": lambda neighbours, x: neighbours.reduce(lambda row: row * 2, x, reduce="max"),
    "message softmax": softmax,
    "relations": lambda neighbours, x: neighbours.relations(x, torch.ones(TYPES, WIDTH, WIDTH)),
}


def share_of(small: Shard, name: str, ranks: int) -> SimpleNamespace:
    """Return what one rank holds and does for an operation, forward and backward."""
    shard = shard_of(small, ranks)
    neighbours = BlockNeighbours(shard, Draws(seed=0), SAR)
    reach = neighbours.reach
    x = torch.ones(shard.num_owned, WIDTH, requires_grad=True)
    OPERATIONS[name](neighbours, x).sum().backward()  # what is made once
    with Work() as work:
        OPERATIONS[name](neighbours, x).sum().backward()
    given = (shard.csr.indptr, shard.csr.index, shard.row_ids, shard.plan.send_rows)
    return SimpleNamespace(
        held=held_bytes(neighbours, besides=given),
        work=work.numbers,
        stages=len(reach.stages),
        rows=sum(block.csr.num_rows for block in reach.blocks),
        edges=shard.csr.num_edges,
        size=shard.csr.num_edges + shard.csr.num_cols,
    )


STAGE_BYTES, STAGE_NUMBERS = 2500, 64
"""What a stage takes beyond its share: Python's own objects, pointers that begin at 0."""
MAP_NUMBERS = 3 * TYPES * WIDTH * WIDTH
"""A stage adds to the gradients of all types' maps."""


ON_ALL = ("mean", "max", "attend", "message", "relations")
"""Tried on every number of ranks; others, which differ from one of these in part, at the ends."""


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_rank_holds_and_does_its_share(small: Shard, name: str) -> None:
    first, *others = RANKS if name in ON_ALL else (RANKS[0], RANKS[-1])
    few = share_of(small, name, first)
    for ranks in others:
        found = share_of(small, name, ranks)
        # Of edges, owned rows and halo rows: of these there are more for each owned row at first.
        share = found.size / few.size
        assert found.stages > ranks / 4
        assert found.rows < 2 * found.edges + NODES // ranks
        assert found.held < 1.3 * share * few.held + STAGE_BYTES * found.stages
        factor, extra = (1.3, MAP_NUMBERS) if name == "relations" else (1.3, 0)
        assert found.work < factor * share * few.work + (STAGE_NUMBERS + extra) * found.stages


WIRES: dict[str, dict[str, Any]] = {
    "wire 4": {"wire": 4},
    "adaptive": {"wire": "adaptive", "wire_period": 3},
    "changes": {"wire": 4, "changes": True},
    "staleness": {"staleness": 1},
}


def wire_of(small: Shard, choice: str, ranks: int) -> SimpleNamespace:
    """Return what one rank holds for rows on their way, and what it needs beside that."""
    shard, draws = shard_of(small, ranks), Draws(seed=0)
    neighbours = BlockNeighbours(shard, draws, replace(SAR, **WIRES[choice]))
    x = torch.ones(shard.num_owned, WIDTH, requires_grad=True)
    draws.training = False
    neighbours.mean(x).sum().backward()  # what is made once, and rounds nothing
    draws.training = True
    given = (shard.csr.indptr, shard.csr.index, shard.row_ids, shard.plan.send_rows)
    before = held_bytes(neighbours, besides=given)
    with Alive([x]) as alive:
        # Widths are assigned by epoch 3 and in use in epoch 6.
        for draws.epoch in range(3, 7 if choice == "adaptive" else 5):
            neighbours.mean(x).sum().backward()
    return SimpleNamespace(
        held=held_bytes(neighbours, besides=given) - before,
        peak=alive.peak,
        stages=len(neighbours.reach.stages),
        ends=shard.plan.num_halo + len(shard.plan.send_rows),
        owned=shard.num_owned,
    )


ROW_BYTES = {"wire 4": 4, "adaptive": 11, "changes": 4 + 2 * 4 * WIDTH, "staleness": 4 + 4 * WIDTH}
"""Of a row read or sent: half an id; with widths 7 for formats, ranges and how rows count; with
changes the row in both directions, late in one."""


@pytest.mark.parametrize("choice", WIRES)
def test_rows_on_their_way_take_what_their_peers_need(small: Shard, choice: str) -> None:
    few, many = (wire_of(small, choice, ranks) for ranks in (64, 1024))
    assert many.stages == 1023
    for found in (few, many):
        own = 8 * found.owned + ROW_BYTES[choice] * found.ends
        assert found.held < 1.1 * own + 1500 * found.stages
    share = (many.ends + many.owned) / (few.ends + few.owned)
    assert many.peak < 1.3 * share * few.peak + 8 * many.stages
