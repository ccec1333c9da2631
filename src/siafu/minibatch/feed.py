"""From a shard to what a model is given of each minibatch: rows, edges, labels.

Shapes: V nodes of a minibatch, N owned rows, M rows a layer writes, F features.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from siafu.comm import tell
from siafu.minibatch.copies import Copier
from siafu.minibatch.feature_rows import fact_rows, feature_rows, sampled_of
from siafu.minibatch.fetched_rows import (
    CodedRows,
    HotRows,
    PackedRows,
    decode_coded_rows,
    packed_rows,
    unpack_rows,
)
from siafu.minibatch.layerwise import Room, WideRows, map_rows
from siafu.minibatch.link_seeds import EdgeOrder, LinkBatching, LinkSeeds
from siafu.minibatch.macrobatch import MacrobatchSampler
from siafu.minibatch.macrobatch_size import Trial, draw_trial
from siafu.minibatch.placement import RowsOn
from siafu.minibatch.prepared import prepare
from siafu.minibatch.relay import Relay
from siafu.minibatch.relays import Left, Placing, Relays, row_bytes
from siafu.minibatch.schedule import Schedule, SeedOrder
from siafu.minibatch.served import ROW_BITS, EdgeColumn, Sampling, Served
from siafu.minibatch.subgraph import Subgraph
from siafu.nn import CachedRows, Draws, LocalNeighbours, Rows
from siafu.nn.cards import InputAggregation
from siafu.ops import CSR, sum_type
from siafu.shard import HeldRows, RowReader, Shard

Columns = dict[str, Tensor]
"""Rows of a minibatch's nodes, by what they are: x, id, y ..."""

_TIMES_ON_DEVICE = 8
"""How many times larger pieces are than on a host."""
_READING_BYTES = 1 << 24
"""What threads take that read rows of files: a buffer of 150 KB and a stack each."""
_NUMBERS_BYTES = 32
"""A node's id and degrees."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """What a model reads beside the features."""

    facts: bool = False
    """Degrees in the whole graph: sums of sampled edges are scaled by them."""
    aggregate: InputAggregation | None = None
    """What the first layer asks of its constant input, computed once with all in-edges."""
    rows_too: bool = True
    """False where that aggregate is all the first layer reads."""
    edge_columns: tuple[EdgeColumn, ...] = ("edge_weight",)
    normalise: bool = False
    """Scale each feature row to sum to 1."""
    feature_bits: int = 32
    """32, or 8."""
    sparse: bool = False
    """The model reads sparse features as they are; False has their zeros written out."""
    hot_bytes: int = 0
    """Memory for rows kept near: of other ranks, or of pinned ones on the device."""
    loops: bool = False
    """Layers add a loop to each row, and have nothing of edges."""
    projects: bool = False
    """Rows that the first layer reads are mapped before they are gathered."""
    dtype: torch.dtype = torch.float32
    """What the first layer rounds features to before all else, and so what they are held in."""
    rows_on: RowsOn = "host"
    """Where rows lie while minibatches are drawn and trained on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batching:
    """How seeds become minibatches and steps."""

    batch_size: int
    order: SeedOrder = "local"
    step_minibatches: int | None = None
    """None: one per rank."""
    links: LinkBatching | None = None
    """Where given, minibatches are of edges."""
    most_steps: int | None = None
    share_draws: int = 0
    """Steps in turn whose minibatches at one place draw edges alike, where these are shared."""


