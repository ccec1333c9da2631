"""Drawing some minibatches of a graph that is here, so that a plan tells what they have.

Seeds and edges are drawn as the first epoch of a run draws them, on one process for all ranks.
Shapes: N nodes, V nodes of a minibatch, S edges drawn.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from siafu.config import RunConfig
from siafu.graph import Array, Graph, SparseFeatures
from siafu.minibatch.fetched_rows import packs
from siafu.minibatch.macrobatch_size import MOST_STEPS
from siafu.minibatch.relay import epoch_of_draws
from siafu.minibatch.schedule import ORDER_PURPOSE, draws_of
from siafu.ops import (
    ALL,
    DrawKey,
    Numbering,
    key_words,
    sample_positions,
    shared_positions,
    uniform_rows,
)
from siafu.plan.sampled import read_fanout
from siafu.plan.statistics import DrawnMinibatches

_MOST_RANKS = 8
"""Whose minibatches are drawn; the others are taken to be like them."""
_SIZES = MOST_STEPS.bit_length()
_MOST_EDGES = 6_000_000
"""Drawn for one cut, after which no further step is."""


@dataclass
class _Rank:
    """What a rank's minibatches have had so far."""

    number: int
    seeds: Tensor
    seen: list[Numbering] = field(default_factory=lambda: [Numbering() for _ in range(_SIZES)])
    """Nodes of the macrobatch that is drawn, of 1, 2, 4, ... steps."""
    rows: Array = field(default_factory=lambda: np.zeros(_SIZES))
    """Distinct ones of all macrobatches of such a size."""
    far_rows: Array = field(default_factory=lambda: np.zeros(_SIZES))
    whole: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By size: both per step, as the last whole macrobatch left them."""


def draw_minibatches(
    graph: Graph, part_of: Array, ranks: int, config: RunConfig
) -> DrawnMinibatches | None:
    """Return what minibatches of own seeds have on ranks of these parts; None without seeds."""
    train = np.ones(graph.num_nodes, bool) if graph.train is None else np.asarray(graph.train)
    owner_N = torch.from_numpy(np.asarray(part_of, np.int64))
    totals = np.bincount(np.asarray(part_of)[train], minlength=ranks)
    if not totals.sum():
        return None
    steps = -(-int(totals.max()) // config.batch_size)
    chosen = np.unique(np.linspace(0, ranks - 1, min(ranks, _MOST_RANKS)).round().astype(int))
    known = [_Rank(int(rank), _seeds(train, part_of, int(rank), config.seed)) for rank in chosen]
    drawing = _Drawing(graph, owner_N, ranks, steps, config)
    for step in range(min(steps, MOST_STEPS)):
        for rank in known:
            low, high = (len(rank.seeds) * place // steps for place in (step, step + 1))
            drawing.draw(rank, step, rank.seeds[low:high])
        if drawing.num_edges > _MOST_EDGES:
            break
    count = drawing.num_drawn
    # Of macrobatches larger than what was drawn nothing is known, unless that was all.
    sizes = [place for place in range(_SIZES) if 1 << place < 2 * steps and place in known[0].whole]
    rows, far_rows = (
        tuple(float(np.mean([rank.whole[place][kind] for rank in known])) for place in sizes)
        for kind in (0, 1)
    )
    return DrawnMinibatches(
        steps=steps,
        reached=tuple((drawing.reached / count).tolist()),
        edges=tuple((drawing.edges / count).tolist()),
        requests=drawing.requests / count,
        answers=drawing.answers / count,
        rows=rows,
        far_rows=far_rows,
        packed_bytes=_packed_bytes(graph),
    )


def _seeds(train: Array, part_of: Array, rank: int, seed: int) -> Tensor:
    """Return the training nodes of a rank in the order of its first pass."""
    ids = torch.from_numpy(np.flatnonzero(train & (np.asarray(part_of) == rank)))
    draws = uniform_rows(DrawKey(seed, 1, ORDER_PURPOSE), ids, 1, dtype=torch.float64)
    return ids[draws[:, 0].argsort(stable=True)]


def _packed_bytes(graph: Graph) -> float | None:
    """Return the bytes of a sparse row on its way: numbers and values, or all written out."""
    if not isinstance(graph.x, SparseFeatures):
        return None
    most = max(1, int(np.diff(graph.x.indptr).max(initial=0)))
    return 8.0 * most if packs(most, graph.num_features) else 4.0 * graph.num_features


class _Drawing:
    """Sums over the minibatches drawn."""

    def __init__(
        self, graph: Graph, owner_N: Tensor, ranks: int, steps: int, config: RunConfig
    ) -> None:
        self._indptr = torch.from_numpy(np.array(graph.indptr, np.int64))
        self._graph, self._owner_N, self._ranks = graph, owner_N, ranks
        self._fanouts = fanouts = read_fanout(config.fanout, config.layers)
        self._seed, self.steps = config.seed, steps
        self._share_draws = config.share_draws
        self.reached, self.edges = np.zeros(len(fanouts) + 1), np.zeros(len(fanouts))
        self.requests = self.answers = 0.0
        self.num_drawn = self.num_edges = 0

    def draw(self, rank: _Rank, step: int, seeds: Tensor) -> None:
        """Draw one minibatch, and note what it has."""
        nodes = Numbering()
        frontier = nodes.add(seeds)[1]
        number = step * self._ranks + rank.number
        epoch = epoch_of_draws(1, draws_of(number, self._ranks, self._share_draws))
        self.reached[0] += len(frontier)
        for hop, fanout in enumerate(self._fanouts):
            key = DrawKey(self._seed, epoch, ORDER_PURPOSE + 1 + hop)
            counts, positions = self._drawn(frontier, key, fanout)
            is_far = self._owner_N[frontier] != rank.number
            self.requests += int(is_far.sum())
            self.answers += int(counts[is_far].sum())
            sources = self._sources(positions)
            frontier = nodes.add(sources)[1]
            self.edges[hop] += len(sources)
            self.reached[hop + 1] += len(nodes)
            self.num_edges += len(sources)
        for place in range(_SIZES):
            if step % (1 << place) == 0:
                rank.seen[place] = Numbering()
            _, new = rank.seen[place].add(nodes.keys)
            rank.rows[place] += len(new)
            rank.far_rows[place] += int((self._owner_N[new] != rank.number).sum())
            if (step + 1) % (1 << place) == 0 or step + 1 == self.steps:
                found = rank.rows[place] / (step + 1), rank.far_rows[place] / (step + 1)
                rank.whole[place] = found
        self.num_drawn += 1

    def _drawn(self, frontier: Tensor, key: DrawKey, fanout: int) -> tuple[Tensor, Tensor]:
        """Return how many edges each node draws, and their places."""
        batch = torch.zeros_like(frontier)
        if not self._share_draws or fanout == ALL:
            return sample_positions(self._indptr, frontier, frontier, batch, [key], fanout)
        words = key_words([key])
        return shared_positions(self._indptr, frontier, batch, words, fanout, self._sources)

    def _sources(self, edges: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(self._graph.src[edges.numpy()], np.int64))
