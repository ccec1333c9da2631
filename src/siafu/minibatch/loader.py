"""Minibatches for a training loop of one's own, in the shape of PyG's NeighborLoader.

Nodes to start from are named as users do: rows, a mask, or ids of their own.
Shapes: V nodes of a minibatch, B seeds (the first of them), E edges, F features.
"""

import dataclasses
import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor, nn

from siafu.comm import reduce_gradients
from siafu.errors import ConfigError, DataError, PlanError
from siafu.minibatch.feed import Batching, Columns, Feed, Needs
from siafu.minibatch.served import EdgeColumn, Sampling, rows_of
from siafu.minibatch.subgraph import Subgraph
from siafu.nn import Draws
from siafu.shard import Shard, require

_EDGE_COLUMNS: tuple[EdgeColumn, ...] = ("edge_weight", "edge_attr", "edge_type")


@dataclass(frozen=True, eq=False)
class SeedRows:
    """This rank's seeds, each once."""

    rows: Tensor
    """int64: owned rows, rising."""
    places: Tensor
    """int64: where each was first named."""

    @classmethod
    def build(cls, named: Tensor, places: Tensor) -> "SeedRows":
        """Return the seeds of rows named at these places, the places rising."""
        order = named.argsort(stable=True)
        named, places = named[order], places[order]
        is_first = torch.ones(len(named), dtype=torch.bool)
        is_first[1:] = named[1:] != named[:-1]
        return cls(named[is_first], places[is_first])

    def places_of(self, rows: Tensor) -> Tensor:
        """Return where each of these seeds was named."""
        return self.places[torch.searchsorted(self.rows, rows)]


def seeds_by_row(shard: Shard, named: Tensor | None) -> SeedRows:
    """Return seeds given as a mask of the owned rows or by row; all rows without either."""
    if named is None:
        every = torch.arange(shard.num_owned)
        return SeedRows(every, every)
    named = torch.as_tensor(named)
    if named.dtype == torch.bool:
        if named.shape != (shard.num_owned,):
            raise DataError(
                "The mask of input nodes does not fit the shard.",
                seen=f"{tuple(named.shape)} entries for {shard.num_owned} owned rows",
                fix="give one entry for each owned row, or row numbers as shard.train",
            )
        named = named.nonzero().squeeze(1)
    if named.dim() != 1 or named.is_floating_point():
        raise DataError(
            "Input nodes can't be read.",
            seen=f"{named.dtype}, shape {tuple(named.shape)}",
            fix="give row numbers [B], a mask of the owned rows, or input_ids=...",
        )
    named = named.long()
    bad = named[(named < 0) | (named >= shard.num_owned)]
    if len(bad):
        raise DataError(
            "An input node does not exist.",
            seen=f"row {int(bad[0])} of rank {shard.world.rank}, which owns {shard.num_owned}",
            fix="give rows of this rank's shard, or ids of the data as input_ids=...",
        )
    return SeedRows.build(named, torch.arange(len(named)))