class Feed:
    """One rank's side of sampling: every rank makes one together, and closes it."""

    def __init__(
        self,
        shard: Shard,
        sampling: Sampling,
        batching: Batching,
        needs: Needs,
        draws: Draws,
        left: Left | None = None,
    ) -> None:
        """`left` tells how much memory may still be taken, where that is limited."""
        self.shard, self.needs, self.draws, self._left = shard, needs, draws, left
        self.rounding_error, self.weighted = 0.0, sampling.weighted
        self._hot: HotRows | None = None
        self.channel = shard.world.second_line()
        self._packed = self._packed_features()
        kind = torch.float32 if needs.feature_bits == 8 else needs.dtype
        x = feature_rows(shard, normalise=needs.normalise, dtype=kind)
        self.width = x.shape[1]
        self.rows_name = "x" if self._packed is None else "packed"
        """Which column has the features."""
        if needs.feature_bits == 8:
            self.rows_name = "coded"
        served = Served.build(
            shard,
            self.channel,
            sampling,
            edge_columns=needs.edge_columns,
            node_columns=self._node_columns(x),
        )
        self.columns = self._columns()
        asked = Placing(
            rows_on=needs.rows_on,
            rows_name=self.rows_name,
            hot_bytes=needs.hot_bytes,
            columns=(*self.columns, "y"),
            added_width=0 if needs.aggregate is None else self.width,
            deals_edges=batching.links is not None,
            left=left,
        )
        self._relays = Relays.build(served, self.channel, draws.seed, asked)
        self.place, self.relay_for = self._relays.place, self._relays.own
        self.relay = self._relays.training(sampling)
        self.whole = self.relay_for(Sampling(fanouts=(-1,)))
        self._trial: Trial | None = None
        if needs.aggregate is not None:
            self._relays.add("aggregate", self._aggregated(needs.aggregate))
        self.links = self._link_seeds(batching)
        seed_columns = ("y",) if shard.y is not None and self.links is None else ()
        schedule = self._relays.dealt(_schedule(shard, batching, draws.seed, self.links))
        self._hot = self._hot_rows()
        self.sampler = MacrobatchSampler(
            self.relay, schedule, self.columns, seed_columns, self._hot, self.links
        )
        if self.place.rows == "host" and shard.world.device.type == "cuda":
            self.sampler.copier = Copier(shard.world.device, self.decoded)
        if self.place.rows != "host":
            self.sampler.finish = partial(
                prepare, loops=needs.loops, first_layer=needs.loops or needs.projects
            )

    def close(self) -> None:
        """Close the channel to the other ranks."""
        self.sampler.close()
        self.channel.close()

    def layer_relays(self, layers: int, *, drawn: bool) -> list[Relay]:
        """Return what reaches the in-neighbours of each layer: all, or as training draws them."""
        if not drawn:
            return [self.whole] * layers
        # The first layer's hop is the last; with a cached input it has none, and takes all edges.
        how = replace(self.relay.sampling, shared=False)  # what scores err by should not add up
        hops = [replace(how, fanouts=(fanout,)) for fanout in how.fanouts]
        relays = [self.whole if hop.fanouts == (-1,) else self.relay_for(hop) for hop in hops]
        return [self.whole] * (layers - len(hops)) + relays[::-1]

    @property
    def device_hits(self) -> float | None:
        """The share of rows of pinned memory that had copies on the device, where that is asked."""
        return self._relays.device_hits

    def _link_seeds(self, batching: Batching) -> LinkSeeds | None:
        if batching.links is None:
            return None
        shard, seed, of_all = self.shard, self.draws.seed, batching.order == "global"
        order = EdgeOrder(shard, self.channel, seed, of_all_ranks=of_all)
        return LinkSeeds(shard, batching.links, order, seed)

    def _packed_features(self) -> PackedRows | None:
        """Return sparse features that stay so, unless something else is made of them."""
        x, needs = self.shard.x, self.needs
        if not (needs.sparse and isinstance(x, CSR)):
            return None
        if needs.feature_bits != 32 or needs.aggregate is not None:
            return None
        assert x.weight is not None
        x = x.with_weight(x.weight.to(sum_type(needs.dtype)))
        return packed_rows(x, self.shard.world, normalise=needs.normalise)

    def _node_columns(self, x: RowReader) -> dict[str, RowReader]:
        shard = self.shard
        columns: dict[str, RowReader] = {}
        if self.needs.feature_bits == 8:
            coded = CodedRows(x, shard.row_ids, self.draws.seed)
            columns["coded"], self.rounding_error = coded, coded.error()
        else:
            columns[self.rows_name] = x if self._packed is None else self._packed
        if shard.y is not None:
            columns["y"] = HeldRows(shard.y)
        if self.needs.facts:
            columns["facts"] = HeldRows(fact_rows(shard))
        return columns

    def _columns(self) -> tuple[str, ...]:
        wanted = {
            self.rows_name: self.needs.aggregate is None or self.needs.rows_too,
            "aggregate": self.needs.aggregate is not None,
            "facts": self.needs.facts,
            "id": True,
        }
        return tuple(name for name, is_wanted in wanted.items() if is_wanted)

    def _aggregated(self, aggregation: InputAggregation) -> RowReader:
        """Return the constant input of a first layer, from all in-edges of every node."""
        columns = (self.rows_name, "id", *(["facts"] if self.needs.facts else []))

        @torch.no_grad()
        def aggregate(piece: Subgraph, found: Columns) -> Tensor:
            found = self.decoded(found)
            out: Tensor = getattr(self.neighbours(piece, found, 0, 1), aggregation)(found["x"])
            return out

        far_bytes = self.far_bytes(self.width, self.whole.served.far_R)
        room = self.room(self.width, 1, far_bytes=far_bytes)
        wide = WideRows(self.width, of_read=self.rows_name != "x")
        return map_rows(self.whole, columns, aggregate, room, wide=wide)

    @property
    def is_limited(self) -> bool:
        """Whether memory is limited."""
        return self._left is not None

    def left(self) -> int:
        """Return the bytes that every rank may still take; all call this together."""
        assert self._left is not None, "memory is limited"
        mine = self._left() - (0 if self._hot is None else self._hot.free_bytes)
        # What hot rows will take differs by rank; rounds of fetching and places of rows may not.
        return int(min(row[0] for row in tell([float(mine)], self.channel, "control")))

    @property
    def infers_on_host(self) -> bool:
        """Whether rows of all nodes, layer by layer, are read and kept on the hosts of ranks."""
        return self.place.rows == "host" or self.place.everywhere

    @property
    def is_ahead(self) -> bool:
        """Whether pieces are made ready beside others that compute: not on the same one core."""
        computes_elsewhere = self.shard.world.device.type != "cpu" or torch.get_num_threads() > 1
        return computes_elsewhere and self.infers_on_host

    def far_bytes(self, width: int, far_R: Tensor) -> int:
        """Return what rows of this width, fetched of other ranks, take with ids and degrees."""
        return len(far_R) * (4 * width + _NUMBERS_BYTES)

    def room(
        self, width: int, count: int, num_rows: int | None = None, *, far_bytes: int = 0
    ) -> Room:
        """Return where `count` times all owned rows of this width go, and what is left for pieces.

        `num_rows` where only some of them are made; `far_bytes` of other ranks' rows go there too.
        Every rank calls this together.
        """
        if not self.is_limited:
            times = 1 if self.infers_on_host else _TIMES_ON_DEVICE
            return Room(on_disk=self.shard.is_mapped, times=times, ahead=self.is_ahead)
        rows = self.shard.num_owned if num_rows is None else num_rows
        mine = float(4 * width * rows * count + far_bytes)
        held = int(max(row[0] for row in tell([mine], self.channel, "control")))
        left = self.left()
        on_disk = self.shard.is_mapped or held > left // 2
        return Room(on_disk, left - (_READING_BYTES if on_disk else held), ahead=self.is_ahead)

    def _hot_rows(self) -> HotRows | None:
        bytes_of_row = sum(row_bytes(self.relay.served, name) for name in self.columns)
        capacity = self.needs.hot_bytes // max(1, bytes_of_row)
        if not capacity or self.channel.size == 1 or self.place.everywhere:
            return None
        served, num_owned = self.relay.served, self.shard.num_owned
        others = self.shard.num_nodes - num_owned
        reads_C = torch.zeros(len(served.address_C), dtype=torch.int64)
        for _, _, piece in self.shard.edge_pieces():
            reads_C += torch.bincount(piece.index, minlength=len(reads_C))
        best = reads_C[num_owned:].argsort(descending=True, stable=True)
        fetch = partial(self.relay.fetch, names=self.columns)
        return HotRows(min(capacity, others), served.address_C[num_owned:][best], fetch)

    def trial(self) -> Trial:
        """Return what some steps of the first epoch read; all ranks call this together."""
        if self._trial is None:
            bytes_of_row = sum(row_bytes(self.relay.served, name) for name in self.columns)
            self._trial = draw_trial(self.sampler, bytes_of_row)
        return self._trial

    def decoded(self, columns: Columns) -> Columns:
        """Return the columns with features as numbers."""
        if "coded" not in columns:
            return columns
        x = decode_coded_rows(columns["coded"], self.width)
        return columns | {"x": x.to(self.needs.dtype)}

    def input_of(self, columns: Columns) -> Rows:
        """Return what a first layer reads."""
        if "packed" in columns:
            return unpack_rows(columns["packed"], columns["id"], self.width)
        if "aggregate" not in columns:
            return columns["x"]
        aggregate = columns["aggregate"]
        return CachedRows(columns.get("x", aggregate), aggregate)

    def neighbours(
        self, subgraph: Subgraph, columns: Columns, number: int, layers: int
    ) -> LocalNeighbours:
        """Return the neighbours of one layer of a model."""
        csr = subgraph.layer(number, layers).to(columns["id"].device)
        is_there = csr.device == subgraph.index.device
        at_hand = subgraph.at_hand(number, layers) if is_there else None
        edges = {
            name: rows[: csr.num_edges].to(csr.device)
            for name, rows in subgraph.edges.items()
            if name != "edge_weight"
        }
        sampled = None
        if "facts" in columns:
            by_weight = self.weighted and "edge_weight" not in subgraph.edges
            sampled = sampled_of(csr, columns["facts"], subgraph.removed, by_weight=by_weight)
        ids_N = columns["id"][: csr.num_cols]
        return LocalNeighbours(csr, ids_N, self.draws, **edges, sampled=sampled, at_hand=at_hand)


def _schedule(shard: Shard, batching: Batching, seed: int, links: LinkSeeds | None) -> Schedule:
    """Return the schedule of training nodes or edges; every rank calls this together."""
    world, mine = shard.world, None
    if links is None:
        rows = shard.train
        mine = torch.stack([shard.row_ids[rows], rows | world.rank << ROW_BITS], dim=1)
        totals = [int(row[0]) for row in world.gather_numbers([float(len(mine))])]
    else:
        totals = links.order.totals
    if mine is not None and batching.order == "global":
        table = mine.new_zeros(sum(totals), 2)
        start = sum(totals[: world.rank])
        table[start : start + len(mine)] = mine
        table = world.sum_in_place(table.to(world.device), "control").cpu()
        mine = table[table[:, 0].argsort(stable=True)]
    return Schedule(
        world=world,
        seed=seed,
        ids=None if mine is None else mine[:, 0],
        dealt=None if mine is None else mine[:, 1],
        totals=totals if batching.order == "local" else [sum(totals)],
        order=batching.order,
        batch_size=batching.batch_size,
        step_minibatches=batching.step_minibatches or world.size,
        most_steps=batching.most_steps,
        share_draws=batching.share_draws,
    )
