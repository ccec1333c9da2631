"""Links over time: histories of pairs, negatives, rankings, and losses, each by hand too."""

import json
import math
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from siafu.comm import World
from siafu.config import make_config
from siafu.engine.dynamic.node_features import random_rows, read_node_features
from siafu.engine.tasks.all_pairs import Scored, among, rank_true, without_loops
from siafu.engine.tasks.links import LinkTask
from siafu.engine.tasks.model_free import MODEL_FREE, ModelFree
from siafu.engine.tasks.pair_history import FADE, PairHistory
from siafu.engine.tasks.scores import average_precision, mean_reciprocal_rank
from siafu.engine.tasks.task import TaskInput
from siafu.errors import ConfigError
from siafu.graph import DynamicGraph, save_dynamic
from siafu.nn import Draws
from siafu.shard import NodeShare
from tests.command import Command
from tests.dynamic.graphs import NUM_NODES, NUM_STEPS, awkward_dynamic
from tests.dynamic.runs import run_engine
from tests.harness import RankPool

ALL_MINE = NodeShare(NUM_NODES, World())
REACH = 3
EVERY = torch.cartesian_prod(torch.arange(NUM_NODES), torch.arange(NUM_NODES)).unbind(1)


def graph_of(symmetric: bool) -> DynamicGraph:
    return replace(awkward_dynamic(), symmetric=symmetric)


def link_task(graph: DynamicGraph | None = None, **settings) -> LinkTask:
    config = make_config(data="awkward", task="link", **{"model": "gcrn", **settings}).resolved()
    graph = graph or awkward_dynamic()
    return LinkTask(TaskInput(graph=graph, config=config, draws=Draws(seed=3), share=ALL_MINE))


@cache
def events_of(window: int) -> Counter[tuple[int, int]]:
    """Return how many events each pair has in a window, one direction each."""
    events = awkward_dynamic().edge_events(window)
    return Counter(zip(events.src.tolist(), events.dst.tolist(), strict=True))


def met_by_window(graph: DynamicGraph, u: int, v: int) -> list[int]:
    """Return how many events a pair has in each window."""
    other = [(v, u)] if graph.symmetric and u != v else []
    return [sum(events_of(t)[pair] for pair in [(u, v), *other]) for t in range(NUM_STEPS)]


def numbers_of(counts: list[int], step: int) -> list[float]:
    """Return the history of a pair at a step, from its events by window."""
    past = counts[: step + 1]
    faded = sum(count * FADE ** (step - window) for window, count in enumerate(past))
    recent = sum(count > 0 for count in past[-REACH:])
    return [float(past[-1] > 0), math.log1p(sum(past)), math.log1p(faded), recent / REACH]


@pytest.mark.parametrize("symmetric", [False, True])
def test_histories_of_all_pairs_at_all_times(symmetric: bool) -> None:
    graph = graph_of(symmetric)
    history = PairHistory(graph, REACH, ALL_MINE, of_all=True)
    counts = {(u, v): met_by_window(graph, u, v) for u in range(NUM_NODES) for v in range(u + 1)}
    counts |= {(u, v): met_by_window(graph, u, v) for v in range(NUM_NODES) for u in range(v)}
    pairs = list(zip(*(ends.tolist() for ends in EVERY), strict=True))
    for step in range(NUM_STEPS):
        want = torch.tensor([numbers_of(counts[pair], step) for pair in pairs])
        if not symmetric:
            back = [numbers_of(counts[v, u], step) for u, v in pairs]
            want = torch.cat([want, torch.tensor(back)], dim=1)
        torch.testing.assert_close(history.numbers(step, *EVERY), want)
        last = [max((w for w in range(step + 1) if counts[p][w]), default=-1) for p in pairs]
        assert history.last_met(step, *EVERY).tolist() == last
        known = set(zip(*(ends.tolist() for ends in history.until(step)), strict=True))
        assert known == {pair for pair, row in zip(pairs, want, strict=True) if row.any()}


