"""What a plan needs to know of a graph: counts, how its degrees spread, and what cuts of it cost.

They come from a graph or a parts folder, from a small file, or from the list of known graphs here.
For numbers of ranks at which it was not cut, a law is fitted to the cuts that there are.

N nodes, P ranks; halo rows are rows of others that a rank reads, over all ranks.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from siafu.errors import ConfigError, did_you_mean
from siafu.files import read_mapping
from siafu.graph import Array, FeatureColumn, Graph, SparseFeatures
from siafu.partitioning import Quality

_MOST = 1 << 50
_HALVINGS = 40
_TYPICAL_SHARE = 0.3
"""Halo rows of a cut by METIS, of those of a cut at random, where no cut is known: 0.24 to 0.37 for
2 to 64 parts of arxiv."""
_TYPICAL_EVENNESS = 1.1
"""The largest part's nodes or edges over the mean, likewise."""


_PLACES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(48)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
"""Where a function of a standard normal variable is looked at, and how much that counts."""


class DrawnMinibatches(BaseModel):
    """What minibatches of a cut graph have that were drawn for a plan: means over them."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    steps: int = Field(ge=1)
    """Of an epoch, each with a minibatch on every rank."""
    reached: tuple[float, ...] = Field(min_length=2)
    """Nodes met up to each hop, from the seeds alone to all."""
    edges: tuple[float, ...]
    """Drawn at each hop."""
    requests: float = 0.0
    """Nodes whose in-edges other ranks draw."""
    answers: float = 0.0
    """Edges that other ranks draw."""
    rows: tuple[float, ...] = Field(min_length=1)
    """Distinct nodes of a rank per step, where 1, 2, 4, 8, ... steps go together."""
    far_rows: tuple[float, ...] = Field(min_length=1)
    """Those of them that other ranks own."""
    packed_bytes: float | None = None
    """Of a node's features on their way, where they are sparse."""


class CutStatistics(BaseModel):
    """One way to cut a graph: the largest part, and what all parts read of each other."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ranks: int = Field(ge=1, le=1 << 20)
    halo_rows: int = Field(ge=0, le=_MOST)
    """Of all parts."""
    rows: int = Field(0, ge=0, le=_MOST)
    """Nodes of the largest part; 0: the mean, and a tenth more."""
    edges: int = Field(0, ge=0, le=_MOST)
    """Edges of the part that has most."""
    largest_halo: int = Field(0, ge=0, le=_MOST)
    """Halo rows of the part that reads most."""
    is_measured: bool = True
    """False: from the law."""
    drawn: DrawnMinibatches | None = None
    """Of the plan's batch size and fan-out."""

    @classmethod
    def of(cls, quality: Quality) -> "CutStatistics":
        """Return what the quality of a cut says."""
        return cls(
            ranks=quality.num_parts,
            halo_rows=sum(quality.halo_rows),
            rows=max(quality.nodes),
            edges=max(quality.edges),
            largest_halo=max(quality.halo_rows),
        )


