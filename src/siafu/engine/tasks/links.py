"""Telling which pairs will meet in the next snapshot.

Shapes: n nodes of this rank, N of all, E pairs, D embedding width, P numbers of a pair's history.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn
from torch.nn import functional

from siafu.engine.dynamic.event_features import EventScale
from siafu.engine.tasks.all_pairs import Scored, among, kept, rank_true, without_loops
from siafu.engine.tasks.edges import head_width
from siafu.engine.tasks.model_free import MODEL_FREE, ModelFree
from siafu.engine.tasks.pair_history import PairHistory
from siafu.engine.tasks.scores import average_precision, judge, mean_reciprocal_rank
from siafu.engine.tasks.task import (
    Tally,
    TaskInput,
    refuse_one_snapshot,
    refuse_overlap,
    split_next_steps,
    split_of,
    time_column,
)
from siafu.errors import ConfigError
from siafu.graph import Array
from siafu.nn import PairHead
from siafu.ops import DrawKey, uniform_rows

_TRAIN_SITE, _SCORE_SITE = (1 << 18) + 1, (1 << 18) + 2
"""Streams of draws for negatives, apart from those of layers."""
_PAIRS_AT_ONCE = 1 << 17
_DRAWN_AT_ONCE = 1 << 20
_NEGATIVES = "history:20"
"""Pairs without an edge drawn for each edge, unless asked otherwise."""
REACH = 10
"""Snapshots that histories of pairs and negatives go back, unless asked otherwise."""


class Candidates(NamedTuple):
    """This rank's pairs of a snapshot; counts are over all ranks that share it."""

    source: Tensor
    target: Tensor
    truth: Tensor
    """1 for those that meet, which come first."""
    num_met: int
    num_others: int


@dataclass(frozen=True, slots=True)
class Negatives:
    """What pairs that do not meet are drawn from, and how many per pair that does."""

    kind: Literal["uniform", "history"]
    """Both ends of all nodes met, or sources of true pairs and targets of the last snapshots."""
    count: int