def test_a_group_of_nodes_knows_the_histories_it_asks_for() -> None:
    groups = np.resize(np.array([0, 1, 1], np.int32), NUM_NODES)
    whole = PairHistory(awkward_dynamic(), REACH, ALL_MINE, of_all=True)
    share = NodeShare(NUM_NODES, World(), groups)
    part = PairHistory(awkward_dynamic(), REACH, share, of_all=False)
    mine = share.is_mine(EVERY[0])
    pairs = EVERY[0][mine], EVERY[1][mine]
    for step in range(NUM_STEPS):
        assert torch.equal(part.numbers(step, *pairs), whole.numbers(step, *pairs))
    assert len(part._pair_U) < len(whole._pair_U)


def test_pairs_of_a_graph_without_events_have_no_history() -> None:
    graph = awkward_dynamic()
    nothing = np.empty(0, graph.event_src.dtype)
    starts = np.zeros(NUM_STEPS + 1, np.int64)
    graph = replace(
        graph, event_src=nothing, event_dst=nothing, event_starts=starts, event_label=None
    )
    history = PairHistory(graph, REACH, ALL_MINE, of_all=True)
    assert not history.numbers(4, *EVERY).any()
    assert history.last_met(4, *EVERY).tolist() == [-1] * len(EVERY[0])


@pytest.mark.parametrize(("rows", "classes"), [(1, 4), (3, 5), (20, 11)])
def test_true_pairs_are_ranked_as_if_all_were_listed(rows: int, classes: int) -> None:
    """Many scores are equal, some pairs have scores of their own, some nodes do not count."""
    draw = torch.Generator().manual_seed(rows)
    score_CC = torch.randint(0, 6, (classes, classes), generator=draw).double()
    class_K = torch.randint(0, classes, (11,), generator=draw)
    score_KK = score_CC[class_K][:, class_K]
    source, target = (torch.rand(11, 11, generator=draw) < 0.3).nonzero().unbind(1)
    own = torch.randint(0, 6, (len(source),), generator=draw).double() + 0.5 * (class_K[source] % 2)
    score_KK[source, target] = own

    def pieces():
        return ((low, score_CC[low : low + rows]) for low in range(0, classes, rows))

    scored = Scored(class_K, pieces, classes, source, target, own)
    truth = torch.rand(11, 11, generator=draw) < 0.2
    numbers = torch.arange(11)[:, None].expand(11, 11)

    def listed(counts: torch.Tensor) -> tuple[float, float]:
        lists = score_KK[counts], truth[counts]
        return average_precision(*lists), mean_reciprocal_rank(numbers[counts], *lists)

    every = torch.ones(11, 11, dtype=torch.bool)
    assert rank_true(scored, *truth.nonzero().unbind(1)) == pytest.approx(listed(every))
    known = torch.tensor([0, 2, 3, 5, 7, 8, 10])
    near = torch.zeros(11, dtype=torch.bool)
    near[known] = True
    inside = near[:, None] & near & ~torch.eye(11, dtype=torch.bool)
    pairs = (truth & inside).nonzero().unbind(1)
    assert rank_true(without_loops(among(scored, known)), *pairs) == pytest.approx(listed(inside))


