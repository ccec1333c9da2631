"""Warnings where a person would warn, each once, alike on 1 and on 3 ranks."""

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import siafu
from siafu.cli.scores import _quality
from siafu.config import make_config
from siafu.graph import Graph, IntegerIds
from siafu.launch.cut import SourceReading, cut_source
from siafu.launch.result_warnings import result_warnings
from siafu.launch.warnings import (
    LossWatch,
    PaceWatch,
    class_warnings,
    count_repeated,
    data_warnings,
    lone_warnings,
    machine_warnings,
    scale_warnings,
    telling_share,
)
from siafu.partitioning import Cut

NODES = 200


def ring(**changes) -> Graph:
    """A circle with two features and two classes of equal size."""
    indptr = np.arange(NODES + 1, dtype=np.int64)
    src = np.roll(np.arange(NODES, dtype=np.int32), 1)
    x = np.random.default_rng(0).normal(size=(NODES, 2)).astype(np.float32)
    graph = Graph(
        name="ring",
        indptr=indptr,
        src=src,
        ids=IntegerIds(np.arange(NODES, dtype=np.int64)),
        x=x,
        y=np.arange(NODES, dtype=np.int64) % 2,
        num_classes=2,
        train=np.arange(NODES) < 150,
        val=np.arange(NODES) >= 150,
        test=np.arange(NODES) >= 150,
    )
    return replace(graph, **changes)


def rare(count: int) -> np.ndarray:
    return (np.arange(NODES) < count).astype(np.int64)


def scaled() -> np.ndarray:
    x = ring().x
    return x * np.array([1.0, 1e5], np.float32)


def repeated() -> dict:
    src = np.concatenate([ring().src, ring().src[:20]])
    dst = np.concatenate([np.arange(NODES), np.arange(20)])
    order = np.argsort(dst, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=NODES))])
    return {"src": src[order].astype(np.int32), "indptr": indptr.astype(np.int64)}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, []),
        ({"y": rare(0)}, ["All 150 training nodes are of one class, 0"]),
        (
            {"y": rare(4)},
            ["97.33 % of the training nodes are of class 0", "of a class: 1 (4)."],
        ),
        ({"y": rare(6)}, []),
        ({"x": scaled()}, ["column 1 goes up to"]),
        ({"x": scaled(), "feature_names": ("age", "income")}, ["income goes up to", "age to"]),
        (repeated(), ["20 of 220 edges (9.09 %) repeat another one"]),
    ],
)
def test_data_is_warned_of_alike_on_one_rank_and_three(changes, told, tmp_path):
    config, graph = make_config(data="ring"), ring(**changes)
    found = []
    for parts in (1, 3):
        reading = SourceReading(draws_masks=False)
        cut = Cut(num_parts=parts, method="hash", seed=0)
        cut_source(graph, tmp_path / str(parts), cut, reading)
        found.append(data_warnings(tmp_path / str(parts), config))
    assert found[0] == found[1]
    assert len(found[0]) >= min(1, len(told))
    for words in told:
        assert any(words in line for line in found[0]), found[0]
    if not told:
        assert found[0] == []


def test_a_class_without_any_training_node_is_named():
    told = class_warnings(np.array([50, 50, 0, 0]), np.array([60, 60, 7, 0]), list("abcd"), "node")
    assert len(told) == 1
    assert "c (0)" in told[0]
    assert "d" not in told[0].split(":")[1].split(".")[0]


def test_who_weighs_classes_is_not_told_to():
    counts = np.array([99, 1]), np.array([99, 1]), ["a", "b"], "edge"
    (plain, few), (weighed, _) = class_warnings(*counts), class_warnings(*counts, is_weighed=True)
    assert "--class-weights" in plain
    assert "--class-weights" not in weighed
    assert "training edges of a class: b (1)" in few


