"""What would the minibatches of a step compute and send as one, beside each on its own?

Counts of `benchmarks.reach --ranks`. Independent, each rank draws the sub-graph of its own
minibatch, computes all of it and fetches the input rows of others. Cooperative, the minibatches of
all ranks are one: each rank draws for and computes the nodes of every layer that it owns, and rows
of cut edges travel; those of hidden layers in every step, and their gradients back. Input rows of k
steps are fetched together in both. Seconds are reckoned from the counts, of SAGE.

Shapes: N nodes, V nodes of a minibatch, P ranks, L layers; [P, P] is from a rank to another.
"""

import time
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.sampling import Minibatch, Sampler, sample_minibatch
from siafu.graph import Array
from siafu.minibatch.schedule import draws_of
from siafu.ops import CSR


class Widths(NamedTuple):
    """Columns of a model."""

    features: int
    hidden: int
    classes: int

    def of(self, layers: int) -> list[int]:
        """Return what each layer reads, and what the last one writes."""
        return [self.features, *[self.hidden] * (layers - 1), self.classes]


MEASURED = Widths(100, 256, 47), [[97496.0], [14390.0], [1000.0]], 0.210149
"""A step on one core of an AMD EPYC: rows that its layers write, seconds (`results/step.jsonl`)."""
LINKS = (1, 10, 100)
"""Gbit/s, in each direction at once."""
_FLOAT, _ID, _COUNT = 4, 8, 4


class Load(NamedTuple):
    """What the ranks have to do in one step."""

    rows_LP: Array
    """Rows written, first layer first."""
    ahead_P: Array
    """Rows that the last layer maps before it sums them, so that few columns travel; or none."""
    edges: float
    """Aggregated, over all layers and ranks."""
    ids_PP: Array
    """Bytes of ids and counts, of drawing alone."""
    halo_LPP: Array
    """Rows of others that each hidden layer reads."""
    draw_seconds: float
    """Of the rank that draws most."""


def products_of(rows_LP: Array, ahead_P: Array, widths: Widths) -> Array:
    """Return the multiplications of SAGE's two maps, forward and backward, per rank."""
    columns, last = widths.of(len(rows_LP)), len(rows_LP) - 1
    total_P = np.zeros(rows_LP.shape[1])
    for layer, rows_P in enumerate(rows_LP):
        is_ahead = layer == last and ahead_P.any()
        passes = 3 if layer else 2  # nobody asks for the gradient of the input
        mapped_P = rows_P + (ahead_P if is_ahead else rows_P)
        total_P += passes * mapped_P * columns[layer] * columns[layer + 1]
    return total_P


def seconds_each() -> float:
    """Return the seconds of one multiplication, with all that a step does beside it."""
    widths, rows, seconds = MEASURED
    return seconds / float(products_of(np.array(rows), np.zeros(1), widths)[0])


def independent_load(drawn: list[Minibatch], part_N: Tensor, seconds: list[float]) -> Load:
    """Return the load of one minibatch per rank."""
    ranks, layers = len(drawn), len(drawn[0].positions)
    ids_PP = np.zeros((ranks, ranks))
    for rank, one in enumerate(drawn):
        owner_V = part_N[one.nodes[: one.reached[-2]]]
        answers = torch.bincount(owner_V, one.indptr.diff().double(), minlength=ranks)
        ids_PP[rank] += _ID * _counts(owner_V, ranks)
        ids_PP[:, rank] += _COUNT * _counts(owner_V, ranks) + _ID * answers.numpy()
    np.fill_diagonal(ids_PP, 0)
    rows_LP = np.array([one.reached[-2::-1] for one in drawn], float).T
    edges = sum(sum(_ends(one)) for one in drawn)
    halo_LPP = np.zeros((layers - 1, ranks, ranks))
    return Load(rows_LP, np.zeros(ranks), edges, ids_PP, halo_LPP, max(seconds))