@pytest.mark.parametrize("symmetric", [False, True])
def test_rankings_without_a_model(symmetric: bool) -> None:
    graph, step = graph_of(symmetric), 6
    history = PairHistory(graph, REACH, ALL_MINE, of_all=True)
    free = ModelFree(graph, history, step, torch.device("cpu"))
    events = graph.edge_events(step)
    out, come = (np.bincount(e, minlength=NUM_NODES) for e in (events.src, events.dst))
    out, come = (out + come, out + come) if symmetric else (out, come)
    ever = history.last_met(step, *EVERY).view(NUM_NODES, NUM_NODES).numpy()
    product = np.outer(out, come)
    by_hand = {
        "last seen": product + (ever == step) * (product.max() + 1),
        "degrees": product,
        "edgebank": (ever >= 0).astype(int),
    }
    truth = torch.zeros(NUM_NODES, NUM_NODES, dtype=torch.bool)
    nxt = graph.edge_events(step + 1)
    truth[torch.from_numpy(nxt.src.astype(int)), torch.from_numpy(nxt.dst.astype(int))] = True
    for kind, want in by_hand.items():
        score = torch.from_numpy(want).double().flatten()
        lists = average_precision(score, truth.flatten())
        ranks = mean_reciprocal_rank(EVERY[0], score, truth.flatten())
        got = rank_true(free.all_pairs(kind), *truth.nonzero().unbind(1))
        assert got == pytest.approx((lists, ranks))
        alone = free.scores(kind, *EVERY)
        assert average_precision(alone, truth.flatten()) == pytest.approx(lists)


def test_negatives_of_the_last_snapshots() -> None:
    """Sources of true pairs, nodes active lately as targets, and no pair that meets."""
    task = link_task(negatives="history:7", history=2)
    for step in range(task.num_steps):
        pairs = task._candidates(step, task._score_key(), task.negatives)
        true = set(zip(*(ends.tolist() for ends in task._true_pairs(step)), strict=True))
        drawn = list(zip(pairs.source.tolist(), pairs.target.tolist(), strict=True))[len(true) :]
        assert not true & set(drawn)
        assert {u for u, _ in drawn} <= {u for u, _ in true}
        recent = [task.graph.edge_events(t) for t in range(max(0, step - 1), step + 1)]
        active = {int(v) for events in recent for v in (*events.src, *events.dst)}
        if active:  # else all nodes met so far
            assert {v for _, v in drawn} <= active
        assert len(drawn) <= 7 * len(true)


def test_the_loss_of_a_snapshot_by_hand() -> None:
    """Of a head in float64, pair by pair; history is 0 for most of them."""
    task, step = link_task(negatives="history:3", hidden=4), 7
    torch.manual_seed(0)
    head = task.make_head(5).double()
    rows = torch.randn(NUM_NODES, 5, dtype=torch.float64)
    pairs = task._candidates(step, task.draws.key((1 << 18) + 1), task.negatives)
    met, others = [], []
    for u, v, truth in zip(*(column.tolist() for column in pairs[:3]), strict=True):
        counts = met_by_window(task.graph, u, v), met_by_window(task.graph, v, u)
        known = [number for one in counts for number in numbers_of_ten(one, step)]
        hidden = head.source.weight @ rows[u] + head.source.bias + head.target.weight @ rows[v]
        hidden = torch.relu(hidden + head.known.weight @ torch.tensor(known).double())
        score = head.last.weight[0] @ hidden + head.last.bias[0]
        (met if truth else others).append(functional.softplus(-score if truth else score))
    want = torch.stack(met).sum() + torch.stack(others).mean() * len(met)
    got = task.loss(head, step, rows)
    torch.testing.assert_close(got, want / (2 * task.total), rtol=1e-6, atol=0)


def numbers_of_ten(counts: list[int], step: int) -> list[float]:
    """Return the same for the last ten snapshots."""
    share = sum(count > 0 for count in counts[: step + 1][-10:]) / 10
    return [*numbers_of(counts, step)[:3], share]


@pytest.mark.parametrize("text", ["in-batch", "uniform", "history:0", "history:x", "uniform:-1"])
def test_negatives_that_are_not_understood(text: str) -> None:
    with pytest.raises(ConfigError, match="negatives are not understood"):
        link_task(negatives=text)


