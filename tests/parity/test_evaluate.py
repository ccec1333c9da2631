"""Epochs scored by less than all nodes: the same answers, on any ranks, at a predicted cost."""

import math
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin, scoring
from siafu.engine.metrics import Answers, node_answers, scores_of
from siafu.engine.networks.sampled import SampledNetwork
from siafu.engine.scoring import error_bars
from siafu.errors import ConfigError
from siafu.graph import Graph, graph_from_edges
from siafu.partitioning import write_parts
from siafu.shard import HeldRows, open_shard
from tests.harness import RankPool
from tests.parity.graphs import assignment
from tests.unit.engine.runs import run_engine

EXACT = {"rtol": 1e-10, "atol": 1e-12}
MODELS = Path(__file__).with_name("own_models.py").absolute()
NUM_NODES = 95
SPLITS = {"train": range(10), "val": range(30, 34), "test": range(60, 63)}
BASE = {"strategy": "batchgnn", "fanout": "2,2", "hidden": 8, "batch_size": 4}


def ring() -> Graph:
    """Return a graph in which few nodes are near the labelled ones: each hears those behind it."""
    generator = np.random.default_rng(5)
    nodes = np.arange(NUM_NODES - 2)  # the last two are isolated
    src = np.concatenate([np.roll(nodes, back) for back in (1, 2, 3, 5)] + [nodes[:9]])
    dst = np.concatenate([nodes] * 4 + [nodes[:9]])
    masks = {name: np.isin(np.arange(NUM_NODES), rows) for name, rows in SPLITS.items()}
    return graph_from_edges(
        src,
        dst,
        NUM_NODES,
        name="ring",
        x=generator.standard_normal((NUM_NODES, 6)).astype(np.float32),
        y=generator.integers(0, 3, NUM_NODES),
        num_classes=3,
        edge_weight=generator.uniform(0.5, 2.0, len(src)).astype(np.float32),
        **masks,
    )


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory):
    """Return a function that gives parts of the ring, made once."""
    root = tmp_path_factory.mktemp("ring")

    @cache
    def make(size: int) -> Path:
        target, graph = root / f"{size}.parts", ring()
        part_of = assignment(graph, "gap" if size == 4 else "hash", size)
        write_parts(graph, part_of, target, num_parts=size, method="hash", seed=0)
        return target

    return make


