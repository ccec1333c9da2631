"""How epochs on minibatches are scored: which nodes, with which neighbours, and how often.

Unless a way is asked for, the first of these that is predicted to cost a fifth of training at most:
all nodes with all neighbours, the nodes of the splits with all of theirs, some of them with the
fan-outs of training; and that only every few epochs where it would still cost more.

Shapes: R rows of a split, G groups.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from siafu.config import ResolvedConfig
from siafu.engine.metrics import Answers, scores_of
from siafu.engine.networks.sampled import SampledNetwork
from siafu.minibatch import ROW_BITS, Feed, Flow, Sampling, Trial, plan_flow
from siafu.minibatch.schedule import ORDER_PURPOSE
from siafu.nn import GNN, layer_widths
from siafu.ops import DrawKey, uniform_rows
from siafu.shard import HeldRows, RowReader, Shard

Kind = Literal["exact", "split", "sampled", "train"]

MOST_DRAWN = 1 << 14
"""Nodes, or held-out edges, of each split that are scored by a sample."""
SHARE = 1 / 5
"""Of training that scoring may cost unless it is asked for."""
_SMALL = 2e9
"""Work of a rank that takes a tenth of a second or so: not worth less exact scores."""
_NUMBER_WORK = 16
"""A number that is gathered along an edge costs as much as so many that are multiplied."""
_EDGE_WORK = 4000
"""What an edge costs beside that: to be read and numbered, its source found and fetched."""
_ROW_WORK = 20_000
"""What a row costs beside its products: to be found, fetched and written."""
_SAMPLE = 2
"""A sample over its flow, as measured (`benchmarks.evaluate`): edges are drawn, errors found."""
_BACKWARD = 3
"""A step over a forward pass."""
_PURPOSE = ORDER_PURPOSE - 5
_GROUPS = 16


@dataclass(frozen=True, kw_only=True, eq=False)
class Scoring:
    """What epochs are scored by."""

    kind: Kind = "exact"
    every: int = 1
    flow: Flow | None = None
    """Of the nodes that are asked about, for a model that is taken apart into layers."""
    told: str = ""
    """What was chosen and why, where that was left open."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Predicted:
    """Work of the dearest rank, in multiplications and additions or what takes as long."""

    widths: tuple[tuple[int, int], ...]
    """Read and written, of each layer."""

    def compute(self, number: int, rows: float, edges: float) -> float:
        """Return the work of a layer's forward pass on what is at hand."""
        into, out = self.widths[number]
        return 2 * rows * into * out + _NUMBER_WORK * into * edges

    def layer(self, number: int, rows: int, edges: int) -> float:
        """Return that of a layer over rows of the graph."""
        return self.compute(number, rows, edges) + _EDGE_WORK * edges + _ROW_WORK * rows

    def everything(self, shard: Shard) -> float:
        """Return that of all nodes with all neighbours; all ranks call this together."""
        mine = sum(
            self.layer(number, shard.num_owned, shard.csr.num_edges)
            for number in range(len(self.widths))
        )
        return max(row[0] for row in shard.world.gather_numbers([mine]))

    def forward(self, trial: Trial) -> float:
        """Return that of a minibatch's forward pass."""
        layers, last = len(self.widths), len(trial.reached) - 1
        total = 0.0
        for number in range(layers):
            hop = layers - 1 - number
            rows = trial.reached[min(hop, last)]
            share = rows / max(1, trial.reached[max(0, last - 1)]) if hop < last else 0.0
            total += self.compute(number, rows, share * trial.edges)
        return total

    def epoch(self, feed: Feed) -> float:
        """Return that of an epoch of training; all ranks call this together."""
        trial, schedule = feed.trial(), feed.sampler.schedule
        each = 1
        if schedule.order == "global":
            each = -(-schedule.step_minibatches // schedule.world.size)
        step = _BACKWARD * self.forward(trial) + self.handling(trial)
        return schedule.num_steps * each * step

    def minibatch(self, trial: Trial) -> float:
        """Return that of inferring on a minibatch."""
        return self.forward(trial) + self.handling(trial)

    def handling(self, trial: Trial) -> float:
        """Return that of drawing a minibatch and fetching its rows."""
        return _EDGE_WORK * trial.edges + _ROW_WORK * trial.reached[-1]


def predicted_work(config: ResolvedConfig, network: SampledNetwork, shard: Shard) -> Predicted:
    """Return the costs of a model: of one of the user's own by its settings."""
    if isinstance(network.module, GNN):
        spec = network.module.spec
        found = [layer_widths(spec, number) for number in range(spec.layers)]
        return Predicted(widths=tuple((at.into, at.out) for at in found))
    inner = [config.hidden] * (config.layers - 1)
    return Predicted(widths=tuple(zip([network.feed.width, *inner], [*inner, 1], strict=True)))


def settle_scoring(
    config: ResolvedConfig,
    network: SampledNetwork,
    shard: Shard,
    seeds_of: Callable[[bool], Tensor],
) -> Scoring:
    """Return how a run's epochs are scored; all ranks call this together.

    `seeds_of` tells which nodes are asked about, by address: all, or (True) those of a sample.
    """
    feed, every = network.feed, config.eval_every
    work, is_own = predicted_work(config, network, shard), not isinstance(network.module, GNN)

    def planned(drawn: bool, most: float = math.inf) -> Flow | None:
        relays = feed.layer_relays(len(work.widths), drawn=drawn)
        return plan_flow(relays, seeds_of(drawn), work.layer, most)

    whole_alone = is_own and config.task == "link"
    if config.evaluate in ("exact", "train") or whole_alone or not config.is_scored:
        return Scoring(kind=config.evaluate if config.evaluate != "auto" else "exact", every=every)
    if config.evaluate != "auto":
        flow = None if is_own else planned(config.evaluate == "sampled")
        return Scoring(kind=config.evaluate, every=every, flow=flow)
    pieces = network.pieces
    if pieces is None:
        everything = work.everything(shard)
    else:
        everything = pieces.count() * work.minibatch(feed.trial())
    if everything <= _SMALL:
        return Scoring(every=every)
    epoch = work.epoch(feed)
    budget = SHARE * epoch * every
    if everything <= budget:
        return Scoring(every=every)
    if not is_own and (flow := planned(False, budget)) is not None:
        return Scoring(kind="split", every=every, flow=flow, told=_told("split", everything, epoch))
    flow = None if is_own else planned(True)
    cost = _of_seeds(work, feed, seeds_of(True)) if flow is None else _SAMPLE * flow.cost
    if "eval_every" not in config.model_fields_set:
        every = max(every, math.ceil(cost / max(1.0, SHARE * epoch)))
    told = _told("sampled", everything, epoch, every)
    return Scoring(kind="sampled", every=every, flow=flow, told=told)


def _of_seeds(work: Predicted, feed: Feed, seeds: Tensor) -> float:
    """Return what the minibatches of some nodes cost, of a model that is not taken apart."""
    most = max(row[0] for row in feed.shard.world.gather_numbers([float(len(seeds))]))
    trial = feed.trial()
    return most / max(1, trial.reached[0]) * work.minibatch(trial)


def _told(kind: str, everything: float, epoch: float, every: int = 1) -> str:
    by = {
        "split": "the nodes of the splits with all their neighbours",
        "sampled": f"up to {MOST_DRAWN:,} nodes or edges of each split, with neighbours drawn (the "
        "end's scores have all, which may differ by more than the ± of draws)",
    }
    often = "" if every == 1 else f" every {every} epochs"
    ratio = everything / max(1.0, epoch)
    return (
        f"scored{often} by {by[kind]}: all nodes would take about {ratio:.1f} x as long as an "
        "epoch (--evaluate exact asks for that)"
    )


def drawn_rows(shard: Shard, seed: int, rows_R: Tensor, total: int) -> Tensor:
    """Return some rows of a split that has so many on all ranks: the same on any ranks."""
    if total <= MOST_DRAWN:
        return rows_R
    draws = uniform_rows(DrawKey(seed, 0, _PURPOSE), shard.row_ids[rows_R], 1, dtype=torch.float64)
    return rows_R[draws[:, 0] < MOST_DRAWN / total]


def scored_shard(shard: Shard, seed: int) -> Shard:
    """Return the shard with fewer nodes in its splits, those that a sample is scored by."""
    masks = {
        split: drawn_rows(shard, seed, rows, shard.mask_totals[split])
        for split, rows in shard.masks.items()
    }
    table = shard.world.gather_numbers([float(len(rows)) for rows in masks.values()])
    totals = [int(sum(column)) for column in zip(*table, strict=True)]
    return replace(shard, masks=masks, mask_totals=dict(zip(masks, totals, strict=True)))


def addresses_of(shard: Shard) -> Tensor:
    """Return the owned nodes of all splits."""
    return torch.cat([rows.cpu() for rows in shard.masks.values()]) | shard.world.rank << ROW_BITS


def rows_asked(
    network: SampledNetwork, scoring: Scoring, shard: Shard, config: ResolvedConfig
) -> RowReader:
    """Return the logits of the nodes in the splits of a shard; all ranks call this together."""
    if scoring.flow is not None:
        return network.flow_rows(scoring.flow)
    how = replace(network.feed.relay.sampling, shared=False)
    rows_R = torch.cat([rows.cpu() for rows in shard.masks.values()]).unique()
    if scoring.kind == "split":
        if network.pieces is not None:
            return network.rows_in_pieces(network.pieces, rows_R)
        how = Sampling(fanouts=(-1,) * len(how.fanouts))
    return network.seed_rows(rows_R, how, config.batch_size)


def error_bars(answers: Answers, shard: Shard, seed: int, metric: str) -> dict[str, float]:
    """Return one standard error of each split's score, as if its nodes were drawn anew.

    By leaving out one group of nodes after another (jackknife), so that any score has one. It knows
    nothing of what all neighbours would have changed on average.
    """
    key, groups = DrawKey(seed, 0, _PURPOSE - 1), {}
    for split, rows in answers.masks.items():
        draws = uniform_rows(key, shard.row_ids[rows.cpu()], 1, dtype=torch.float64)
        groups[split] = (draws[:, 0] * _GROUPS).long().clamp(max=_GROUPS - 1).to(rows.device)
    without = []
    for group in range(_GROUPS):
        masks = {s: rows[groups[s] != group] for s, rows in answers.masks.items()}
        found = scores_of(replace(answers, masks=masks), [metric])
        without.append([found[split][metric] for split in masks])
    scores_GS = torch.tensor(without, dtype=torch.float64)
    spread_S = scores_GS.var(dim=0, correction=0) * (_GROUPS - 1)
    return dict(zip(answers.masks, spread_S.sqrt().tolist(), strict=True))


@dataclass(eq=False)
class Met:
    """Training rows as the minibatches of an epoch met them, some of each; on this rank."""

    most: int
    """Of a minibatch: its seeds are shuffled, so the first are some of them."""
    out: list[Tensor]
    y: list[Tensor]

    def note(self, out: Tensor, y: Tensor) -> None:
        """Take the first rows of a minibatch."""
        self.out.append(out.detach()[: self.most].cpu())
        self.y.append(y[: self.most].cpu())

    def answers(self, of: Answers) -> Answers:
        """Return what was told of them, and forget it."""
        width = len(of.objective.mean) if not of.num_classes else of.num_classes
        out = torch.cat(self.out or [torch.zeros(0, width)])
        y = torch.cat(self.y or [of.y[:0].cpu()])
        self.out, self.y = [], []
        masks = {"train": torch.arange(len(out))}
        return replace(of, out=HeldRows(out), y=y, masks=masks)