class GraphStatistics(BaseModel):
    """A graph in numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = "graph"
    nodes: int = Field(ge=1, le=_MOST)
    edges: int = Field(ge=0, le=_MOST)
    """As they are stored: an undirected edge counts twice."""
    features: int = Field(ge=1, le=10**7)
    classes: int = Field(2, ge=1, le=10**7)
    train_share: float = Field(0.6, ge=0, le=1)
    """Training nodes, of all."""
    degree_spread: float = Field(1.0, ge=0, le=10)
    """Deviation of the logarithms of the nodes' out-degrees."""
    edge_features: int = Field(0, ge=0)
    edge_types: int = Field(0, ge=0)
    is_weighted: bool = False
    stored_feature_bytes: float | None = None
    """Of a node's features where they are sparse; else 4 bytes each."""
    cuts: tuple[CutStatistics, ...] = ()
    method: str = "metis"
    """How it was cut, or is to be: `hash` is at random."""

    @property
    def is_sparse(self) -> bool:
        """Whether features are stored as sparse rows."""
        return self.stored_feature_bytes is not None

    @property
    def row_bytes(self) -> float:
        """Bytes of a node's features."""
        stored = self.stored_feature_bytes
        return 4.0 * self.features if stored is None else stored

    @property
    def edge_bytes(self) -> int:
        """Bytes of an edge with what it carries."""
        return 4 + 4 * self.is_weighted + 4 * self.edge_features + 4 * bool(self.edge_types)

    @cached_property
    def _measured(self) -> dict[int, CutStatistics]:
        return {cut.ranks: cut for cut in self.cuts}

    def random_halo(self, ranks: int) -> float:
        """Return the halo rows of a cut at random.

        A node with d out-edges is read by (P - 1) (1 - (1 - 1/P)^d) ranks; degrees are taken as
        log-normal with the graph's mean and spread.
        """
        if ranks < 2 or not self.edges:
            return 0.0
        degrees, weights = self._degrees()
        unread = float(np.exp(math.log1p(-1 / ranks) * degrees) @ weights)
        return self.nodes * (ranks - 1) * (1 - unread)

    def _degrees(self) -> tuple[Array, Array]:
        """Return degrees and how many of the nodes have them."""
        # The mean of exp(s z) over a standard normal z is exp(s^2 / 2).
        spread = self.degree_spread
        return self.edges / self.nodes * np.exp(spread * _PLACES - spread**2 / 2), _WEIGHTS

    def mean_drawn(self, fanout: int, *, is_met: bool) -> float:
        """Return the edges drawn for a node on average; who was met by an edge has more of them."""
        degrees, weights = self._degrees()
        if not self.edges:
            return 0.0
        if is_met:
            weights = weights * degrees / (weights @ degrees)
        taken = degrees if fanout < 0 else np.minimum(degrees, fanout)
        return float(taken @ weights)

    def distinct_sources(self, drawn: float) -> float:
        """Return how many nodes so many edges, drawn at random, start at."""
        if not self.edges:
            return 0.0
        degrees, weights = self._degrees()
        return self.nodes * float(-np.expm1(-drawn * degrees / self.edges) @ weights)

    def cut_share(self, cut: CutStatistics) -> float:
        """Return the share of edges, drawn at random, that would start at the rows of the halos.

        A cut may go through more of them, which start at the same few rows.
        """
        if cut.ranks < 2 or not self.edges:
            return 0.0
        away = (cut.ranks - 1) / cut.ranks
        low, high = 0.0, away
        for _ in range(_HALVINGS):
            share = (low + high) / 2
            read = self.distinct_sources(self.edges / cut.ranks * share / away) * away * cut.ranks
            low, high = (share, high) if read < cut.halo_rows else (low, share)
        return high

    def at(self, ranks: int) -> CutStatistics:
        """Return what a cut into so many parts is, or what the law says of it."""
        if ranks in self._measured:
            return self._filled(self._measured[ranks])
        halo = 0 if ranks == 1 else round(self.random_halo(ranks) * self._share(ranks))
        cut = CutStatistics(ranks=ranks, halo_rows=halo, is_measured=ranks == 1)
        return self._filled(cut)

    def _share(self, ranks: int) -> float:
        """Return the halo rows of a cut over those of a random one: a power of the ranks."""
        if self.method == "hash":
            return 1.0
        known = [
            (math.log(cut.ranks), math.log(max(1e-6, cut.halo_rows / random)))
            for cut in self.cuts
            if cut.ranks > 1 and (random := self.random_halo(cut.ranks))
        ]
        if not known:
            return _TYPICAL_SHARE
        places, shares = (np.array(column) for column in zip(*known, strict=True))
        slope = 0.0
        if len(known) > 1:
            slope = float(np.polyfit(places, shares, 1)[0])
        level = float(shares.mean() - slope * places.mean())
        return min(1.0, math.exp(level + slope * math.log(ranks)))

    def _filled(self, cut: CutStatistics) -> CutStatistics:
        """Return the cut with what it does not tell as the other cuts have it."""
        ranks, halo = cut.ranks, cut.halo_rows
        whole = ranks == 1
        rows = cut.rows or math.ceil(self.nodes / ranks * (1 if whole else self._evenness("rows")))
        edges = cut.edges or math.ceil(
            self.edges / ranks * (1 if whole else self._evenness("edges"))
        )
        largest = cut.largest_halo or math.ceil(halo / ranks * self._evenness("largest_halo"))
        found = {
            "rows": min(rows, self.nodes),
            "edges": min(edges, self.edges),
            "largest_halo": min(largest, halo, self.nodes),
        }
        return cut.model_copy(update=found)

    def _evenness(self, name: str) -> float:
        """Return the largest part over the mean, as the cuts of most parts have it."""
        totals = {"rows": self.nodes, "edges": self.edges}
        found = [
            getattr(cut, name) * cut.ranks / total
            for cut in sorted(self.cuts, key=lambda cut: cut.ranks)
            if cut.ranks > 1 and getattr(cut, name) and (total := totals.get(name, cut.halo_rows))
        ]
        return max(1.0, found[-1]) if found else _TYPICAL_EVENNESS

    def with_cuts(self, cuts: Sequence[CutStatistics]) -> "GraphStatistics":
        """Return the same graph with further cuts, which come before those it had."""
        return self.model_copy(
            update={"cuts": tuple({cut.ranks: cut for cut in (*self.cuts, *cuts)}.values())}
        )