def evaluated(world: World, folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Return what one epoch's weights say of the nodes asked about, exactly too, and scores."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    try:
        shard = open_shard(folder, world)
        assert isinstance(shard.x, torch.Tensor)
        shard.x.data = shard.x.double()
        shard.csr.weight.data = shard.csr.weight.double()
        trainer = begin(make_config(data="ring", **settings).resolved(), shard)
        trainer.step()
        work, rows = trainer.workload, torch.cat(list(shard.masks.values()))
        work._rest()
        found = scoring.rows_asked(work.network, work.scoring, work.shard, work.config)
        numbers = shard.row_ids[rows].tolist()
        result = {
            "asked": dict(zip(numbers, found.read(rows), strict=True)),
            "exact": dict(zip(numbers, work.network.logit_rows().read(rows), strict=True)),
            "scores": work.evaluate(),
            "all": work.evaluate_all(),
            "rows": [] if work.scoring.flow is None else [len(r) for r in work.scoring.flow.rows],
        }
        trainer.close()
        return result
    finally:
        torch.set_default_dtype(torch.float32)


def rows_of(results: list[dict[str, Any]], name: str) -> torch.Tensor:
    """Return the rows of all labelled nodes, by number."""
    found = {number: row for one in results for number, row in one[name].items()}
    assert sorted(found) == [number for rows in SPLITS.values() for number in rows]
    return torch.stack([found[number] for number in sorted(found)])


@pytest.mark.parametrize(
    ("size", "changes"),
    [
        (1, {"model": "gcn"}),
        (2, {"model": "sage", "layers": 3, "fanout": "2,2,2", "jk": "cat"}),
        (3, {"model": "gat"}),
        (3, {"model": "sage", "input_cache": True, "input_dropout": 0.0}),
        (4, {"model": "gcn"}),
        (2, {"model": f"{MODELS}:OptionalWeight"}),
    ],
)
def test_the_splits_alone_get_the_answers_of_all_nodes(
    ranks: RankPool, parts, size: int, changes: dict[str, Any]
) -> None:
    got = ranks.run(evaluated, size, parts(size), BASE | changes | {"evaluate": "split"})
    torch.testing.assert_close(rows_of(got, "asked"), rows_of(got, "exact"), **EXACT)
    for one in got:
        assert one["scores"].scores == one["all"].scores
        assert not one["scores"].errors
    if ":" not in changes["model"]:
        written = [sum(layer) for layer in zip(*(one["rows"] for one in got), strict=True)]
        assert written[-1] == 17
        assert all(few < many for many, few in pairwise(written))
        assert written[0] < NUM_NODES


@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_a_sample_is_the_same_on_any_ranks(ranks: RankPool, parts, model: str) -> None:
    settings = BASE | {"model": model, "evaluate": "sampled", "seed_order": "global"}
    settings |= {"step_minibatches": 3}
    want = [evaluated(World(), parts(1), settings)]
    got = ranks.run(evaluated, 3, parts(3), settings)
    torch.testing.assert_close(rows_of(got, "asked"), rows_of(want, "asked"), **EXACT)
    assert got[0]["scores"].scores == want[0]["scores"].scores
    assert got[0]["scores"].errors == pytest.approx(want[0]["scores"].errors)
    # Two of four in-edges are not all of them, and all of them are.
    assert not torch.allclose(rows_of(want, "asked"), rows_of(want, "exact"))
    every = [evaluated(World(), parts(1), settings | {"fanout": "-1,-1"})]
    torch.testing.assert_close(rows_of(every, "asked"), rows_of(every, "exact"), **EXACT)


def bars(world: World, folder: Path, metric: str) -> tuple[float, float]:
    """Return a score of the test nodes with its error."""
    shard = open_shard(folder, world)
    answers = some_answers(shard)
    errors = error_bars(answers, shard, 3, metric)
    return scores_of(answers, [metric])["test"][metric], errors["test"]


def some_answers(shard: Any) -> Answers:
    """Return answers of a model that is right two times of three, drawn by the node's number."""
    right = ((shard.row_ids * 7919) % 3 > 0).long()
    out = torch.nn.functional.one_hot((shard.y + 1 - right) % 3, 3).float()
    return node_answers(HeldRows(out), shard)


@pytest.mark.parametrize("metric", ["accuracy", "roc-auc"])
def test_error_bars_are_those_of_a_mean(ranks: RankPool, tmp_path: Path, metric: str) -> None:
    num_nodes = 4000
    y = np.random.default_rng(1).integers(0, 3, num_nodes)
    masks = dict.fromkeys(("train", "val", "test"), np.ones(num_nodes, bool))
    edges = np.zeros((2, 1), np.int64)
    whole = graph_from_edges(*edges, num_nodes, y=y, num_classes=3, **masks)
    for size in (1, 3):
        part_of = assignment(whole, "hash", size)
        write_parts(whole, part_of, tmp_path / str(size), num_parts=size, method="hash", seed=0)
    score, error = bars(World(), tmp_path / "1", metric)
    assert ranks.run(bars, 3, tmp_path / "3", metric)[0] == pytest.approx((score, error))
    if metric == "accuracy":  # 16 groups tell it to a fifth or so
        assert error == pytest.approx(math.sqrt(score * (1 - score) / num_nodes), rel=0.5)
    assert 0.001 < error < 0.02


def test_training_nodes_as_they_were_met(parts) -> None:
    settings = BASE | {"model": "sage", "evaluate": "train"}
    shard = open_shard(parts(1), World())
    trainer = begin(make_config(data="ring", **settings).resolved(), shard)
    work, right = trainer.workload, []
    note = work.network.on_answers

    def watch(out: torch.Tensor, y: torch.Tensor) -> None:
        right.extend((out.argmax(dim=1) == y).tolist())
        note(out, y)

    work.network.on_answers = watch
    trainer.step()
    found = work.evaluate()
    assert len(right) == 10
    assert found.scores == {"train": sum(right) / 10}
    assert not found.chooses
    assert "val" in work.evaluate_all().scores
    assert work.note_of(work.row_of(found)).startswith("train ")
    trainer.close()


@pytest.mark.parametrize("kind", ["split", "sampled", "train"])
def test_a_run_ends_with_exact_scores_and_predictions_by_one_pass(
    parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    settings = BASE | {"model": "sage", "epochs": 1}
    want = run_engine(World(), parts(1), tmp_path / "exact", False, settings)["summary"]
    passes = []
    infer = SampledNetwork._infer_all
    monkeypatch.setattr(
        SampledNetwork,
        "_infer_all",
        lambda self, *, embed: passes.append(1) or infer(self, embed=embed),
    )
    got = run_engine(World(), parts(1), tmp_path / kind, False, settings | {"evaluate": kind})
    assert got["summary"]["score"] == want["score"]
    assert got["summary"]["quality"] == want["quality"]
    assert got["summary"]["evaluation"]["kind"] == kind
    assert len(passes) == 1


def test_scores_without_predictions(parts, tmp_path: Path) -> None:
    settings = BASE | {"model": "sage", "epochs": 1, "inference": "none", "evaluate": "split"}
    got = run_engine(World(), parts(1), tmp_path / "run", False, settings)["summary"]
    assert set(got["score"]) == set(SPLITS)
    assert "quality" not in got


@pytest.mark.parametrize("changes", [{"patience": 3}, {"keep": "loss"}, {"inference": "none"}])
def test_what_needs_validation_is_refused_without_it(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="evaluate train"):
        make_config(data="ring", **BASE, evaluate="train", **changes)


def settled(folder: Path, **changes: Any) -> scoring.Scoring:
    """Return how epochs would be scored."""
    trainer = begin(
        make_config(data="ring", **BASE, model="sage", **changes).resolved(),
        open_shard(folder, World()),
    )
    trainer.close()
    assert trainer.config.eval_every == trainer.workload.scoring.every
    return trainer.workload.scoring


def test_the_default_is_chosen_by_predicted_cost(parts, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settled(parts(1)).kind == "exact"  # too small to be worth anything else
    monkeypatch.setattr(scoring, "_SMALL", 0.0)
    work = scoring.Predicted(widths=((6, 8), (8, 3)))
    shard = open_shard(parts(1), World())
    all_nodes = work.everything(shard)
    assert all_nodes == sum(work.layer(n, NUM_NODES, shard.csr.num_edges) for n in (0, 1))
    costs = {}
    for name, allowed in [("exact", 1.0), ("split", 0.95), ("sampled", 1e-3)]:
        # As if training cost so much that just this is a fifth of it.
        monkeypatch.setattr(scoring.Predicted, "epoch", lambda _, f, a=allowed: 5 * a * all_nodes)
        found = settled(parts(1))
        costs[name] = found.flow.cost if found.flow else all_nodes
        assert found.kind == name
        assert bool(found.told) == (name != "exact")
    assert costs["sampled"] < costs["split"] < all_nodes
    assert found.every == math.ceil(2 * costs["sampled"] / (1e-3 * all_nodes))
    assert f"every {found.every} epochs" in found.told
    assert settled(parts(1), eval_every=1).every == 1  # asked by how often
    assert settled(parts(1), evaluate="exact").kind == "exact"  # asked by kind


def test_an_epoch_is_predicted_from_its_trial(parts) -> None:
    trainer = begin(
        make_config(data="ring", **BASE, model="sage").resolved(), open_shard(parts(1), World())
    )
    feed, work = trainer.workload.network.feed, scoring.Predicted(widths=((6, 8), (8, 3)))
    trial = feed.trial()
    seeds, first, _ = trial.reached
    forward = work.compute(1, seeds, trial.edges * seeds / first)
    forward += work.compute(0, first, trial.edges)
    assert work.forward(trial) == pytest.approx(forward)
    steps = feed.sampler.schedule.num_steps
    assert work.epoch(feed) == pytest.approx(steps * (3 * forward + work.handling(trial)))
    assert work.handling(trial) == 4000 * trial.edges + 20_000 * trial.reached[-1]
    trainer.close()
