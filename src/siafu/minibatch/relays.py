"""What draws for a feed: relays over the hosts of ranks, or over a device that has the edges."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from siafu.comm import World
from siafu.minibatch.device_relay import DeviceGraph, DeviceRelay, device_bytes
from siafu.minibatch.placement import (
    Load,
    PinnedRows,
    Place,
    RowsOn,
    as_movable,
    choose_place,
    free_bytes,
    free_here,
    hottest,
    moved,
    placed,
)
from siafu.minibatch.relay import Relay
from siafu.minibatch.schedule import Schedule
from siafu.minibatch.served import Sampling, Served
from siafu.minibatch.whole_graph import WholeGraph
from siafu.ops import CSR
from siafu.shard import RowReader

_ADDED_BYTES = 4
"""Of a number of a column that is added."""
Left = Callable[[], int]
"""Returns the bytes that every rank may still take; all call it together."""
RelayFor = Callable[[Sampling], Relay]
"""Makes what draws in-edges of nodes in some way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placing:
    """What is asked of where rows lie."""

    rows_on: RowsOn
    rows_name: str
    """The column that has the features."""
    hot_bytes: int
    columns: tuple[str, ...]
    """Of nodes, those that training reads; some may be added later."""
    added_width: int
    """Numbers per node of those that are."""
    deals_edges: bool
    left: Left | None
    """Where memory is limited."""


@dataclass(frozen=True, eq=False)
class Relays:
    """Where rows lie, and what reads them there; every rank makes them together."""

    place: Place
    served: Served
    channel: World
    seed: int
    there: Served
    """What is read for training, where that is elsewhere."""
    graph: DeviceGraph | None = None
    whole: WholeGraph | None = None

    @classmethod
    def build(cls, served: Served, channel: World, seed: int, asked: Placing) -> "Relays":
        """Return them, with edges and rows brought to where they are to lie."""
        shard = served.shard
        whole = WholeGraph(served) if shard.world.size > 1 and asked.rows_on != "host" else None
        place = _place(served, whole, asked)
        if place.rows == "host":
            return cls(place, served, channel, seed, served)
        if whole is not None:
            there = whole.served(asked.columns)
            return cls(place, served, channel, seed, there, whole.graph(), whole)
        hot = None
        if place.rows == "pinned":
            hot = hottest(shard, row_bytes(served, asked.rows_name), place.hot_bytes)
        columns = {
            name: placed(reader, place, hot)
            if name == asked.rows_name
            else moved(reader, place.device)
            for name, reader in served.node_columns.items()
        }
        graph = DeviceGraph.build(served, place.device)
        there = replace(served, node_columns=columns)
        return cls(place, served, channel, seed, there, graph)

    def training(self, how: Sampling) -> Relay:
        """Return what draws minibatches to train on."""
        if self.graph is None:
            return Relay(self.served, self.channel, how, self.seed)
        holds = self.place.rows == "device"
        return DeviceRelay(self.graph, self.there, self.channel, how, self.seed, holds_rows=holds)

    def own(self, how: Sampling) -> Relay:
        """Return what draws for own nodes by their addresses, to score and to infer."""
        if self.place.everywhere:
            return Relay(self.served, self.channel, how, self.seed)
        return self.training(how)

    def add(self, name: str, reader: RowReader) -> None:
        """Have another column of own nodes served; all ranks call this together."""
        self.served.node_columns[name] = reader
        if self.whole is not None:
            reader = self.whole.rows(reader)
        self.there.node_columns[name] = reader

    def dealt(self, schedule: Schedule) -> Schedule:
        """Return a schedule whose seeds are named as training's relay knows nodes."""
        schedule = schedule if self.whole is None else self.whole.dealt(schedule)
        return schedule if self.graph is None else schedule.on(self.graph.device)

    @property
    def device_hits(self) -> float | None:
        """The share of rows of pinned memory that had copies on the device, where that is asked."""
        readers = self.there.node_columns.values()
        return next((one.hits for one in readers if isinstance(one, PinnedRows)), None)


def row_bytes(served: Served, name: str) -> int:
    """Return the bytes of a row of a column."""
    reader = served.node_columns[name]
    return reader.dtype.itemsize * (reader.shape[1] if len(reader.shape) > 1 else 1)


def _place(served: Served, whole: WholeGraph | None, asked: Placing) -> Place:
    shard = served.shard
    if asked.rows_on == "host" or shard.is_mapped:
        return choose_place(asked.rows_on, shard, Load(), lambda: 0, 0)
    is_dense = not isinstance(shard.x, CSR) or asked.rows_name == "coded"
    nodes, edges = shard.num_owned, shard.csr.num_edges
    rows = as_movable(served.node_columns[asked.rows_name]).nbytes
    if whole is not None:
        nodes, edges = sum(whole.nodes), sum(whole.edges)
        wide = row_bytes(served, asked.rows_name) if asked.rows_name in asked.columns else 0
        rows = nodes * (wide + _ADDED_BYTES * asked.added_width)
    load = Load(
        graph=device_bytes(served, nodes, edges),
        rows=rows,
        is_dense=is_dense,
        deals_edges=asked.deals_edges,
    )

    def free() -> int:
        return asked.left() if asked.left else free_here(shard.world, free_bytes(device))

    device = shard.world.device
    return choose_place(asked.rows_on, shard, load, free, asked.hot_bytes)
