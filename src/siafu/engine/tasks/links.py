"""Telling which pairs will meet in the next snapshot.

Shapes: n nodes of this rank, E pairs, D embedding width.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn
from torch.nn import functional

from siafu.engine.tasks.edges import head_width
from siafu.engine.tasks.scores import (
    average_precision,
    judge,
    mean_reciprocal_rank,
    score_among_all,
)
from siafu.engine.tasks.task import (
    Tally,
    TaskInput,
    refuse_overlap,
    split_next_steps,
    split_of,
    time_column,
)
from siafu.errors import ConfigError, DataError
from siafu.graph import Array
from siafu.nn import PairHead
from siafu.ops import DrawKey, uniform_rows

_TRAIN_SITE, _SCORE_SITE = (1 << 18) + 1, (1 << 18) + 2
"""Streams of draws for negatives, apart from those of layers."""
_PAIRS_AT_ONCE = 1 << 20
_DRAWN_AT_ONCE = 1 << 20
_NEGATIVES = 20
"""Pairs without an edge drawn for each edge, unless asked otherwise."""


class Candidates(NamedTuple):
    """This rank's pairs of a snapshot; counts are over all ranks that share it."""

    source: Tensor
    target: Tensor
    truth: Tensor
    """1 for those that meet, which come first."""
    num_met: int
    num_others: int


