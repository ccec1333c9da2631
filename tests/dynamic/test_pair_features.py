"""Links judged by features of a pair's events, beside dense matrices of the snapshots.

Shapes: N nodes, E pairs, F features of an event, P numbers known of a pair.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from siafu.comm import World
from siafu.config import make_config
from siafu.engine.dynamic.event_features import EventScale
from siafu.engine.tasks.links import LinkTask
from siafu.engine.tasks.pair_history import FADE
from siafu.engine.tasks.task import TaskInput
from siafu.graph import DynamicGraph
from siafu.nn import Draws, PairHead
from siafu.shard import NodeShare
from tests.dynamic.graphs import NUM_NODES, NUM_STEPS, awkward_dynamic
from tests.harness import RankPool

WIDTH, ROWS, REACH = 2, 5, 3
TRAIN = 8
SITE = (1 << 18) + 1


def featured(symmetric: bool) -> DynamicGraph:
    graph = awkward_dynamic()
    attr = np.random.default_rng(6).normal(5, 3, (graph.num_events, WIDTH)).astype(np.float32)
    return replace(graph, event_attr=attr, symmetric=symmetric)


def made(graph: DynamicGraph, share: NodeShare, **more: str) -> tuple[LinkTask, PairHead]:
    """Return the task and its head, always with the same weights."""
    settings = {"model": "gcrn", "hidden": 4, "negatives": "history:3", "history": REACH, **more}
    config = make_config(data="awkward", task="link", edge_features=True, **settings).resolved()
    task = LinkTask(TaskInput(graph=graph, config=config, draws=Draws(seed=3), share=share))
    task.event_scale = EventScale(graph, TRAIN)
    torch.manual_seed(0)
    head = task.make_head(ROWS).double()
    assert isinstance(head, PairHead)
    return task, head


def rows_of_nodes() -> Tensor:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(NUM_NODES, ROWS, dtype=torch.float64, generator=draw)


def known_NNP(graph: DynamicGraph, step: int) -> Tensor:
    """Return what is known of every pair at a step, from matrices of all events until then."""
    count, faded, recent = (np.zeros((NUM_NODES, NUM_NODES)) for _ in range(3))
    total = np.zeros((NUM_NODES, NUM_NODES, WIDTH))
    for window in range(step + 1):
        events = graph.edge_events(window)
        now, sums = np.zeros_like(count), np.zeros_like(total)
        ends = [(events.src, events.dst, np.ones(len(events.src), bool))]
        if graph.symmetric:
            ends.append((events.dst, events.src, events.src != events.dst))
        for src, dst, counts in ends:
            np.add.at(now, (src[counts], dst[counts]), 1)
            np.add.at(sums, (src[counts], dst[counts]), events.attr[counts].astype(np.float64))
        count += now
        faded = FADE * faded + now
        total = FADE * total + sums
        recent += (now > 0) & (window > step - REACH)
    seen = np.concatenate([graph.edge_events(t).attr for t in range(TRAIN)]).astype(np.float64)
    mean, deviation = (n.astype(np.float32).astype(np.float64) for n in (seen.mean(0), seen.std(0)))
    features = (total / np.maximum(faded, 1e-300)[..., None] - mean) / deviation
    numbers = [now > 0, np.log1p(count), np.log1p(faded), recent / REACH]
    found = [torch.from_numpy(np.stack(numbers, axis=-1)).float().double()]  # as they are kept
    found += [torch.from_numpy(np.where(count[..., None] > 0, features, 0))]
    if graph.symmetric:
        return torch.cat(found, dim=2)
    return torch.cat([part for one in found for part in (one, one.transpose(0, 1))], dim=2)


def dense_scores(graph: DynamicGraph, step: int, head: PairHead, x_ND: Tensor) -> Tensor:
    sum_NNH = head.source(x_ND)[:, None] + head.target(x_ND)[None]
    assert head.known is not None
    assert head.last is not None
    hidden = torch.relu(sum_NNH + head.known(known_NNP(graph, step)))
    return head.last(hidden)[..., 0]


def share_of_losses(world: World, symmetric: bool) -> dict[str, Any]:
    """Return this rank's share of the losses of all training snapshots, and its gradients."""
    graph = featured(symmetric)
    groups = np.resize(np.arange(world.size, dtype=np.int32)[::-1], NUM_NODES)
    share = NodeShare(NUM_NODES, world, groups if world.size > 1 else None)
    task, head = made(graph, share)
    own = rows_of_nodes()[share.ids_n].requires_grad_()
    losses = [task.loss(head, step, own) for step in range(TRAIN)]
    loss = torch.stack([one for one in losses if one is not None]).sum()
    loss.backward()
    grads = {name: value.grad for name, value in head.named_parameters()}
    return {"loss": loss.detach(), "grads": grads, "rows": own.grad, "ids": share.ids_n}


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_losses_and_gradients_equal_dense_ones(ranks: RankPool, size: int, symmetric: bool) -> None:
    graph = featured(symmetric)
    task, head = made(graph, NodeShare(NUM_NODES, World()))
    x_ND = rows_of_nodes().requires_grad_()
    total = x_ND.new_zeros(())
    for step in range(TRAIN):
        pairs = task._candidates(step, task.draws.key(SITE), task.negatives)
        if not pairs.num_met:
            continue
        score_E = dense_scores(graph, step, head, x_ND)[pairs.source, pairs.target]
        met, others = score_E[pairs.truth == 1], score_E[pairs.truth == 0]
        total = total + functional.softplus(-met).sum()
        total = total + functional.softplus(others).sum() * len(met) / max(1, len(others))
    (total / (2 * task.total)).backward()
    found = ranks.run(share_of_losses, size, symmetric)
    same = {"rtol": 1e-9, "atol": 1e-12}
    loss = torch.stack([part["loss"] for part in found]).sum()
    torch.testing.assert_close(loss, total.detach() / (2 * task.total), **same)
    for name, value in head.named_parameters():
        summed = torch.stack([part["grads"][name] for part in found]).sum(0)
        torch.testing.assert_close(summed, value.grad, **same)
    for part in found:
        torch.testing.assert_close(part["rows"], x_ND.grad[part["ids"]], **same)


@pytest.mark.parametrize("symmetric", [False, True])
def test_scores_of_all_pairs_equal_dense_ones(symmetric: bool) -> None:
    graph, x_ND = featured(symmetric), rows_of_nodes()
    task, head = made(graph, NodeShare(NUM_NODES, World()), eval_negatives="all")
    with torch.no_grad():
        for step in range(NUM_STEPS - 1):
            scored = task._scored(head, step, x_ND)
            assert scored is not None
            score_CC = torch.cat([piece for _, piece in scored.pieces()])
            got = score_CC[scored.class_K][:, scored.class_K]
            got[scored.source_X, scored.target_X] = scored.score_X
            want = dense_scores(graph, step, head, x_ND)
            torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)


def test_without_histories_no_features_of_events_are_known() -> None:
    _, head = made(featured(False), NodeShare(NUM_NODES, World()), pair_history=False)
    assert head.known is None