def test_edges_are_warned_of_where_they_are_learnt(tmp_path):
    classes = {"edge_y": rare(3), "num_edge_classes": 2, "edge_class_names": ("ok", "fraud")}
    graph = ring(**classes, edge_split=np.where(np.arange(NODES) < 150, 1, 3).astype(np.uint8))
    cut_source(graph, tmp_path / "p", Cut(num_parts=3, method="hash", seed=0))
    told = data_warnings(tmp_path / "p", make_config(data="ring", task="edge"))
    assert len(told) == 2
    assert "98.00 % of the training edges are of class ok" in told[0]
    assert "fraud (3)" in told[1]


def test_weights_that_a_model_does_not_read_are_told(tmp_path):
    cut_source(
        ring(edge_weight=np.linspace(1, 2, NODES, dtype=np.float32)),
        tmp_path / "p",
        Cut(num_parts=3, method="hash", seed=0),
    )

    def told(**settings):
        return data_warnings(tmp_path / "p", make_config(data="ring", **settings))

    for model in ("gat", "gatv2", "transformer", "sage-max", "rgcn", "typed-gat"):
        (line,) = told(model=model)
        assert line == f"--model {model} does not read weights of edges (gcn, sage, gin do)."
    for model in ("gcn", "sage", "gin"):
        assert told(model=model) == []
    drawn = {"sample_weighted": True, "sample_replace": True, "strategy": "batchgnn"}
    assert told(model="gat", fanout="5,5", **drawn) == []


def test_columns_of_zeros_and_of_one_scale_are_fine():
    assert scale_warnings(np.array([0.0, 1.0, 900.0]), []) == []
    assert scale_warnings(np.array([0.0, 1.0, 1100.0]), []) != []
    assert scale_warnings(np.zeros(3), []) == []


def test_edges_of_another_type_are_no_repetition():
    indptr, src = np.array([0, 3, 3, 5]), np.array([1, 1, 1, 0, 0])
    assert count_repeated(indptr, src) == 3
    types = np.array([0, 1, 0, 2, 2], np.uint8)
    assert count_repeated(indptr, src, types) == 2
    amounts = np.array([[1.0, 5.0], [1.0, 5.0], [1.0, 5.0], [1.0, 2.0], [1.0, 3.0]])
    assert count_repeated(indptr, src, types, amounts) == 1


def test_more_ranks_than_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    assert machine_warnings(make_config(data="planted", ranks=2)) == []
    (told,) = machine_warnings(make_config(data="planted", ranks=3))
    assert told.startswith("3 ranks share 2 cores")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert machine_warnings(make_config(data="planted", ranks=8)) == [], "on four machines"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"staleness": 1}, "--staleness changes nothing"),
        ({"wire": "2", "changes": True}, "--wire and --changes change nothing"),
        ({"strategy": "dorylus", "staleness": 1}, None),
        ({"wire": "2", "ranks": 2}, None),
        ({}, None),
    ],
)
def test_one_rank_is_told_what_is_about_others(settings, told) -> None:
    config = make_config(data="planted", **{"ranks": 1, "strategy": "halo", **settings})
    found = lone_warnings(config)
    assert len(found) == (told is not None)
    assert told is None or told in found[0]
    lags = settings.get("strategy") == "dorylus" or "ranks" in settings
    assert config.resolved().eval_every == (10 if lags else 1)


def test_a_loss_that_begins_too_high_or_explodes_is_told_once():
    watch = LossWatch(0.01, math.log(2))
    assert "guessing gives 0.69" in watch.note(1, 10302.0)
    assert watch.note(2, 9000.0) is None
    assert watch.note(3, 0.6) is None
    assert "from 0.6 to 3e+19 by epoch 4" in watch.note(4, 3e19)
    assert watch.note(5, 1e25) is None


def test_a_loss_near_zero_may_rise_a_little():
    watch = LossWatch(0.01, math.log(2))
    told = [watch.note(epoch, loss) for epoch, loss in enumerate((0.7, 1e-6, 1e-3, 0.5), 1)]
    assert told == [None] * 4