def _prepared_width(graph: Graph) -> int:
    """Return how many features the columns of a table are about to become."""
    if graph.schema is None or graph.schema.is_fitted:
        return graph.num_features
    used = [column for column in graph.schema.nodes if column.use]
    levels = [_levels(graph, c) for c in used if c.kind == "category"]
    numbers = sum(column.kind != "category" for column in used)
    return numbers + sum(levels) + sum(column.gaps > 0 for column in used)


def _levels(graph: Graph, column: FeatureColumn) -> int:
    """Return how many features a column of categories becomes; numbers may be used as such."""
    count = len(column.categories)
    if not count and isinstance(graph.x, np.ndarray) and graph.schema is not None:
        values = graph.x[:, [one.name for one in graph.schema.nodes].index(column.name)]
        count = len(np.unique(values[np.isfinite(values)]))
    return min(count, column.most_levels + 1)


def graph_statistics(graph: Graph, *, classes: int | None = None) -> GraphStatistics:
    """Return the numbers of a graph that is here, without any cut."""
    sources = np.asarray(graph.src)
    degree = np.bincount(sources, minlength=graph.num_nodes) if len(sources) else np.zeros(1)
    stored = None
    if isinstance(graph.x, SparseFeatures):
        stored = 8 + 8 * len(graph.x.index) / max(1, graph.num_nodes)
    train = None if graph.train is None else float(np.asarray(graph.train).mean())
    return GraphStatistics(
        name=graph.name,
        nodes=max(1, graph.num_nodes),
        edges=graph.num_edges,
        features=max(1, _prepared_width(graph) if graph.x is not None else 1),
        classes=max(1, classes or graph.num_targets or graph.num_classes),
        train_share=1.0 if train is None else train,
        degree_spread=float(np.log(degree[degree > 0]).std()) if degree.any() else 0.0,
        edge_features=0 if graph.edge_attr is None else graph.edge_attr.shape[1],
        edge_types=graph.num_edge_types,
        is_weighted=graph.edge_weight is not None,
        stored_feature_bytes=stored,
    )


def read_statistics(path: Path) -> GraphStatistics:
    """Return the statistics that a YAML, TOML or JSON file holds."""
    known = ", ".join(GraphStatistics.model_fields)
    try:
        return GraphStatistics(**{"name": path.stem, **read_mapping(path)})
    except (OSError, ValueError) as error:
        seen = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            seen = f"{key}: {first['msg']}{did_you_mean(key, list(GraphStatistics.model_fields))}"
        raise ConfigError(
            "The statistics of a graph can't be read.",
            seen=f"{path}: {seen}",
            fix=f"write lines such as `nodes: 1000000`; nodes, edges and features are needed, "
            f"known are {known}",
        ) from error


def _named(name: str, counts: tuple[int, int, int, int], train: float) -> GraphStatistics:
    nodes, edges, features, classes = counts
    return GraphStatistics(
        name=name, nodes=nodes, edges=edges, features=features, classes=classes, train_share=train
    )


_ARXIV_CUTS = (
    (2, 57_125, 90_666, 1_241_941, 29_049),
    (4, 111_895, 44_765, 611_964, 32_269),
    (8, 178_786, 22_227, 303_930, 33_069),
    (16, 260_685, 11_113, 151_966, 25_319),
    (32, 342_858, 5_580, 76_311, 20_867),
)
"""By METIS: ranks, halo rows, nodes and edges of the largest part, and its halo rows."""
_LIST = (
    _named("papers100M", (111_059_956, 3_231_371_744, 128, 172), 0.0109),
    _named("products", (2_449_029, 123_718_280, 100, 47), 0.08),
    _named("arxiv", (169_343, 2_315_598, 128, 40), 0.537).model_copy(
        update={
            "degree_spread": 1.149,
            "cuts": tuple(
                CutStatistics(ranks=p, halo_rows=h, rows=n, edges=e, largest_halo=m)
                for p, h, n, e, m in _ARXIV_CUTS
            ),
        }
    ),
    _named("reddit", (232_965, 114_615_892, 602, 41), 0.66),
    _named("amazon", (9_200_000, 313_900_000, 300, 25), 0.66),
    _named("friendster", (65_600_000, 3_600_000_000, 32, 50), 0.66),
    _named("mag240M", (121_751_666, 2_595_497_852, 768, 153), 0.0091),
)
KNOWN: dict[str, GraphStatistics] = {one.name: one for one in _LIST}
"""Public graphs in plain numbers, edges in both directions; but for arxiv without a cut of them."""
