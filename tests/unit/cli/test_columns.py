"""Columns of tables are named alike for every command, in files of settings and in Python."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import siafu as package
from siafu.config import make_columns, make_config
from siafu.errors import ConfigError, DataError
from siafu.launch.columns import check_columns, with_columns_of_inference
from tests.command import Command

ROOT = Path(__file__).parents[3]

NAMED = ("--node-id", "who", "--src", "a", "--dst", "b", "--label", "kind", "--features", "p,q")
SETTINGS = {"node_id": "who", "src": "a", "dst": "b", "label": "kind", "features": "p,q"}


def result_of(siafu: Command, *arguments: str) -> dict[str, Any]:
    """Return the JSON that a command ends with."""
    answer = siafu(*arguments, "--json")
    assert answer.code == 0, answer.err
    result: dict[str, Any] = json.loads(answer.out.splitlines()[-1])
    return result


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Path, Path]:
    """An edge table and a node table with names of their own."""
    rng, count = np.random.default_rng(0), 60
    nodes = {
        "who": [f"n{i}" for i in range(count)],
        "p": rng.random(count),
        "q": rng.random(count),
        "left": rng.random(count),
        "kind": rng.choice(["no", "yes"], count),
    }
    ends = rng.integers(0, count, (2, 200))
    edges = {name: [f"n{i}" for i in row] for name, row in zip("ab", ends, strict=True)}
    pq.write_table(pa.table(nodes), tmp_path / "people.parquet")
    pq.write_table(pa.table(edges), tmp_path / "calls.parquet")
    return tmp_path / "calls.parquet", tmp_path / "people.parquet"


def test_flags_file_and_python_mean_the_same(siafu: Command, tables: tuple[Path, Path]) -> None:
    edges, nodes = map(str, tables)
    store = result_of(siafu, "ingest", edges, "store", "--nodes", nodes, *NAMED)
    assert (store["features"], store["classes"]) == (2, 2)
    named = result_of(
        siafu, "train", edges, "--nodes", nodes, *NAMED, "--epochs", "1", "--seed", "3"
    )
    file = siafu.here / "run.yaml"
    file.write_text(
        yaml.safe_dump({"data": edges, "nodes": nodes, "epochs": 1, "seed": 3, **SETTINGS})
    )
    told = result_of(siafu, "train", str(file))
    assert told["score"] == named["score"]
    cut = ("partition", edges, "cut", "--parts", "1", "--nodes", nodes, *NAMED)
    assert result_of(siafu, *cut)
    other = ("--data", edges, "--nodes", "people.parquet", "--src", "a")
    again = result_of(siafu, "infer", "runs/calls-gcn-001", *other)
    assert again["rows"] == 60


def test_a_run_without_anything_to_learn_is_refused_before_rows_are_read(
    siafu: Command, tables: tuple[Path, Path]
) -> None:
    edges, nodes = map(str, tables)
    named = ("--nodes", nodes, "--node-id", "who", "--src", "a", "--dst", "b")
    answer = siafu("train", edges, *named)
    assert answer.code == 2
    assert (
        "people.parquet with who, p, q, left, kind\n  fix:  name it: --label COLUMN" in answer.err
    )
    answer = siafu("train", edges, *named, "--task", "edge")
    assert "fix:  name the column of the edges to predict: --edge-label COLUMN" in answer.err
    assert not (siafu.here / "runs").exists()


@pytest.mark.parametrize(
    "command", [["train"], ["train", "--label", "kind"], ["ingest", "a.store", "--src", "a"]]
)
def test_a_file_that_is_not_there_is_told_as_that(
    siafu: Command, tables: tuple[Path, Path], command: list[str]
) -> None:
    absent = str(tables[0].parent / "cals.parquet")
    answer = siafu(command[0], absent, *command[1:])
    assert answer.code == 2
    assert "error: No such data set, file or folder." in answer.err
    assert "fix:  did you mean 'calls.parquet'? names: " in answer.err


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_what_resuming_can_not_mend_is_not_advised(
    siafu: Command, tables: tuple[Path, Path], ranks: str
) -> None:
    edges, nodes = map(str, tables)
    weights = ("--class-weights", "1,2,3", "--ranks", ranks)
    answer = siafu("train", edges, "--nodes", nodes, *NAMED, *weights)
    assert answer.code == 2
    assert "--class-weights 1,2,3 with 2 classes" in answer.err
    assert "--resume" not in answer.err
    assert "To use its data with other settings: siafu train runs/" in answer.err


def test_python_names_columns_too(tables: tuple[Path, Path], tmp_path: Path) -> None:
    edges, nodes = tables
    settings = {**SETTINGS, "features": ["p", "q"], "nodes": nodes}
    parts = package.partition(edges, tmp_path / "parts", parts=1, **settings)
    assert parts.facts["graph"]["feature_names"] == ["p", "q"]
    run = package.fit(edges, epochs=1, out=str(tmp_path / "run"), **settings)
    table = package.infer(run, edges, nodes=nodes)
    assert table.num_rows == 60


def test_columns_of_no_table_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="label='y' with planted"):
        package.fit("planted", label="y", out=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match="did you mean 'label'"):
        package.partition("planted", tmp_path / "parts", labels="y")
    with pytest.raises(DataError, match=r"No such data set, file or folder\.\n  seen: missing.csv"):
        check_columns("missing.csv", make_columns(src="a"))


def test_nodes_of_the_training_are_not_those_of_other_edges(tables: tuple[Path, Path]) -> None:
    edges, nodes = tables
    config = make_config(data=str(edges), nodes=str(nodes), src="a")
    other = with_columns_of_inference(config, edges, {"dst": "c"})
    assert (other.nodes, other.src, other.dst) == (None, "a", "c")
    assert with_columns_of_inference(config, None, {}) is config
    with pytest.raises(ConfigError, match="own graph"):
        with_columns_of_inference(config, None, {"dst": "c"})


def test_edges_with_times_are_a_graph_for_a_static_model(siafu: Command) -> None:
    rows = "\n".join(f"{i},{(i * 7) % 30},2024-01-{1 + i % 28:02d}" for i in range(30))
    (siafu.here / "calls.csv").write_text(f"src,dst,date\n{rows}\n")
    ids = "\n".join(f"{i},{i % 3},{i / 7},{i % 2}" for i in range(30))
    (siafu.here / "people.csv").write_text(f"id,p,q,label\n{ids}\n")
    shown = siafu("train", "calls.csv", "--nodes", "people.csv", "--epochs", "1")
    assert shown.code == 0
    assert "Times of edges tell no order to --model gcn" in shown.err + shown.out


def test_messy_tables_need_no_flags_but_what_to_predict(siafu: Command) -> None:
    script = ROOT / "examples" / "fraud" / "make_data.py"
    sizes = ["--customers", "600", "--transactions", "4000"]
    subprocess.run([sys.executable, script, "data", *sizes], cwd=siafu.here, check=True)
    named = ("data/transactions.csv", "--nodes", "data/customers.csv", "--label", "is_fraud")
    store = result_of(siafu, "ingest", named[0], "store", *named[1:])
    assert (store["features"], store["classes"]) == (6, 2)
    trained = siafu("train", *named, "--epochs", "2", "--out", "run")
    assert trained.code == 0, trained.err
    assert "joined    date      feature" in trained.err
    new = ("--data", "data/new/transactions.csv", "--nodes", "data/new/customers.csv")
    assert result_of(siafu, "infer", "run", *new, "--out", "new")["rows"] == 600
    ids = pq.read_table(siafu.here / "new").column("id").to_pylist()
    assert "0000007" in ids


def test_a_plan_and_what_is_told_go_by_the_schema(siafu: Command) -> None:
    rng = np.random.default_rng(0)
    nodes = {"id": np.arange(90), "year": rng.integers(1990, 2000, 90), "label": rng.choice(2, 90)}
    ends = rng.integers(0, 90, (2, 300))
    pq.write_table(pa.table(nodes), siafu.here / "nodes.parquet")
    pq.write_table(pa.table({"src": ends[0], "dst": ends[1]}), siafu.here / "edges.parquet")
    (siafu.here / "schema.yaml").write_text("nodes: {year: {kind: category}}\n")
    table = ("edges.parquet", "--nodes", "nodes.parquet", "--label", "label")
    plain, said = (
        result_of(siafu, "plan", *table, "--ranks", "1", *more)["graph"]["features"]
        for more in ((), ("--schema", "schema.yaml"))
    )
    run = siafu("train", *table, "--schema", "schema.yaml", "--epochs", "1", "--out", "run")
    assert (plain, said) == (1, 10)
    assert "As --schema has it: year (category, not number)." in run.err
    assert "1 become 10 features" in run.err
    again = siafu("infer", "run", "--data", *table[:3], "--out", "answers")
    assert "As the run's schema has it: year (category, not number)." in again.err
    refused = siafu("plan", "products", "--schema", "schema.yaml")
    assert refused.code == 2
    assert "none are read" in refused.err


def test_a_folder_may_call_its_two_tables_anything(siafu: Command, tables: object) -> None:
    store = result_of(siafu, "ingest", ".", "store", "--src", "a", "--dst", "b", "--label", "kind")
    assert (store["nodes"], store["features"]) == (60, 3)


@pytest.mark.parametrize(
    "named", [("label", "kind", "features", "p,kind"), ("edge_label", "w", "edge_attr", "w")]
)
def test_a_target_is_no_feature(
    siafu: Command, tables: tuple[Path, Path], named: tuple[str, str, str, str]
) -> None:
    edges, nodes = map(str, tables)
    label, target, group, features = named
    flags = (f"--{label.replace('_', '-')}", target, f"--{group.replace('_', '-')}", features)
    for command in (["train", edges], ["ingest", edges, "store"]):
        answer = siafu(*command, "--nodes", nodes, *flags)
        assert answer.code != 0
        assert "A column to predict is among the features" in answer.err
        assert f"leave {target!r} out of {group}" in " ".join(answer.err.split())
    file = siafu.here / "run.yaml"
    file.write_text(yaml.safe_dump({"data": edges, "nodes": nodes, label: target, group: features}))
    assert "is among the features" in siafu("train", str(file)).err
    assert not (siafu.here / "runs").exists()
    asked: dict[str, Any] = {"nodes": nodes, label: target, group: features.split(",")}
    with pytest.raises(ConfigError, match="is among the features"):
        package.fit(edges, **asked)


def test_a_table_whose_only_feature_is_constant_trains(siafu: Command) -> None:
    people = "".join(f"{k},1,{k % 2}\n" for k in range(30))
    (siafu.here / "people.csv").write_text("id,one,label\n" + people)
    (siafu.here / "calls.csv").write_text(
        "src,dst\n" + "".join(f"{k},{k // 2}\n" for k in range(30))
    )
    answer = siafu("train", "calls.csv", "--nodes", "people.csv", "--epochs", "1")
    assert answer.code == 0, answer.err
    assert "Constant, and kept as ones since nothing else is there: one." in answer.err


@pytest.mark.parametrize("flags", [NAMED, ()])
def test_swapped_tables_are_told_first(
    siafu: Command, tables: tuple[Path, Path], flags: tuple[str, ...]
) -> None:
    edges, nodes = map(str, tables)
    if not flags:
        people = "".join(f"{k},1{k},{k % 2}\n" for k in range(30))
        (siafu.here / "people.csv").write_text("id,age,label\n" + people)
        (siafu.here / "calls.csv").write_text("src,dst\n1,2\n1,3\n2,3\n")
        edges, nodes = "calls.csv", "people.csv"
    answer = siafu("ingest", nodes, "store", "--nodes", edges, *flags)
    told = " ".join(answer.err.split())
    assert answer.code != 0
    assert "1. The two tables seem to be swapped." in told
    assert f"--nodes {nodes}" in told


def test_columns_of_a_store_are_left_out_as_the_refusal_says(siafu: Command) -> None:
    rows = "\n".join(f"{k},{k % 7},{k % 5},{k % 2}" for k in range(60))
    (siafu.here / "nodes.csv").write_text(f"id,age,pay,label\n{rows}\n")
    ends = "\n".join(f"{k},{(k + 1) % 60}" for k in range(60))
    (siafu.here / "edges.csv").write_text(f"src,dst\n{ends}\n")
    assert siafu("ingest", "edges.csv", "a.store", "--nodes", "nodes.csv").code == 0
    answer = siafu("train", "a.store", "--features", "-age")
    assert answer.code == 2
    found = re.search("--schema '(.*)'", answer.err.replace("\n", " "))
    assert found is not None
    settings = ("--epochs", 1, "--hidden", 4, "--out", "run")
    assert siafu("train", "a.store", "--schema", found[1], *settings).code == 0
    assert (siafu.here / "run" / "schema.yaml").read_text().count("use: false") == 1
