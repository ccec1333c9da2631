"""Numbers and weighed classes in every engine: the same on one rank and three, and learnt."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from siafu.graph import Graph, graph_from_edges
from siafu.partitioning import assign_hash, write_parts
from tests.harness import RankPool
from tests.unit.engine.runs import run_engine

N = 90
ENGINES: dict[str, dict[str, Any]] = {
    "halo": {},
    "sar": {"strategy": "sar"},
    "batchgnn": {
        "strategy": "batchgnn",
        "fanout": "-1",
        "batch_size": 20,
        "seed_order": "global",
        "step_minibatches": 3,
    },
    "dorylus": {"strategy": "dorylus", "pool": "none", "intervals": 2},
}
TARGETS: dict[str, dict[str, Any]] = {
    "numbers": {"loss": "huber"},
    "weighed": {"class_weights": "balanced", "loss": "focal"},
    "several": {"class_weights": "balanced", "metric": "macro-f1,roc-auc"},
}


def known_answer(kind: str) -> Graph:
    """Return a graph whose targets are a line through the mean of the in-neighbours' features.

    Of several classes, ten nodes have unknown labels.
    """
    draw = np.random.default_rng(1)
    src, dst = draw.integers(0, N, (2, 6 * N))
    x = draw.normal(size=(N, 3)).astype(np.float32)
    sums = np.zeros((N, 3))
    np.add.at(sums, dst, x[src])
    mean = sums / np.maximum(np.bincount(dst, minlength=N), 1)[:, None]
    line = mean @ np.array([2.0, -1.0, 0.5])
    place = draw.permutation(N)
    masks = {"train": place < 50, "val": (place >= 50) & (place < 70), "test": place >= 70}
    y, classes = np.stack([line, 1000 - 300 * line], axis=1).astype(np.float32), 0
    if kind == "weighed":
        y, classes = (line > np.quantile(line, 0.8)).astype(np.int64), 2
    elif kind == "several":
        y, classes = (mean > 0).astype(np.uint8), 3
        y[place >= 80], masks["test"] = 255, masks["test"] & (place < 80)
    return graph_from_edges(src, dst, N, x=x, y=y, num_classes=classes, **masks)


def run(ranks: RankPool, folder: Path, whole: Graph, size: int, **settings) -> dict[str, Any]:
    part_of = assign_hash(whole, size, seed=0) if size > 1 else np.zeros(N, np.int32)
    parts, out = folder / f"{size}.parts", folder / f"{size}.run"
    folder.mkdir(exist_ok=True)
    write_parts(whole, part_of, parts, num_parts=size, method="hash", seed=0)
    common = {"model": "sage", "layers": 1, "dropout": 0.0, "checkpoint_every": 0, "lr": 0.05}
    return ranks.run(run_engine, size, parts, out, False, {**common, **settings})[0]


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("engine", ENGINES)
def test_three_ranks_learn_what_one_does(
    ranks: RankPool, tmp_path: Path, engine: str, kind: str
) -> None:
    whole = known_answer(kind)
    settings = {"epochs": 4, **ENGINES[engine], **TARGETS[kind]}
    one, three = (run(ranks, tmp_path, whole, size, **settings) for size in (1, 3))
    assert one["losses"] == pytest.approx(three["losses"], rel=1e-4)
    for name in ("score", "scores"):
        before, after = one["summary"].get(name), three["summary"].get(name)
        assert (before is None) == (after is None)
        for split in before or {}:
            assert before[split] == pytest.approx(after[split], rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("engine", [*ENGINES, "adaqp"])
def test_a_line_through_neighbours_is_found(ranks: RankPool, tmp_path: Path, engine: str) -> None:
    settings = ENGINES.get(engine, {"strategy": "adaqp"})
    size = 3 if engine == "adaqp" else 1
    found = run(ranks, tmp_path, known_answer("numbers"), size, epochs=150, **settings)["summary"]
    assert found["metric"] == "r2"
    assert found["score"]["test"] > 0.98
    assert found["quality"]["test"]["rmse"][1] < 60  # of a spread of some 300
