"""Scores over ranks against scikit-learn, and losses against torch."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from siafu.comm import World
from siafu.config import make_config
from siafu.engine.metrics import best_threshold, metrics_of, node_answers, scores_of
from siafu.engine.objective import with_objective
from siafu.engine.quality import quality_of
from siafu.engine.ranking import Ranking
from siafu.engine.scores import training_loss
from siafu.errors import ConfigError
from siafu.graph import Graph
from siafu.shard import HeldRows, Objective, open_shard
from tests.harness import RankPool
from tests.unit.engine.test_score import NUM_NODES, graph, logits, make_parts

SIZES = [1, 3]


def numbers() -> np.ndarray:
    y = np.random.default_rng(5).normal(50, 7, (NUM_NODES, 2)).astype(np.float32)
    y[::5, 1] = np.nan
    return y


def judged(
    world: World, folder: Path, width: int, names: tuple[str, ...], settings: dict[str, Any]
) -> tuple[dict, dict, float, float]:
    config = make_config(data="x", **settings)
    shard = with_objective(config, open_shard(folder, world))
    owned = logits(width)[shard.row_ids]
    answers = node_answers(HeldRows(owned), shard)
    threshold = best_threshold(answers) if width == 2 and shard.num_classes else 0.0
    if config.threshold == "f1":
        answers = replace(answers, objective=replace(shard.objective, threshold=threshold))
    share = float(training_loss(owned[shard.train], shard))
    loss = sum(row[0] for row in world.gather_numbers([share]))
    return scores_of(answers, names), quality_of(answers), loss, threshold


def on(
    ranks: RankPool, tmp_path: Path, whole: Graph, size: int, names: tuple[str, ...], **settings
) -> tuple[dict, dict, float, float]:
    """Return what every rank finds, which is the same on all of them."""
    folder = make_parts(tmp_path, whole, size)
    width = whole.num_targets or whole.num_classes
    found = ranks.run(judged, size, folder, width, names, settings)
    assert all(one[:2] == found[0][:2] for one in found)
    return found[0]


@pytest.mark.parametrize("size", SIZES)
def test_scores_of_two_classes_are_those_of_scikit_learn(
    ranks: RankPool, tmp_path: Path, size: int
) -> None:
    sk = pytest.importorskip("sklearn.metrics")
    y = np.random.default_rng(4).integers(0, 2, NUM_NODES)
    whole = graph(y, 2)
    names = ("average-precision", "roc-auc", "accuracy", "f1", "macro-f1", "micro-f1", "recall@5")
    found, quality, _, _ = on(ranks, tmp_path, whole, size, names)
    share = logits(2).softmax(dim=1)[:, 1].numpy()
    said = logits(2).argmax(dim=1).numpy()
    for split in ("train", "val", "test"):
        rows = getattr(whole, split)
        want = {
            "average-precision": sk.average_precision_score(y[rows], share[rows]),
            "roc-auc": sk.roc_auc_score(y[rows], share[rows]),
            "accuracy": sk.accuracy_score(y[rows], said[rows]),
            "f1": sk.f1_score(y[rows], said[rows]),
            "macro-f1": sk.f1_score(y[rows], said[rows], average="macro"),
            "micro-f1": sk.f1_score(y[rows], said[rows], average="micro"),
        }
        assert {name: found[split][name] for name in want} == pytest.approx(want)
        assert 0 <= found[split]["recall@5"] <= 1
    rows = whole.test
    assert quality["test"]["confusion"] == sk.confusion_matrix(y[rows], said[rows]).tolist()
    told = sk.classification_report(y[rows], said[rows], output_dict=True, zero_division=0)
    assert quality["test"]["classes"]["precision"][1] == pytest.approx(told["1"]["precision"])
    assert quality["test"]["classes"]["count"] == [int(told[c]["support"]) for c in "01"]


@pytest.mark.parametrize("size", SIZES)
def test_scores_of_many_and_of_several_classes(ranks: RankPool, tmp_path: Path, size: int) -> None:
    sk = pytest.importorskip("sklearn.metrics")
    names = ("roc-auc", "average-precision", "macro-f1", "recall@2")
    y = np.arange(NUM_NODES) % 3
    whole = graph(y, 3)
    found, _, _, _ = on(ranks, tmp_path / "one", whole, size, names)
    rows, share = whole.test, logits(3).double().softmax(dim=1).numpy()
    want = sk.roc_auc_score(y[rows], share[rows], multi_class="ovr")
    assert found["test"]["roc-auc"] == pytest.approx(want)
    hits = sk.top_k_accuracy_score(y[rows], share[rows], k=2)
    assert found["test"]["recall@2"] == pytest.approx(hits, abs=0.25)  # ties, each in its order
    several = np.random.default_rng(2).integers(0, 2, (NUM_NODES, 4)).astype(np.uint8)
    whole = graph(several, 4)
    found, quality, _, _ = on(ranks, tmp_path / "four", whole, size, names)
    rows, out = whole.test, logits(4).numpy()
    want = sk.average_precision_score(several[rows], out[rows], average="macro")
    assert found["test"]["average-precision"] == pytest.approx(want)
    want = sk.f1_score(several[rows], out[rows] > 0, average="macro")
    assert found["test"]["macro-f1"] == pytest.approx(want)
    assert sum(quality["test"]["calibration"]["count"]) == 4 * rows.sum()


@pytest.mark.parametrize("size", SIZES)
def test_scores_of_numbers_are_in_the_users_units(
    ranks: RankPool, tmp_path: Path, size: int
) -> None:
    sk = pytest.importorskip("sklearn.metrics")
    y = numbers()
    whole = graph(y, 0)
    found, quality, loss, _ = on(ranks, tmp_path, whole, size, ("rmse", "mae", "r2"))
    train = y[whole.train].astype(np.float64)
    mean, scale = np.nanmean(train, axis=0), np.nanstd(train, axis=0)
    said = logits(2).numpy() * scale + mean
    rows = whole.test
    for k in range(2):
        known = rows & ~np.isnan(y[:, k])
        pair = y[known, k], said[known, k]
        assert quality["test"]["rmse"][k] == pytest.approx(sk.mean_squared_error(*pair) ** 0.5)
        assert quality["test"]["mae"][k] == pytest.approx(sk.mean_absolute_error(*pair))
        assert quality["test"]["r2"][k] == pytest.approx(sk.r2_score(*pair), rel=1e-5)
    assert found["test"]["rmse"] == pytest.approx(np.mean(quality["test"]["rmse"]))
    error = logits(2).numpy()[whole.train] - (train - mean) / scale
    assert loss == pytest.approx(float(np.nanmean(error**2)), rel=1e-5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("loss", ["mae", "huber"])
def test_other_losses_of_numbers(ranks: RankPool, tmp_path: Path, size: int, loss: str) -> None:
    y = numbers()[:, :1]
    whole = graph(y, 0)
    *_, found, _ = on(ranks, tmp_path, whole, size, ("rmse",), loss=loss)
    train = torch.tensor(y[whole.train], dtype=torch.float64)
    target = (train - train.mean()) / train.std(correction=0)
    measure = functional.l1_loss if loss == "mae" else functional.huber_loss
    want = measure(logits(1)[whole.train].double(), target)
    assert found == pytest.approx(float(want), rel=1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_classes_are_weighed_by_the_counts_of_all_ranks(
    ranks: RankPool, tmp_path: Path, size: int
) -> None:
    y = (np.arange(NUM_NODES) % 5 == 0).astype(np.int64)
    whole = graph(y, 2)
    picked, target = logits(2)[whole.train], torch.tensor(y[whole.train])
    counts = torch.bincount(target)
    balanced = counts.sum() / (2 * counts)
    for text, weight in (("balanced", balanced), ("1,4", torch.tensor([1.0, 4.0]))):
        *_, found, _ = on(ranks, tmp_path / text, whole, size, ("accuracy",), class_weights=text)
        want = functional.cross_entropy(picked, target, weight=weight)
        assert found == pytest.approx(float(want), rel=1e-6)
    *_, found, _ = on(ranks, tmp_path / "focal", whole, size, ("accuracy",), loss="focal")
    each = functional.cross_entropy(picked, target, reduction="none")
    assert found == pytest.approx(float(((1 - (-each).exp()) ** 2 * each).mean()), rel=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_the_best_threshold_is_that_of_validation(
    ranks: RankPool, tmp_path: Path, size: int
) -> None:
    sk = pytest.importorskip("sklearn.metrics")
    y = np.random.default_rng(4).integers(0, 2, NUM_NODES)
    whole = graph(y, 2)
    found, quality, _, threshold = on(ranks, tmp_path, whole, size, ("f1",), threshold="f1")
    share, rows = (logits(2)[:, 1] - logits(2)[:, 0]).double().sigmoid().numpy(), whole.val
    every = [sk.f1_score(y[rows], share[rows] >= limit) for limit in np.unique(share[rows])]
    assert found["val"]["f1"] == pytest.approx(max(every))
    assert quality["threshold"] == threshold
    want = sk.f1_score(y[whole.test], share[whole.test] >= threshold)
    assert found["test"]["f1"] == pytest.approx(want)


def test_calibration_is_the_mean_distance_from_what_came_true(tmp_path: Path) -> None:
    y = np.random.default_rng(4).integers(0, 2, NUM_NODES)
    whole = graph(y, 2)
    *_, quality, _, _ = judged(World(), make_parts(tmp_path, whole, 1), 2, ("accuracy",), {})
    rows = whole.test
    share = (logits(2)[:, 1] - logits(2)[:, 0]).double().sigmoid().numpy()[rows]
    place = np.minimum((share * 10).astype(int), 9)
    off = [abs(share[place == k].sum() - y[rows][place == k].sum()) for k in range(10)]
    assert quality["test"]["calibration"]["error"] == pytest.approx(sum(off) / rows.sum())


def test_what_is_scored_by_default_fits_the_targets() -> None:
    rare, even = Objective(counts=(97, 3)), Objective(counts=(60, 40))
    assert metrics_of(None, even, several=False) == ("accuracy",)
    assert metrics_of(None, rare, several=False)[0] == "average-precision"
    assert metrics_of(None, Objective(counts=(9, 9, 9)), several=True) == ("micro-f1",)
    assert metrics_of(None, Objective(mean=(0.0,)), several=False)[0] == "rmse"
    assert metrics_of(None, Objective(mean=(0.0, 1.0)), several=False)[0] == "r2"
    for text, objective in (("rmse", even), ("accuracy", Objective(mean=(0.0,)))):
        with pytest.raises(ConfigError, match="does not fit the targets"):
            metrics_of(text, objective, several=False)


@pytest.mark.parametrize(
    ("y", "classes", "settings", "told"),
    [
        (numbers(), 0, {"loss": "focal"}, "The loss is not one of numbers"),
        (numbers(), 0, {"class_weights": "balanced"}, "Numbers have no classes"),
        (numbers(), 0, {"task": "classification"}, "The targets of the data are numbers"),
        (np.arange(NUM_NODES) % 3, 3, {"loss": "mse"}, "The loss is not one of classes"),
        (np.arange(NUM_NODES) % 3, 3, {"task": "regression"}, "The targets of the data are cla"),
        (np.arange(NUM_NODES) % 3, 3, {"threshold": "0.3"}, "decides between two classes"),
        (np.arange(NUM_NODES) % 3, 3, {"class_weights": "1,2"}, "weights of the classes"),
    ],
)
def test_what_does_not_fit_the_targets_is_refused(
    tmp_path: Path, y: np.ndarray, classes: int, settings: dict, told: str
) -> None:
    folder = make_parts(tmp_path, graph(y, classes), 1)
    with pytest.raises(ConfigError, match=told):
        with_objective(make_config(data="x", **settings), open_shard(folder, World()))


def test_a_ranking_with_ties_is_that_of_scikit_learn() -> None:
    sk = pytest.importorskip("sklearn.metrics")
    generator = np.random.default_rng(3)
    score = generator.integers(0, 9, 500).astype(np.float32)
    truth = generator.random(500) < score / 12
    ranking = Ranking.of(torch.from_numpy(score), torch.from_numpy(truth))
    assert ranking.roc_auc() == pytest.approx(sk.roc_auc_score(truth, score), abs=1e-14)
    want = sk.average_precision_score(truth, score)
    assert ranking.average_precision() == pytest.approx(want, abs=1e-14)
    assert ranking.recall_at(500) == 1
    top = score == 8
    assert ranking.recall_at(1) == pytest.approx(truth[top].mean() / truth.sum())
    nothing = Ranking.of(torch.empty(0), torch.empty(0))
    assert (nothing.roc_auc(), nothing.recall_at(3), nothing.best_f1()) == (0, 0, None)