class LinkTask:
    """Pairs that meet in snapshot t + 1 against pairs that do not, from embeddings of snapshot t.

    Negatives are drawn, both ends, among nodes met until then; those that do meet are dropped.
    Binary cross-entropy, both sides counting alike. Average precision and mean reciprocal rank of
    a snapshot are averaged over snapshots (MAP, MRR). Scores are not those of Pareja et al. (2020),
    whose negatives share the sources of true pairs and have targets of recent snapshots, whose
    negatives count more, and who rank among all pairs of the data's nodes, loops included.
    """

    name, metric, lower_is_better = "link", "map", False

    def __init__(self, given: TaskInput) -> None:
        graph, config = given.graph, given.config
        if graph.num_snapshots < 2:
            raise DataError(
                "The next snapshot can't be predicted when there is only one.",
                seen=f"{graph.num_snapshots} snapshots of {graph.name}",
                fix="use a shorter --window",
            )
        refuse_overlap(graph, self.name)
        self.graph, self.share, self.draws = graph, given.share, given.draws
        self.device = given.share.world.device
        self.negatives = _negatives(config.negatives)
        self.eval_negatives = _eval_negatives(config.eval_negatives)
        self.hidden = head_width(config, default="mlp")
        self.splits = split_next_steps(graph.num_snapshots, config.split)
        self.num_steps = graph.num_snapshots - 1
        self.train_steps = len(self.splits["train"])
        self.met, self.met_by_step = _order_of_meeting(graph.event_starts, self._ends())
        self.total = sum(len(self._positives(step)[0]) for step in range(self.train_steps))
        self.total = max(1, self.total)

    def _ends(self) -> tuple[Array, Array]:
        return np.asarray(self.graph.event_src), np.asarray(self.graph.event_dst)

    def make_head(self, width: int) -> nn.Module:
        """Return a head that scores pairs."""
        return PairHead(width, 1, self.hidden)

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

    def _candidates(self, step: int, key: DrawKey, count: int) -> Candidates:
        """Return this rank's pairs: those that meet, then negatives, `count` drawn for each."""
        source, target = (torch.from_numpy(a).to(self.device) for a in self._positives(step))
        keys = source * self.graph.num_nodes + target
        mine = self.share.is_mine(source)
        sources, targets, num_others = [source[mine]], [target[mine]], 0
        for drawn_W2 in self._drawn(step, key, len(source) * count):
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

    def _drawn(self, step: int, key: DrawKey, count: int) -> Iterator[Tensor]:
        """Yield pairs of nodes met so far, some at a time: a rank may keep few of them."""
        known = self.met[: self.met_by_step[step + 1]].to(self.device)
        for low in range(0, count, _DRAWN_AT_ONCE):
            ids = torch.arange(low, min(low + _DRAWN_AT_ONCE, count), device=self.device)
            u_W2 = uniform_rows(key, ids + (step << 32), 2, dtype=torch.float64)
            yield known[(u_W2 * len(known)).long().clamp(max=len(known) - 1)]

    def loss(self, head: nn.Module, step: int, rows_nD: Tensor) -> Tensor | None:
        """Return the loss of the pairs of a snapshot over the number of all that meet."""
        pairs = self._candidates(step, self.draws.key(_TRAIN_SITE), self.negatives)
        if not pairs.num_met:
            return None
        score_E = judge(head, self.share, rows_nD, pairs.source, pairs.target)[:, 0]
        num_mine = int(pairs.truth.sum())
        met = functional.softplus(-score_E[:num_mine]).sum()
        balance = pairs.num_met / max(1, pairs.num_others)
        others = functional.softplus(score_E[num_mine:]).sum() * balance
        return (met + others) / (2 * self.total)

    def tally(self, head: nn.Module, step: int, rows_nD: Tensor) -> Tally:
        """Return average precision, mean reciprocal rank and 1 for a snapshot with any edges."""
        split = split_of(self.splits, step)
        if split == "train":  # most snapshots, most of the work, and nothing is chosen by it
            return {}
        if self.eval_negatives is None:
            among_all = self._among_all(head, step, rows_nD)
            return {} if among_all is None else {split: [*among_all, 1.0]}
        pairs = self._candidates(step, self._score_key(), self.eval_negatives)
        if not pairs.num_met:
            return {}
        mine = judge(head, self.share, rows_nD, pairs.source, pairs.target)[:, 0].double()
        source, score, truth = (
            self.share.gather(each) for each in (pairs.source, mine, pairs.truth)
        )
        if not self.share.speaks:
            return {}
        found = average_precision(score, truth), mean_reciprocal_rank(source, score, truth)
        return {split: [*found, 1.0]}

    def _score_key(self) -> DrawKey:
        """Return the key of negatives for scores: the same in every epoch."""
        return DrawKey(seed=self.draws.seed, epoch=0, purpose=_SCORE_SITE)

    def _among_all(self, head: nn.Module, step: int, rows_nD: Tensor) -> tuple[float, float] | None:
        """Return the scores among all pairs of nodes met so far, loops left out."""
        assert isinstance(head, PairHead)
        known = self.met[: self.met_by_step[step + 1]].to(self.device).sort().values
        ends = (torch.from_numpy(a).to(self.device) for a in self._positives(step))
        source, target = (torch.searchsorted(known, end) for end in ends)
        source, target = source[source != target], target[source != target]
        if not len(source):
            return None
        wanted = known if self.share.speaks else known[:0]
        from_KH, to_KH = (
            self.share.fetch(half(rows_nD), wanted) for half in (head.source, head.target)
        )
        if not self.share.speaks:
            return None
        rows = max(1, _PAIRS_AT_ONCE // len(known))

        def pieces() -> Iterator[tuple[int, Tensor]]:
            for lo in range(0, len(known), rows):
                score_RK = head.joined(from_KH[lo : lo + rows, None] + to_KH[None])[..., 0].double()
                score_RK.diagonal(lo).fill_(-torch.inf)
                yield lo, score_RK

        return score_among_all(pieces, source, target)

    def score(self, sums: list[float]) -> dict[str, float]:
        """Return MAP and MRR."""
        precision, rank, steps = sums
        return {"map": precision / max(1.0, steps), "mrr": rank / max(1.0, steps)}

    def table(self, head: nn.Module, step: int, rows_nD: Tensor) -> dict[str, pa.Array]:
        """Return the score of every pair that meets in the next snapshot, and of one negative."""
        source, target, truth, *_ = self._candidates(step, self._score_key(), 1)
        score = judge(head, self.share, rows_nD, source, target)[:, 0].float().sigmoid()
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
    vertices, first = np.unique(both, return_index=True)
    order = np.argsort(first, kind="stable")
    met_by_step = np.searchsorted(first[order], 2 * np.asarray(event_starts[1:]))
    return torch.from_numpy(vertices[order]), met_by_step


def _negatives(text: str | None) -> int:
    number = (text or f"uniform:{_NEGATIVES}").removeprefix("uniform:")
    if not number.isdigit() or int(number) < 1:
        raise ConfigError(
            "The negatives are not understood.",
            seen=f"--negatives {text}",
            fix=f"use uniform:{_NEGATIVES} for {_NEGATIVES} pairs without an edge for each edge",
        )
    return int(number)


def _eval_negatives(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(
            "The negatives of a score can't be drawn.",
            seen=f"--eval-negatives {text}",
            fix="use a number of 1 or more, or all",
        )
    return int(text)