def cooperative_load(drawn: Minibatch, part_N: Tensor, ranks: int, seconds: float) -> Load:
    """Return the load of one minibatch of all ranks."""
    owner_V = part_N[drawn.nodes]
    rows_LP = np.stack([_counts(owner_V[:count], ranks) for count in drawn.reached[-2::-1]])
    ends = _ends(drawn)[::-1]
    input_PP, *halo = (_between(*halo_of(drawn, owner_V, end), owner_V, ranks) for end in ends)
    halo_LPP = np.array(halo).reshape(-1, ranks, ranks)
    # A rank tells an owner which of its nodes were met: that is all there is to ask.
    ids_PP = _ID * input_PP.T
    ahead_P = _counts(owner_V[: drawn.reached[1]], ranks)
    seconds *= float(rows_LP[0].max() / rows_LP[0].sum())
    return Load(rows_LP, ahead_P, sum(ends), ids_PP, halo_LPP, seconds)


def _ends(drawn: Minibatch) -> list[int]:
    """Return the edges drawn up to each hop."""
    return list(accumulate(len(positions) for positions in drawn.positions))


def _counts(owner: Tensor, ranks: int) -> Array:
    return torch.bincount(owner, minlength=ranks).double().numpy()


def halo_of(drawn: Minibatch, owner_V: Tensor, end: int) -> tuple[Tensor, Tensor]:
    """Return ranks and nodes of others that they read along the first edges, each pair once."""
    degree = drawn.indptr.diff()
    reader = owner_V[: len(degree)].repeat_interleave(degree)[:end]
    node = drawn.sources[:end].long()
    is_cut = reader != owner_V[node]
    pairs = torch.unique(reader[is_cut] * len(owner_V) + node[is_cut])
    return pairs // len(owner_V), pairs % len(owner_V)


def _between(reader: Tensor, node: Tensor, owner_V: Tensor, ranks: int) -> Array:
    key = owner_V[node] * ranks + reader
    return _counts(key, ranks * ranks).reshape(ranks, ranks)


class Wanted:
    """The distinct input rows that each rank reads of others."""

    def __init__(self, part_N: Tensor, ranks: int) -> None:
        self.part_N, self.ranks = part_N, ranks
        self.seen_PN = torch.zeros(ranks, len(part_N), dtype=torch.bool)

    def add(self, rank: int, nodes: Tensor) -> None:
        """Take nodes that a rank reads."""
        self.seen_PN[rank, nodes] = True

    def taken(self) -> Array:
        """Return how many rows go from each rank to each, and forget them."""
        rows = [_counts(self.part_N[seen_N], self.ranks) for seen_N in self.seen_PN]
        rows_PP = np.stack(rows, axis=1)
        np.fill_diagonal(rows_PP, 0)
        self.seen_PN.zero_()
        return rows_PP


