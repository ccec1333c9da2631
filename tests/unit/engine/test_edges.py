"""Classes and numbers of edges, told from both ends and the edge's own features."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import siafu
from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin, load_network
from siafu.engine.pairs import write_pairs
from siafu.errors import ConfigError, DataError
from siafu.graph import Graph, TextIds, graph_from_edges
from siafu.launch.checks import check_run
from siafu.nn import Draws
from siafu.partitioning import assign_hash, open_parts, with_edge_split, write_parts
from siafu.record import RunFolder
from siafu.shard import open_shard
from tests.harness import RankPool

N, E = 40, 400


def known_answer(kind: str, **columns) -> Graph:
    """Return a graph whose edges' targets are of their ends' features and their own."""
    draw = np.random.default_rng(2)
    src, dst = draw.integers(0, N, (2, E))
    x, attr = draw.normal(size=(N, 2)), draw.normal(size=(E, 1))
    line = x[src, 0] - x[dst, 1] + 2 * attr[:, 0]
    targets: dict[str, Any] = {
        "edge_y": (line > 0).astype(np.int64),
        "num_edge_classes": 2,
        "edge_class_names": ("ok", "odd"),
    }
    if kind == "numbers":
        targets = {"edge_y": (500 + 90 * line[:, None]).astype(np.float32)}
        targets["edge_target_names"] = ("fee",)
    return graph_from_edges(
        src,
        dst,
        N,
        x=x.astype(np.float32),
        ids=TextIds.from_strings([f"n{k:03}" for k in range(N)]),
        **{"edge_attr": attr.astype(np.float32), **targets, **columns},
    )


def trained(
    world: World, parts: Path, folder: Path, settings: dict[str, Any]
) -> tuple[list[float], dict[str, Any]]:
    common = {"model": "sage", "layers": 1, "dropout": 0.0, "lr": 0.03, "task": "edge"}
    config = make_config(data="x", **{**common, **settings}).resolved()
    run = RunFolder(folder)
    if world.rank == 0:
        folder.mkdir(exist_ok=True)
    trainer = begin(config, open_shard(parts, world), parts=lambda: open_parts(parts))
    result = trainer.train(run, lambda row: None).to_json()
    trainer.workload.write_predictions(folder / "predictions")
    trainer.close()
    return result["losses"], result


def run(ranks: RankPool, folder: Path, whole: Graph, size: int, **settings) -> tuple[Any, Any]:
    part_of = assign_hash(whole, size, seed=0) if size > 1 else np.zeros(N, np.int32)
    parts = folder / f"{size}.parts"
    write_parts(whole, part_of, parts, num_parts=size, method="hash", seed=0)
    return ranks.run(trained, size, parts, folder / f"{size}.run", settings)[0]


@pytest.mark.parametrize("strategy", ["halo", "sar"])
@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_three_ranks_learn_what_one_does(
    ranks: RankPool, tmp_path: Path, kind: str, strategy: str
) -> None:
    whole = known_answer(kind)
    (one, first), (three, second) = (
        run(ranks, tmp_path, whole, size, epochs=4, strategy=strategy) for size in (1, 3)
    )
    assert one == pytest.approx(three, rel=1e-4)
    assert first["score"] == pytest.approx(second["score"], rel=1e-3)
    tables = [pq.read_table(tmp_path / f"{size}.run/predictions").to_pylist() for size in (1, 3)]
    told = "prediction" if kind == "numbers" else "p(odd)"
    by_edge = [
        sorted((row["src"], row["dst"], row["label"], row["split"], row[told]) for row in table)
        for table in tables
    ]
    assert len(by_edge[0]) == E
    for before, after in zip(*by_edge, strict=True):
        assert before[:4] == after[:4]
        assert before[4] == pytest.approx(after[4], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_what_ends_and_edge_tell_is_found(ranks: RankPool, tmp_path: Path, kind: str) -> None:
    _, result = run(ranks, tmp_path, known_answer(kind), 1, epochs=150)
    if kind == "classes":
        assert result["score"]["test"] > 0.9
    else:
        assert result["metric"] == "rmse"
        assert result["scores"]["test"]["r2"] > 0.9


def test_splits_of_the_data_are_kept(ranks: RankPool, tmp_path: Path) -> None:
    split = (np.arange(E) % 4).astype(np.uint8)
    run(ranks, tmp_path, known_answer("classes", edge_split=split), 1, epochs=1)
    table = pq.read_table(tmp_path / "1.run/predictions").to_pylist()
    counts = [sum(row["split"] == name for row in table) for name in ("", "train", "val", "test")]
    assert counts == [E // 4] * 4


def test_a_run_about_edges_predicts_those_of_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = siafu.fit(known_answer("classes"), task="edge", model="sage", epochs=3, out="run")
    own = pq.read_table(done.path / "predictions")
    found = siafu.infer("run", data=known_answer("classes"), out="again")
    assert found.column("p(odd)").equals(own.column("p(odd)"))
    assert {"src", "dst", "prediction", "label", "p(ok)", "p(odd)"} <= set(found.column_names)
    assert done.embeddings.num_rows == N
    with pytest.raises(ConfigError, match="no module of nodes alone"):
        done.model()
    with pytest.raises(ConfigError, match="Pairs have scores"):
        siafu.infer("run", pairs={"src": ["n001"], "dst": ["n002"]}, embeddings=True)


@pytest.mark.parametrize("count", [1, 3])
def test_copies_of_an_edge_are_told_in_the_order_of_the_table(
    tmp_path: Path, runs_on_pool: None, count: int
) -> None:
    draw = np.random.default_rng(0)
    src, dst = draw.integers(0, 8, (2, 300))
    row = np.arange(300) + 0.5
    run = siafu.fit(
        nodes=pa.table({"id": np.arange(8), "x": draw.normal(size=8)}),
        edges=pa.table({"src": src, "dst": dst, "row": row}),
        edge_label="row",
        task="edge",
        ranks=count,
        epochs=1,
        out=str(tmp_path / "run"),
    )
    found: dict[tuple[int, int], list[float]] = {}
    for told in pq.read_table(run.path / "predictions").to_pylist():
        found.setdefault((told["src"], told["dst"]), []).append(told["label"])
    assert sum(len(rows) for rows in found.values()) == 300
    assert all(rows == sorted(rows) for rows in found.values())


def test_what_cannot_be_done_is_refused_by_name(tmp_path: Path) -> None:
    for strategy in ("batchgnn", "dorylus"):
        with pytest.raises(ConfigError, match="learnt on the whole graph") as caught:
            check_run("planted", make_config(data="planted", task="edge", strategy=strategy))
        assert strategy in caught.value.seen
    bare = known_answer("classes", edge_y=None, num_edge_classes=0, edge_class_names=())
    write_parts(bare, np.zeros(N, np.int32), tmp_path / "p", num_parts=1, method="hash", seed=0)
    config = make_config(data="x", task="edge").resolved()
    with pytest.raises(DataError, match="edges have no targets"):
        begin(config, open_shard(tmp_path / "p", World()))


def test_own_pairs_are_scored_as_the_edges_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = known_answer("classes", edge_attr=None)
    done = siafu.fit(whole, task="edge", model="sage", epochs=3, out="run")
    own = pq.read_table(done.path / "predictions").to_pylist()
    Path("pairs.csv").write_text(
        "\n".join(["src,dst", *(f"{row['src']},{row['dst']}" for row in own[:50])])
    )
    found = siafu.infer("run", pairs="pairs.csv").to_pylist()
    assert len(found) == 50
    by_ends = {(row["src"], row["dst"]): row["p(odd)"] for row in own}
    for row in found:
        want = by_ends[row["src"], row["dst"]]
        assert row["score"] in (pytest.approx(want, abs=1e-6), pytest.approx(1 - want, abs=1e-6))
        assert row["p(odd)"] == pytest.approx(want, abs=1e-6)
    Path("pairs.csv").write_text("src,dst\nn001,n002\nn001,nobody\n")
    with pytest.raises(DataError, match="not in the graph") as caught:
        siafu.infer("run", pairs="pairs.csv")
    assert "more there" not in str(caught.value)
    assert "nobody" in caught.value.seen


def _in_order(rows: list[dict]) -> tuple[list[tuple[str, str]], list[float]]:
    told = sorted((row["src"], row["dst"], row["p(1)"]) for row in rows)
    return [row[:2] for row in told], [row[2] for row in told]


@pytest.mark.parametrize("count", [1, 3])
def test_pairs_with_features_are_scored_as_the_edges_they_are(
    tmp_path: Path, runs_on_pool: None, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(1)
    src, dst = draw.integers(0, 40, (2, 300))
    orders = pa.table(
        {
            "src": [f"{k:03d}" for k in src],
            "dst": [f"{k:03d}" for k in dst],
            "amount": [None if k % 7 == 0 else float(k) for k in range(300)],
            "currency": draw.choice(["EUR", "USD", "CHF"], 300),
            "disputed": draw.integers(0, 2, 300),
        }
    )
    nodes = pa.table({"id": [f"{k:03d}" for k in range(40)], "x": draw.normal(size=40)})
    settings = {"task": "edge", "edge_label": "disputed", "epochs": 3, "ranks": count}
    run = siafu.fit(nodes=nodes, edges=orders, model="sage", out="run", quiet=True, **settings)
    own = pq.read_table(run.path / "predictions").to_pylist()
    asked = orders.select(["currency", "dst", "amount", "src"])
    found = siafu.infer("run", pairs=asked, quiet=True).to_pylist()
    rows = orders.take([row["row"] for row in own]).to_pylist()
    assert [row["row"] for row in sorted(own, key=lambda one: one["row"])] == list(range(300))
    for row, order in zip(own, rows, strict=True):
        assert (row["src"], row["dst"]) == (order["src"], order["dst"])
        assert row["label"] == order["disputed"]
    few = orders.drop_columns("disputed").slice(100, 50)
    other = siafu.infer("run", nodes=nodes, edges=few, quiet=True).sort_by("row")
    assert other.column("row").to_pylist() == list(range(50))
    assert other.column("src").to_pylist() == few.column("src").to_pylist()
    (ends, shares), (own_ends, own_shares) = (_in_order(rows) for rows in (found, own))
    assert ends == own_ends
    assert shares == pytest.approx(own_shares, abs=1e-6)
    with pytest.raises(DataError, match="amount"):
        siafu.infer("run", pairs=asked.drop_columns("amount"), quiet=True)


def scored(world: World, parts: Path, pairs: Path, folder: Path, weights: Path) -> None:
    config = make_config(data="x", task="link", strategy="batchgnn", model="sage").resolved()
    draws = Draws(seed=0, training=False)
    shard = open_shard(parts, world)
    network, shard = load_network(config, shard, draws, weights)
    write_pairs(network, shard, draws, open_parts(parts).ids, pairs, folder)
    network.close()


def test_pairs_of_a_link_run_have_the_same_scores_on_three_ranks(
    ranks: RankPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = known_answer("classes")
    settings = {"task": "link", "strategy": "batchgnn", "model": "sage", "epochs": 1}
    done = siafu.fit(whole, out="run", **settings)
    pairs = np.random.default_rng(0).integers(0, N, (30, 2))
    np.save("pairs.npy", pairs)
    tables = []
    for size in (1, 3):
        part_of = assign_hash(whole, size, seed=0) if size > 1 else np.zeros(N, np.int32)
        parts = tmp_path / f"{size}.parts"
        write_parts(whole, part_of, parts, num_parts=size, method="hash", seed=0)
        arguments = (parts, tmp_path / "pairs.npy", tmp_path / f"{size}.scores")
        ranks.run(scored, size, *arguments, RunFolder(done.path.absolute()).weights)
        table = pq.read_table(tmp_path / f"{size}.scores").to_pylist()
        tables.append(sorted((row["src"], row["dst"], row["score"]) for row in table))
    assert len(tables[0]) == 30
    for one, three in zip(*tables, strict=True):
        assert one[:2] == three[:2]
        assert one[2] == pytest.approx(three[2], rel=1e-4, abs=1e-6)


def test_the_split_of_a_cut_is_that_which_ranks_would_draw(
    ranks: RankPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = known_answer("classes")
    cut, notes = with_edge_split(whole, None, 0, tmp_path / "split.npy")
    assert notes[0].startswith("No split of edges in the data: drew ")
    run(ranks, tmp_path, whole, 1, epochs=1)
    drawn = pq.read_table(tmp_path / "1.run/predictions").column("split").to_pylist()
    assert [("", "train", "val", "test")[side] for side in cut.edge_split] == drawn
    done = siafu.fit(whole, task="edge", model="sage", epochs=1, out="fit")
    assert pq.read_table(done.path / "predictions").column("split").to_pylist() == drawn