class LinkTask:
    """Pairs that meet in snapshot t + 1 against pairs that do not, from embeddings of snapshot t.

    Negatives have both ends drawn among nodes met until then (`uniform`), or are the sources of
    true pairs with targets that were active in the last snapshots (`history`); those that do meet
    are dropped. Binary cross-entropy, both sides counting alike. Average precision and mean
    reciprocal rank of a snapshot are averaged over snapshots (MAP, MRR). The same is told of
    rankings that no model makes (`model_free`).
    """

    name, metric, lower_is_better = "link", "map", False
    event_scale: EventScale | None = None
    """Where histories have the features of a pair's events too: their scale."""

    def __init__(self, given: TaskInput) -> None:
        graph, config = given.graph, given.config
        refuse_one_snapshot(graph, self.name)
        refuse_overlap(graph, self.name)
        self.graph, self.share, self.draws = graph, given.share, given.draws
        self.device = given.share.world.device
        self.negatives = _negatives(config.negatives)
        self.eval_negatives = _eval_negatives(config.eval_negatives)
        self.hidden = head_width(config, default="mlp")
        self.splits = split_next_steps(graph.num_snapshots, config.split)
        self.num_steps = graph.num_snapshots - 1
        self.train_steps = len(self.splits["train"])
        self.reach = config.history or REACH
        met, self.met_by_step = _order_of_meeting(graph.event_starts, self._ends())
        self.met = met.to(self.device)
        self._true: dict[int, tuple[Tensor, Tensor]] = {}
        self._active: dict[int, Tensor] = {}
        self._free: dict[int, list[float]] = {}
        counts = (len(self._positives(step)[0]) for step in range(self.train_steps))
        self.total = max(1, sum(counts))
        ranks_all = self.eval_negatives is None
        self.reads_history = config.pair_history
        features = config.edge_features and self.reads_history
        self.history = PairHistory(
            graph, self.reach, given.share, of_all=ranks_all, features=features
        )

    def _ends(self) -> tuple[Array, Array]:
        return np.asarray(self.graph.event_src), np.asarray(self.graph.event_dst)

    def make_head(self, width: int) -> nn.Module:
        """Return a head that scores pairs, by their histories too."""
        known = self.history.width
        if self.event_scale is not None:
            known += self.graph.num_event_features * (1 if self.graph.symmetric else 2)
        return PairHead(width, 1, self.hidden, known if self.reads_history else 0)

    def _known(self, step: int, source_E: Tensor, target_E: Tensor) -> Tensor | None:
        """Return [E, P] of pairs: 0 for those that never met."""
        if not self.reads_history:
            return None
        found = self.history.numbers(step, source_E, target_E)
        if self.event_scale is None:
            return found
        mean_EF = self.history.features(step, source_E, target_E, self.event_scale)
        return torch.cat([found.to(mean_EF.dtype), mean_EF], dim=1)

    def _positives(self, step: int) -> tuple[Array, Array]:
        """Return the pairs that meet in the snapshot after `step`, each once.

        Without directions in the graph a pair meets both ways, as in Pareja et al.'s code.
        """
        events = self.graph.edge_events(step + 1)
        num_nodes = self.graph.num_nodes
        src, dst = events.src.astype(np.int64), events.dst.astype(np.int64)
        if self.graph.symmetric:
            src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
        keys = np.unique(src * num_nodes + dst)
        return keys // num_nodes, keys % num_nodes

    def _true_pairs(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the same on the device, made once for each snapshot of this rank."""
        if step not in self._true:
            source, target = (torch.from_numpy(a).to(self.device) for a in self._positives(step))
            self._true[step] = source, target
        return self._true[step]

    def _candidates(self, step: int, key: DrawKey, negatives: Negatives) -> Candidates:
        """Return this rank's pairs: those that meet, then negatives, some drawn for each."""
        source, target = self._true_pairs(step)
        keys = source * self.graph.num_nodes + target
        mine = self.share.is_mine(source)
        sources, targets, num_others = [source[mine]], [target[mine]], 0
        for drawn_W2 in self._drawn(step, key, negatives):
            drawn_keys = drawn_W2[:, 0] * self.graph.num_nodes + drawn_W2[:, 1]
            absent_W2 = drawn_W2[~torch.isin(drawn_keys, keys)]
            num_others += len(absent_W2)
            own_W2 = absent_W2[self.share.is_mine(absent_W2[:, 0])]
            sources.append(own_W2[:, 0])
            targets.append(own_W2[:, 1])
        all_sources = torch.cat(sources)
        truth = torch.zeros_like(all_sources)
        truth[: len(sources[0])] = 1
        return Candidates(all_sources, torch.cat(targets), truth, len(source), num_others)

    def _drawn(self, step: int, key: DrawKey, negatives: Negatives) -> Iterator[Tensor]:
        """Yield pairs, some at a time: a rank may keep few of them."""
        true_sources, _ = self._true_pairs(step)
        known = self.met[: self.met_by_step[step + 1]]
        pool = self._recent(step) if negatives.kind == "history" else known
        pool = pool if len(pool) else known
        count = len(true_sources) * negatives.count
        for low in range(0, count, _DRAWN_AT_ONCE):
            ids = torch.arange(low, min(low + _DRAWN_AT_ONCE, count), device=self.device)
            u_W2 = uniform_rows(key, ids + (step << 32), 2, dtype=torch.float64)
            target = pool[(u_W2[:, 1] * len(pool)).long().clamp(max=len(pool) - 1)]
            if negatives.kind == "history":
                source = true_sources[ids // negatives.count]
            else:
                source = known[(u_W2[:, 0] * len(known)).long().clamp(max=len(known) - 1)]
            yield torch.stack([source, target], dim=1)

    def _recent(self, step: int) -> Tensor:
        """Return the nodes of the last snapshots, once for each that they were active in."""
        for window in range(max(0, step - self.reach + 1), step + 1):
            if window not in self._active:
                events = self.graph.edge_events(window)
                nodes = np.unique(np.concatenate([events.src, events.dst])).astype(np.int64)
                self._active[window] = torch.from_numpy(nodes).to(self.device)
        recent = range(max(0, step - self.reach + 1), step + 1)
        return torch.cat([self._active[window] for window in recent])

    def _judged(self, head: nn.Module, step: int, rows_nD: Tensor, pairs: Candidates) -> Tensor:
        """Return the scores of pairs of this rank's sources."""
        known_EP = self._known(step, pairs.source, pairs.target)
        known_EP = None if known_EP is None else known_EP.to(rows_nD.dtype)
        return judge(head, self.share, rows_nD, pairs.source, pairs.target, known_EP)[:, 0]

    def loss(self, head: nn.Module, step: int, rows_nD: Tensor) -> Tensor | None:
        """Return the loss of the pairs of a snapshot over the number of all that meet."""
        pairs = self._candidates(step, self.draws.key(_TRAIN_SITE), self.negatives)
        if not pairs.num_met:
            return None
        score_E = self._judged(head, step, rows_nD, pairs)
        num_mine = int(pairs.truth.sum())
        met = functional.softplus(-score_E[:num_mine]).sum()
        balance = pairs.num_met / max(1, pairs.num_others)
        others = functional.softplus(score_E[num_mine:]).sum() * balance
        return (met + others) / (2 * self.total)

    def tally(self, head: nn.Module, step: int, rows_nD: Tensor) -> Tally:
        """Return each score of a snapshot with any edges, as `_names` has them, and 1."""
        split = split_of(self.splits, step)
        if split == "train":  # most snapshots, most of the work, and nothing is chosen by it
            return {}
        if self.eval_negatives is None:
            found = self._among_all(head, step, rows_nD)
        else:
            found = self._among_drawn(head, step, rows_nD, self.eval_negatives)
        return {} if found is None else {split: [*found, 1.0]}

    def _among_drawn(
        self, head: nn.Module, step: int, rows_nD: Tensor, negatives: Negatives
    ) -> list[float] | None:
        """Return the scores among drawn pairs; all ranks of a snapshot call it, one is told."""
        pairs = self._candidates(step, self._score_key(), negatives)
        if not pairs.num_met:
            return None
        mine = self._judged(head, step, rows_nD, pairs).double()
        columns = [mine]
        if step not in self._free:
            free = ModelFree(self.graph, self.history, step, self.device)
            columns += [free.scores(kind, pairs.source, pairs.target) for kind in MODEL_FREE]
        source, truth = (self.share.gather(each) for each in (pairs.source, pairs.truth))
        scores = [self.share.gather(each) for each in columns]
        if not self.share.speaks:
            self._free.setdefault(step, [])
            return None
        found = [
            one
            for score in scores
            for one in (average_precision(score, truth), mean_reciprocal_rank(source, score, truth))
        ]
        self._free.setdefault(step, found[2:])
        return [*found[:2], *self._free[step]]

    def _score_key(self) -> DrawKey:
        """Return the key of negatives for scores: the same in every epoch."""
        return DrawKey(seed=self.draws.seed, epoch=0, purpose=_SCORE_SITE)

    def _among_all(self, head: nn.Module, step: int, rows_nD: Tensor) -> list[float] | None:
        """Return the scores among all pairs of nodes met so far but loops, then of all nodes."""
        source, target = self._true_pairs(step)
        if not bool((source != target).any()):
            return None
        scored = self._scored(head, step, rows_nD)
        if scored is None:
            return None
        if step not in self._free:
            free = ModelFree(self.graph, self.history, step, self.device)
            ranked = [self._both_ways(step, free.all_pairs(kind)) for kind in MODEL_FREE]
            self._free[step] = [one for numbers in ranked for one in numbers]
        return [*self._both_ways(step, scored), *self._free[step]]

    def _both_ways(self, step: int, scored: Scored) -> list[float]:
        """Return MAP and MRR among pairs of nodes met so far, and among all pairs of all nodes."""
        source, target = self._true_pairs(step)
        known = self.met[: self.met_by_step[step + 1]]
        others = source != target
        near = rank_true(without_loops(among(scored, known)), source[others], target[others])
        return [*near, *rank_true(scored, source, target)]

    def _scored(self, head: nn.Module, step: int, rows_nD: Tensor) -> Scored | None:
        """Return the scores of all pairs, on the one rank of a snapshot that tells them."""
        assert isinstance(head, PairHead)
        every = torch.arange(self.graph.num_nodes if self.share.speaks else 0, device=self.device)
        halves = [self.share.fetch(half(rows_nD), every) for half in (head.source, head.target)]
        if not self.share.speaks:
            return None
        rows_C, class_N = torch.cat(halves, dim=1).unique(dim=0, return_inverse=True)
        from_CH, to_CH = rows_C.chunk(2, dim=1)
        size = max(1, _PAIRS_AT_ONCE // len(rows_C))

        def pieces() -> Iterator[tuple[int, Tensor]]:
            for low in range(0, len(rows_C), size):
                yield low, head.joined(from_CH[low : low + size, None] + to_CH[None])[..., 0]

        source_X, target_X = self.history.until(step)
        if not self.reads_history:
            source_X, target_X = source_X[:0], target_X[:0]
        known_XP = self._known(step, source_X, target_X)
        known_XP = None if known_XP is None else known_XP.to(rows_nD.dtype)
        score_X = head.joined(halves[0][source_X] + halves[1][target_X], known_XP)[:, 0]
        made = kept(pieces, len(rows_C))
        return Scored(class_N, made, len(rows_C), source_X, target_X, score_X)

    @property
    def _names(self) -> list[str]:
        """What `tally` tells, in order."""
        drawn = ["map", "mrr"]
        ways = drawn if self.eval_negatives else [*drawn, "map all nodes", "mrr all nodes"]
        return [*ways, *(f"{name} of {kind}" for kind in MODEL_FREE for name in ways)]

    def score(self, sums: list[float]) -> dict[str, float]:
        """Return MAP and MRR, and beside them those of rankings without a model."""
        *numbers, steps = sums
        pairs = zip(self._names, numbers, strict=True)
        return {name: number / max(1.0, steps) for name, number in pairs}

    def table(self, head: nn.Module, step: int, rows_nD: Tensor) -> dict[str, pa.Array]:
        """Return the score of every pair that meets in the next snapshot, and of one negative."""
        pairs = self._candidates(step, self._score_key(), Negatives("uniform", 1))
        score = self._judged(head, step, rows_nD, pairs).float().sigmoid()
        source, target, truth, *_ = pairs
        count = len(source)
        return {
            "src": self.graph.ids.take(source.cpu().numpy()).to_arrow(),
            "dst": self.graph.ids.take(target.cpu().numpy()).to_arrow(),
            "time": time_column(self.graph, step + 1, count),
            "score": pa.array(score.cpu().numpy()),
            "label": pa.array(truth.cpu().numpy()),
            "split": pa.array([split_of(self.splits, step)] * count, pa.string()),
        }


def _order_of_meeting(event_starts: Array, ends: tuple[Array, Array]) -> tuple[Tensor, Array]:
    """Return the nodes in order of their first events, and how many were met by each step."""
    both = np.stack(ends, axis=1).reshape(-1).astype(np.int64)
    nodes, first = np.unique(both, return_index=True)
    order = np.argsort(first, kind="stable")
    met_by_step = np.searchsorted(first[order], 2 * np.asarray(event_starts[1:]))
    return torch.from_numpy(nodes[order]), met_by_step


def check_link_texts(negatives: str | None, eval_negatives: str) -> None:
    """Raise where what is drawn is not understood, whatever the graph."""
    _negatives(negatives)
    _eval_negatives(eval_negatives)


def _negatives(text: str | None) -> Negatives:
    kind, _, number = (text or _NEGATIVES).partition(":")
    if kind not in ("uniform", "history") or not number.isdecimal() or int(number) < 1:
        raise ConfigError(
            "The negatives are not understood.",
            seen=f"--negatives {text}",
            fix="use uniform:20 for 20 pairs of nodes met per edge, or history:20 for its source "
            "with nodes of the last snapshots",
        )
    return Negatives("history" if kind == "history" else "uniform", int(number))


def _eval_negatives(text: str) -> Negatives | None:
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(
            "The negatives of a score can't be drawn.",
            seen=f"--eval-negatives {text}",
            fix="use a number of 1 or more, or all",
        )
    return Negatives("uniform", int(text))