def test_a_rank_that_the_others_wait_for_is_named_once() -> None:
    watch = PaceWatch(lambda rank: f"rank {rank} on host-{rank}")
    told = [watch.note(seconds) for seconds in [[], [1.0, 9.0, 1.0], *[[1.0, 1.1, 2.5]] * 8]]
    assert [line is not None for line in told] == [False] * 6 + [True] + [False] * 3
    assert str(told[6]).startswith("Rank 2 on host-2 works 2.5 s per epoch, the others 1.1 s")


@pytest.mark.parametrize(
    "rows",
    [
        [[1.0]] * 9,  # alone
        [[1.0, 1.4, 1.0]] * 9,  # not so much longer
        [[0.01, 0.09, 0.01]] * 9,  # too short to matter
        [[1.0, 2.0, 1.0], [2.0, 1.0, 1.0]] * 5,  # in turns, as on a busy machine
        [[0.0, 0.0]] * 9,
    ],
)
def test_ranks_that_keep_pace_are_not_told(rows: list[list[float]]) -> None:
    watch = PaceWatch(lambda rank: f"rank {rank}")
    assert [line for seconds in rows if (line := watch.note(seconds))] == []


def test_a_column_that_is_filled_for_one_class_only_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    banned = rng.random(400) < 0.2
    reason = np.where(banned, rng.choice(["spam", "abuse"], 400), None)
    nodes = pa.table({"user": np.arange(400), "age": rng.normal(size=400), "reason": reason})
    nodes = nodes.append_column("banned", pa.array(banned.astype(np.int64)))
    edges = pa.table({"src": rng.integers(0, 400, 900), "dst": rng.integers(0, 400, 900)})
    run = siafu.fit(
        nodes=nodes, edges=edges, label="banned", node_id="user", epochs=1, hidden=4, quiet=True
    )
    told = (run.path / "warnings.txt").read_text()
    assert "reason (100.00 %)" in told
    assert "--features -reason" in told
    assert "age (" not in told


def test_columns_that_tell_the_class():
    y = np.arange(2000) % 2
    noise = np.random.default_rng(0).normal(size=(2000, 1)).astype(np.float32)
    assert telling_share(noise, y) is None
    assert telling_share(noise + 100 * y[:, None], y) == 1.0
    assert telling_share(noise + y[:, None], y) is None  # it helps, as a feature should
    assert telling_share(np.arange(2000.0)[:, None], y) is None
    assert telling_share(noise[:, :0], y) is None


def test_a_run_that_learnt_nothing_is_told(tmp_path):
    path = tmp_path / "parts"
    cut = Cut(num_parts=2, method="hash", seed=0)
    cut_source(ring(y=rare(40)), path, cut, SourceReading(draws_masks=False))
    for metric, score, told in (
        ("accuracy", 0.8, "no better than always saying 0"),
        ("accuracy", 0.81, ""),
        ("average-precision", 0.2, "drawing lots"),
        ("average-precision", 0.3, ""),
    ):
        found = result_warnings(
            path, {}, {"metric": metric, "score": {"test": score}, "epochs": 10}
        )
        assert len(found) == bool(told)
        assert told in "".join(found)
    links = {"metric": "mrr", "score": {"test": 0.0}, "epochs": 10}
    assert result_warnings(path, {"task": "link"}, links) == []


def test_classes_that_are_never_predicted_are_told_once_with_a_remedy(tmp_path):
    path = tmp_path / "parts"
    cut_source(ring(), path, Cut(num_parts=2, method="hash", seed=0), SourceReading())
    confusion = [[9, 0, 1, 0], [2, 0, 0, 0], [1, 0, 5, 0], [0, 0, 0, 0]]
    quality = {"test": {"confusion": confusion}, "names": ["a", "b", "c", "d"]}
    result = {"metric": "accuracy", "score": {"test": 0.9}, "epochs": 10, "quality": quality}
    told = result_warnings(path, {}, result)
    assert told == [
        "1 of 4 classes is never predicted (b): try --class-weights balanced --metric macro-f1."
    ]
    assert result_warnings(path, {"metric": "macro-f1"}, result) == []
    assert result_warnings(path, {"class_weights": "balanced"}, result) == []
    assert _quality(quality)["never predicted"] == "1 of 4 classes: b (test)"