def seeds_by_id(shard: Shard, ids: Sequence[int | str], rows: Tensor | None) -> SeedRows:
    """Return this rank's seeds of those that all ranks name alike, by the user's ids."""
    if rows is not None:
        raise ConfigError(
            "Input nodes are named twice.",
            seen="input_nodes and input_ids",
            fix="give one of them",
        )
    known = shard.ids.to_arrow()
    named = list(ids)
    try:
        wanted = pa.array(named).cast(known.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise DataError(
            "Input ids are not of the kind that the data has.",
            seen=f"{named[:3]}, where ids are {known.type}",
            fix="give ids as they are in the data",
        ) from error
    shard.world.check_agreement("input ids", repr(wanted.to_pylist()))
    found = pc.index_in(wanted, value_set=known).fill_null(-1)
    row = torch.from_numpy(found.to_numpy().astype("int64"))
    is_here = row >= 0
    owners = shard.world.sum_in_place(is_here.long().to(shard.world.device), "control").cpu()
    missing = (owners == 0).nonzero().squeeze(1).tolist()
    if missing:
        raise DataError(
            f"{len(missing)} of the input ids are not in the graph.",
            seen=", ".join(repr(named[place]) for place in missing[:5]),
            fix="give ids as they are in the data",
        )
    return SeedRows.build(row[is_here], is_here.nonzero().squeeze(1))


@dataclass(eq=False, kw_only=True)
class SampledData:
    """One minibatch where PyG is not installed: the attributes of its `Data`."""

    x: Tensor
    """[V, F]."""
    edge_index: Tensor
    """int64 [2, E]: sources and destinations, by row of x; edges of the first hop first."""
    batch_size: int
    """B."""
    n_id: Tensor
    """int64 [V]: number in the whole graph of each row."""
    input_id: Tensor
    """int64 [B]: which of the input nodes each seed is."""
    num_sampled_nodes: list[int]
    """Nodes by the hop that first met them, seeds first."""
    num_sampled_edges: list[int]
    """Edges by hop."""
    y: Tensor | None = None
    """Labels of the seeds."""
    edge_weight: Tensor | None = None
    edge_attr: Tensor | None = None
    edge_type: Tensor | None = None

    def to(self, device: torch.device | str) -> "SampledData":
        """Return the same on another device."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        moved = {name: v.to(device) for name, v in found.items() if isinstance(v, Tensor)}
        return SampledData(**found | moved)


class MinibatchLoader:
    """Yields an epoch of minibatches of a shard; every rank makes one together, and uses it alike.

    Each step has one minibatch a rank, of nodes it owns; all ranks have equally many, as even
    in size as can be, so one may be empty. They hold tensors on the host, as a
    `torch_geometric.data.Data` where PyG is installed, else as `SampledData`. ::

        with siafu.MinibatchLoader(shard, [15, 10], input_nodes=shard.train) as loader:
            for batch in loader:
                optimiser.zero_grad()
                if batch.batch_size:
                    out = model(batch.x, batch.edge_index)[: batch.batch_size]
                    cross_entropy(out, batch.y).backward()
                loader.average_gradients(model, batch.batch_size)
                optimiser.step()

    A loop that ends early must end at the same minibatch on every rank.
    """

    def __init__(  # noqa: PLR0913 - the settings that NeighborLoader has, by the same names
        self,
        shard: Shard,
        num_neighbors: Sequence[int],
        *,
        batch_size: int = 1000,
        input_nodes: Tensor | None = None,
        input_ids: Sequence[int | str] | None = None,
        macrobatch: int = 8,
        seed: int = 0,
        replace: bool = False,
        share_draws: int = 0,
    ) -> None:
        """`num_neighbors` are drawn at each hop, -1 for all.

        `input_nodes` are this rank's seeds, as a mask of its rows or row numbers (`shard.train`),
        or `input_ids`, by the user's ids, those of all ranks; without either every node is one.
        A node named twice counts once. `macrobatch` steps are sampled and fetched in one go; that
        changes speed alone. `share_draws` steps in turn draw by the same numbers of source nodes,
        so that they meet fewer of them: 1 within each minibatch alone, 0 none.
        """
        require(shard, "x")
        _check(shard, num_neighbors, batch_size, macrobatch)
        if share_draws < 0:
            seen = f"share_draws={share_draws}"
            raise ConfigError("share_draws is too small.", seen=seen, fix="use 0 or more")
        if input_ids is not None:
            seeds = seeds_by_id(shard, input_ids, input_nodes)
        else:
            seeds = seeds_by_row(shard, input_nodes)
        self._seeds, self._macrobatch, self.epoch = seeds, macrobatch, 0
        self.shard, x = shard, shard.reader("x")
        self._feed = Feed(
            dataclasses.replace(shard, masks=shard.masks | {"train": seeds.rows}),
            Sampling(fanouts=tuple(num_neighbors), replace=replace, shared=bool(share_draws)),
            Batching(batch_size=batch_size, share_draws=share_draws),
            Needs(edge_columns=_EDGE_COLUMNS, dtype=torch.float32 if x is None else x.dtype),
            Draws(seed=seed),
        )

    def __len__(self) -> int:
        """Return the minibatches of an epoch, as many on every rank."""
        return self._feed.sampler.schedule.num_steps

    def __iter__(self) -> Iterator[Any]:
        """Yield the minibatches of the next epoch; `epoch` may be set to repeat one."""
        self.epoch += 1
        for macrobatch in self._feed.sampler.macrobatches(self.epoch, self._macrobatch):
            for subgraphs in macrobatch.subgraphs:
                for subgraph in subgraphs:
                    yield self._data(subgraph, macrobatch.columns_of(subgraph))

    def _data(self, subgraph: Subgraph, columns: Columns) -> Any:
        reached, edges_before = subgraph.reached, [0, *subgraph.ends]
        seeds = rows_of(subgraph.addresses[: subgraph.num_seeds])
        data: dict[str, Any] = {
            "x": columns["x"],
            "edge_index": subgraph.edge_index(),
            "batch_size": subgraph.num_seeds,
            "n_id": columns["id"],
            "input_id": self._seeds.places_of(seeds),
            "num_sampled_nodes": _steps([0, *reached]),
            "num_sampled_edges": _steps(edges_before),
        } | {str(name): rows for name, rows in subgraph.edges.items()}
        if "y" in columns:
            data["y"] = columns["y"]
        return (_pyg_data() or SampledData)(**data)

    def average_gradients(self, model: nn.Module, num_seeds: int) -> None:
        """Make gradients of a rank's mean loss those of the mean over all ranks' seeds.

        `num_seeds` is what this rank's mean was over: the minibatch's `batch_size`. A rank without
        seeds adds nothing. Every rank calls this after `backward` of each step.
        """
        world, parameters = self.shard.world, list(model.parameters())
        total = sum(row[0] for row in world.gather_numbers([float(num_seeds)], "control"))
        for parameter in parameters:
            if parameter.grad is not None and num_seeds:
                parameter.grad *= num_seeds / total
            else:
                parameter.grad = None
        reduce_gradients(parameters, world)

    def close(self) -> None:
        """Close the channel to the other ranks."""
        self._feed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


def _steps(counts: list[int]) -> list[int]:
    return [after - before for before, after in pairwise(counts)]


@cache
def _pyg_data() -> Any:
    """Return PyG's class, or None where it is not installed."""
    if importlib.util.find_spec("torch_geometric") is None:
        return None
    return importlib.import_module("torch_geometric.data").Data


def _check(shard: Shard, num_neighbors: Sequence[int], batch_size: int, macrobatch: int) -> None:
    if shard.row_ids.device.type != "cpu":
        raise PlanError(
            "Minibatches are drawn on the host.",
            seen=f"a shard on {shard.row_ids.device}",
            fix='open it with siafu.open_shard(path, world, place="host")',
        )
    if not num_neighbors or any(count < -1 or count == 0 for count in num_neighbors):
        raise ConfigError(
            "The numbers of neighbours can't be used.",
            seen=f"num_neighbors={list(num_neighbors)}",
            fix="give a number for each layer, as [15, 10]; -1 takes all in-edges",
        )
    for name, value in (("batch_size", batch_size), ("macrobatch", macrobatch)):
        if value < 1:
            raise ConfigError(f"{name} is too small.", seen=f"{name}={value}", fix="use 1 or more")