def test_features_that_nodes_are_told_apart_by() -> None:
    graph = awkward_dynamic()

    def rows(text: str) -> np.ndarray:
        return read_node_features(text, graph, seed=4, lags=0).rows(graph, 9)

    events = graph.edge_events(9)
    pairs = set(zip(events.src.tolist(), events.dst.tolist(), strict=True))
    others = [len({b if a == v else a for a, b in pairs if v in (a, b)}) for v in range(NUM_NODES)]
    assert rows("degree-onehot:6").argmax(1).tolist() == [min(d, 5) for d in others]
    assert (rows("degree-onehot:6").sum(1) == 1).all()
    assert rows("degree-onehot").shape == (NUM_NODES, 128)
    counts = [np.bincount(ends, minlength=NUM_NODES) for ends in (events.dst, events.src)]
    np.testing.assert_allclose(rows("log-degree"), np.log1p(counts).T, rtol=1e-6)
    drawn = random_rows(4000, 8, seed=4)
    assert np.array_equal(drawn[:NUM_NODES], rows("random:8"))
    assert abs(drawn.mean()) < 0.01
    assert drawn.var() == pytest.approx(1 / 8, rel=0.05)
    for wrong in ("degree", "random:0", "learned:x", "random:", "log-degree:2", "random:99999999"):
        with pytest.raises(ConfigError, match="features of nodes"):
            rows(wrong)
    with pytest.raises(ConfigError, match="beside a signal"):
        read_node_features("learned", graph, seed=4, lags=2)


WAYS = [
    ("cd-gcn", {"negatives": "history:5", "history": 3, "node_features": "degree-onehot:9"}),
    ("evolvegcn-h", {"node_features": "learned:5", "step_every": "block", "history": 2}),
    ("tm-gcn", {"node_features": "random:6", "step_every": "block", "eval_negatives": "all"}),
]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(("model", "more"), WAYS)
def test_link_runs_do_not_depend_on_ranks(
    ranks: RankPool, tmp_path: Path, model: str, more: dict, size: int
) -> None:
    """Two ranks along time; four in a grid, which share every snapshot out."""
    graph = awkward_dynamic()
    groups = np.resize(np.array([1, 0, 0], np.int32), graph.num_nodes)
    save_dynamic(replace(graph, part_of=groups), tmp_path / "store")
    settings = {"model": model, "task": "link", "epochs": 4, "hidden": 4, "time_block": 4, **more}
    settings |= {"bandwidth": 4, "seed": 2, "checkpoint_every": 0}
    one = run_engine(World(), tmp_path / "store", tmp_path / "one", False, settings)
    settings |= {"node_parts": 2} if size == 4 else {}
    many = ranks.run(run_engine, size, tmp_path / "store", tmp_path / "many", False, settings)
    for part in many:
        assert part["result"]["losses"] == pytest.approx(one["result"]["losses"], rel=2e-5)
        assert part["result"]["scores"] == {
            split: pytest.approx(scores, rel=1e-3)
            for split, scores in one["result"]["scores"].items()
        }


def test_a_step_per_block_resumes_bit_for_bit(store: Path, tmp_path: Path) -> None:
    settings = {"model": "gcrn", "task": "link", "time_block": 3, "step_every": "block"}
    settings |= {"epochs": 4, "checkpoint_every": 2, "hidden": 4, "history": 2}
    straight = run_engine(World(), store, tmp_path / "straight", False, settings)
    run_engine(World(), store, tmp_path / "broken", False, {**settings, "epochs": 2})
    resumed = run_engine(World(), store, tmp_path / "broken", True, settings)
    assert resumed["result"]["losses"] == straight["result"]["losses"]
    assert resumed["result"]["scores"] == straight["result"]["scores"]


def test_scores_without_a_model_are_printed(command: Command) -> None:
    """Beside those of the model, and in the run's result."""
    flags = ["--task", "link", "--model", "gcrn", "--epochs", 1, "--hidden", 4]
    answer = command("train", "drifting:60", *flags, "--out", "run")
    assert answer.code == 0
    told = json.loads(Path("run/result.json").read_text())["scores"]["test"]
    for kind in MODEL_FREE:
        for name in ("map", "mrr"):
            assert 0 < told[f"{name} of {kind}"] <= 1
            assert f"{name} of {kind}" in answer.out
