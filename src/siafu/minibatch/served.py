"""What a rank tells of its nodes, to others and to itself: sampled in-edges, and rows.

A node is named by its address, the rank that owns it and its row there, so that no rank needs a
table of all nodes. Shapes: Q requests, S sampled edges, N owned rows,
R halo rows, C columns of the shard.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from siafu.comm import World, exchange_halo
from siafu.errors import ConfigError, DataError
from siafu.ops import ALL, DrawKey, key_words, sample_positions, shared_positions
from siafu.shard import HeldRows, RowReader, Shard

ROW_BITS = 40
_ROW = (1 << ROW_BITS) - 1

EdgeColumn = Literal["edge_weight", "edge_attr", "edge_type"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How neighbours are drawn."""

    fanouts: tuple[int, ...]
    """In-edges kept of a node that is first met at each hop; -1 keeps all."""
    replace: bool = False
    """An edge may be drawn more than once."""
    weighted: bool = False
    """Edges are drawn in proportion to their weights instead of alike."""
    shared: bool = False
    """A draw is of an edge's source: nodes of one key mostly keep the same common sources."""

    def __post_init__(self) -> None:
        """Raise where there is nothing to share."""
        if self.shared and self.replace:
            raise ConfigError(
                "Nodes that share draws keep distinct edges.",
                seen="share_draws with edges drawn with replacement",
                fix="leave --share-draws out, or --sample-replace",
            )
        if self.shared and max(self.fanouts, default=ALL) == ALL:
            raise ConfigError(
                "There are no draws to share: every edge is taken.",
                seen=f"share_draws with fan-outs {', '.join(map(str, self.fanouts))}",
                fix="use a fan-out from 1 somewhere, or leave --share-draws out",
            )


@dataclass(frozen=True, eq=False)
class InEdges:
    """In-edges of requested rows."""

    counts_Q: Tensor
    addresses_S: Tensor
    edges: dict[EdgeColumn, Tensor]


@dataclass(frozen=True, eq=False)
class Served:
    """One rank's nodes, as every rank may ask for them."""

    shard: Shard
    address_C: Tensor
    """int64: of each column of the shard."""
    sources: RowReader
    """Columns of edges."""
    edge_columns: dict[EdgeColumn, RowReader]
    node_columns: dict[str, RowReader]
    weight_E: Tensor | None
    """Chances of edges, where they differ."""
    column_ids_C: Tensor | None = None
    """int64: number in the whole graph of each column, where draws are of sources."""

    @classmethod
    def build(
        cls,
        shard: Shard,
        channel: World,
        sampling: Sampling,
        *,
        edge_columns: tuple[EdgeColumn, ...] = (),
        node_columns: dict[str, RowReader],
    ) -> "Served":
        """Return what this rank serves; every rank calls this together."""
        own_N = torch.arange(shard.num_owned) | channel.rank << ROW_BITS
        halo_R = exchange_halo(own_N, shard.plan, channel)
        assert bool((halo_R[1:] > halo_R[:-1]).all()), "halo rows are in the order of their owners"
        found = {name: shard.reader(name) for name in edge_columns}
        sources = shard.reader("src")
        assert sources is not None, "a graph has edges"
        ids: dict[str, RowReader] = {"id": HeldRows(shard.row_ids)}
        return cls(
            shard,
            torch.cat([own_N, halo_R]),
            sources,
            {name: reader for name, reader in found.items() if reader is not None},
            ids | node_columns,
            _chances(shard) if sampling.weighted else None,
            torch.cat([shard.row_ids, exchange_halo(shard.row_ids, shard.plan, channel)])
            if sampling.shared
            else None,
        )

    @property
    def far_R(self) -> Tensor:
        """Addresses of the halo rows, rising."""
        return self.address_C[self.shard.num_owned :]

    def answer(
        self, rows_Q: Tensor, batch_Q: Tensor, keys: list[DrawKey], fanout: int, how: Sampling
    ) -> InEdges:
        """Return sampled in-edges of these rows, each drawn by the key of its minibatch."""
        indptr, sources = self.shard.csr.indptr, self.sources
        if how.shared and fanout != ALL:
            assert self.column_ids_C is not None, "built for draws of sources"
            ids_C = self.column_ids_C
            counts_Q, positions_S = shared_positions(
                indptr,
                rows_Q,
                batch_Q,
                key_words(keys),
                fanout,
                lambda edges_E: ids_C.index_select(0, sources.read(edges_E)),
            )
        else:
            counts_Q, positions_S = sample_positions(
                indptr,
                rows_Q,
                self.shard.row_ids.index_select(0, rows_Q),
                batch_Q,
                keys,
                fanout,
                replace=how.replace,
                weight_E=self.weight_E if how.weighted else None,
            )
        if how.weighted:
            self.shard.let_go()
        columns_S = sources.read(positions_S)
        edges = {
            name: reader.read(positions_S)
            for name, reader in self.edge_columns.items()
            if not (how.weighted and name == "edge_weight")  # they are in the draw already
        }
        return InEdges(counts_Q, self.address_C.index_select(0, columns_S), edges)


def owners_of(addresses: Tensor) -> Tensor:
    """Return the rank that owns each address."""
    return addresses >> ROW_BITS


def rows_of(addresses: Tensor) -> Tensor:
    """Return the row of each address on its rank."""
    return addresses & _ROW


def _chances(shard: Shard) -> Tensor:
    if shard.csr.weight is None:
        raise DataError(
            "Edges can't be drawn by weight: they have none.",
            seen=shard.name,
            fix="leave --sample-weighted out, or ingest the edges with a weight",
        )
    return shard.csr.weight