class Side:
    """The steps of one way to train."""

    def __init__(self, part_N: Tensor, ranks: int, steps: int) -> None:
        self.loads: list[Load] = []
        self.steps = steps
        self._one, self._all = Wanted(part_N, ranks), Wanted(part_N, ranks)
        self._fetched = np.zeros((ranks, ranks))

    def add(self, load: Load, read: list[Tensor]) -> None:
        """Take a step in which each rank reads the input rows of these nodes."""
        self.loads.append(load)
        for rank, nodes in enumerate(read):
            self._one.add(rank, nodes)
            self._all.add(rank, nodes)
        self._fetched += self._one.taken()

    def told(self, models: list[Widths], *, asks: bool) -> dict[str, Any]:
        """Return counts of a step of all ranks, and its seconds, k = 1 and all steps together.

        With `asks` the ids of input rows travel too; else drawing told them.
        """
        mean = self.mean
        found: dict[str, Any] = {
            "rows": [round(rows) for rows in mean.rows_LP.sum(1)],
            "edges": round(mean.edges),
            "hidden_rows": [round(rows) for rows in mean.halo_LPP.sum((1, 2))],
            "imbalance": [round(float(rows.max() / rows.mean()), 3) for rows in mean.rows_LP],
            "draw_s": round(mean.draw_seconds, 4),
        }
        for size, input_PP in ((1, self._fetched), (self.steps, self._all.taken())):
            input_PP = input_PP / self.steps
            for widths in models:
                name = f"k={size}, " + "-".join(map(str, widths))
                found[name] = {"input_rows": round(input_PP.sum())}
                found[name] |= self.reckoned(input_PP, widths, asks=asks)
        return found

    @property
    def mean(self) -> Load:
        """The mean load of a step."""
        return Load(*(sum(column) / self.steps for column in zip(*self.loads, strict=True)))

    def reckoned(self, input_PP: Array, widths: Widths, *, asks: bool) -> dict[str, Any]:
        """Return bytes that travel in a step, and its seconds by link.

        A link brings input rows of steps ahead while ranks train: `s` has hidden rows waited for,
        `best` has them come meanwhile too, and in `in_turn` nothing does. Where the last layer's
        rows travel, they are mapped before or after, whichever takes less time.
        """
        ids_PP = self.mean.ids_PP + (_ID * input_PP.T if asks else 0)
        ahead_PP = _FLOAT * widths.features * input_PP + ids_PP
        orders = [self._hidden(widths, mapped_first=first) for first in (True, False)]
        hidden_PP, train = orders[0]
        found: dict[str, Any] = {
            "mb": round((ahead_PP + hidden_PP).sum() / 1e6, 2),
            "hidden_mb": round(hidden_PP.sum() / 1e6, 2),
            "id_mb": round(ids_PP.sum() / 1e6, 2),
            "train_s": round(train, 4),
        }
        for link in LINKS:
            timed = [self._seconds(ahead_PP, *order, 8 / (link * 1e9)) for order in orders]
            least = np.min(timed, axis=0).round(4).tolist()
            found[f"{link} Gbit/s"] = dict(zip(("s", "best", "in_turn"), least, strict=True))
        return found

    def _hidden(self, widths: Widths, *, mapped_first: bool) -> tuple[Array, float]:
        """Return the bytes of hidden rows and their gradients, and the seconds of training."""
        columns = widths.of(len(self.loads[0].rows_LP))
        if not mapped_first:
            columns[-1] = widths.hidden
        hidden_PP = np.zeros_like(self._fetched)
        for layer, halo_PP in enumerate(self.mean.halo_LPP, 1):
            hidden_PP += _FLOAT * min(columns[layer : layer + 2]) * (halo_PP + halo_PP.T)
        # Which rank is the largest differs by step.
        most = [
            products_of(load.rows_LP, load.ahead_P * mapped_first, widths).max()
            for load in self.loads
        ]
        return hidden_PP, seconds_each() * sum(most) / self.steps

    def _seconds(
        self, ahead_PP: Array, hidden_PP: Array, train: float, each: float
    ) -> tuple[float, float, float]:
        ahead, hidden = _busiest(ahead_PP) * each, _busiest(hidden_PP) * each
        both = _busiest(ahead_PP + hidden_PP) * each
        computing = train + self.mean.draw_seconds
        return max(computing, ahead) + hidden, max(computing, both), computing + both


def _busiest(bytes_PP: Array) -> float:
    """Return what the busiest rank sends or receives."""
    return float(max(bytes_PP.sum(0).max(), bytes_PP.sum(1).max()))


def counted(
    csr: CSR,
    part_of: Array,
    seeds_SP: list[list[Tensor]],
    fanouts: tuple[int, ...],
    draws: tuple[int, Sampler],
    models: list[Widths],
) -> dict[str, Any]:
    """Return what is told of steps whose seeds are given by step and rank.

    `draws`: how many steps share them, and what draws.
    """
    part_N, ranks = torch.from_numpy(np.asarray(part_of, np.int64)), len(seeds_SP[0])
    alone, together = (Side(part_N, ranks, len(seeds_SP)) for _ in range(2))
    share, sampler = draws
    reached = 0

    def timed(seeds: Tensor, number: int) -> tuple[Minibatch, float]:
        began = time.process_time()
        drawn = sample_minibatch(csr, seeds, number, sampler, fanouts)
        return drawn, time.process_time() - began

    for step, seeds_P in enumerate(seeds_SP):
        keys = [draws_of(step * ranks + rank, ranks, share) for rank in range(ranks)]
        drawn, seconds = zip(*map(timed, seeds_P, keys), strict=True)
        reached += sum(len(one.nodes) for one in drawn)
        load = independent_load(list(drawn), part_N, list(seconds))
        alone.add(load, [one.nodes for one in drawn])
        one, took = timed(torch.cat(seeds_P), draws_of(step, 1, share))
        readers, nodes = halo_of(one, part_N[one.nodes], len(one.sources))
        read = [one.nodes[nodes[readers == rank]] for rank in range(ranks)]
        together.add(cooperative_load(one, part_N, ranks, took), read)
    return {
        "reach": {"1": round(reached / len(seeds_SP) / ranks / len(part_N), 4)},
        "independent": alone.told(models, asks=True),
        "cooperative": together.told(models, asks=False),
    }
