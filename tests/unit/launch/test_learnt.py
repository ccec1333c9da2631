"""Columns of tables are prepared when a graph is cut, and likewise for whatever a run predicts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

import siafu
from siafu.errors import ConfigError, DataError, SiafuError, StoreError
from siafu.graph import FeatureColumn, Graph, Schema, graph_from_edges, save_store
from siafu.launch.learnt import learnt_schema
from siafu.partitioning import open_parts
from siafu.partitioning import write as writing_parts
from siafu.record import RunFolder
from tests.command import Command

COLUMNS = (
    FeatureColumn(name="age"),
    FeatureColumn(name="plan", kind="category", categories=("basic", "gold", "silver")),
    FeatureColumn(name="since", kind="date"),
    FeatureColumn(name="same"),
)
NODES = 60


def customers(seed: int = 0) -> Graph:
    """Return a graph of tables: gaps, categories, dates, a column that says nothing."""
    draw = np.random.default_rng(seed)
    y = draw.integers(0, 2, NODES)
    x = np.stack(
        [
            1000 + 50 * y + draw.normal(0, 20, NODES),
            (y + (draw.random(NODES) < 0.2)) % 3,
            draw.integers(18_000, 19_000, NODES),
            np.full(NODES, 7),
        ],
        axis=1,
    ).astype(np.float32)
    x[draw.random(NODES) < 0.2, 0] = np.nan
    x[draw.random(NODES) < 0.2, 1] = np.nan
    place = draw.permutation(NODES)
    attr = draw.normal(5000, 900, (4 * NODES, 1)).astype(np.float32)
    attr[::9] = np.nan
    src, dst = draw.integers(0, NODES, (2, 4 * NODES))
    return graph_from_edges(
        src,
        dst,
        NODES,
        name="customers",
        x=x,
        y=y,
        num_classes=2,
        train=place < 30,
        val=(place >= 30) & (place < 40),
        test=place >= 40,
        edge_attr=attr,
        feature_names=tuple(column.name for column in COLUMNS),
        edge_attr_names=("amount",),
        schema=Schema(nodes=COLUMNS, edges=(FeatureColumn(name="amount"),)),
    )


def turned(graph: Graph) -> Graph:
    """Return the same customers from a table with its columns, and categories, in another order."""
    assert graph.schema is not None
    order = [2, 3, 1, 0]
    x = np.array(graph.x)[:, order]
    x[:, 2] = np.array([2, 1, 0, np.nan])[np.where(np.isnan(x[:, 2]), 3, x[:, 2]).astype(int)]
    columns = [COLUMNS[k] for k in order]
    columns[2] = columns[2].model_copy(update={"categories": ("silver", "gold", "basic")})
    return with_columns(graph, x, columns)


def with_columns(graph: Graph, x: np.ndarray[Any, Any], columns: list[FeatureColumn]) -> Graph:
    assert graph.schema is not None
    schema = graph.schema.model_copy(update={"nodes": tuple(columns)})
    names = tuple(column.name for column in columns)
    return replace(graph, x=x, feature_names=names, schema=schema)


def trained(path: Path, data: Any = None, **settings: Any) -> siafu.Run:
    settings = {"epochs": 3, "model": "gatv2", "edge_features": True, "hidden": 8} | settings
    return siafu.fit(customers() if data is None else data, out=str(path), **settings)


def losses(run: siafu.Run) -> list[float]:
    return [row["loss"] for row in RunFolder(run.path).read_metrics()]


def test_three_ranks_see_the_columns_that_one_does(tmp_path: Path, runs_on_pool: None) -> None:
    one, three = trained(tmp_path / "one"), trained(tmp_path / "three", ranks=3)
    assert losses(one) == pytest.approx(losses(three), rel=1e-4)
    schemas = [learnt_schema(RunFolder(run.path)) for run in (one, three)]
    assert schemas[0] == schemas[1]
    assert schemas[0].is_fitted
    facts = open_parts(one.path / "data.parts").facts["graph"]
    assert facts["feature_names"] == [
        *("age", "age is missing"),
        *("plan=basic", "plan=gold", "plan=silver", "plan is missing"),
        "since",
    ]
    assert facts["edge_attr_names"] == ["amount", "amount is missing"]


@pytest.mark.parametrize("count", [1, 3])
def test_other_data_is_prepared_by_name(tmp_path: Path, runs_on_pool: None, count: int) -> None:
    run, graph = trained(tmp_path / "run", ranks=count), customers()
    own = siafu.infer(run).sort_by("id").drop_columns("split")
    for other in (graph, turned(graph), with_extra(graph)):
        unsplit = replace(other, train=None, val=None, test=None)
        predicted = siafu.infer(run, unsplit).sort_by("id")
        assert predicted.column("prediction") == own.column("prediction")
        assert "split" not in predicted.column_names
    few = replace(turned(graph), x=np.full((NODES, 4), np.nan, np.float32))
    assert len(siafu.infer(run, few)) == NODES, "gaps are filled from training"


def with_extra(graph: Graph) -> Graph:
    new = FeatureColumn(name="new", kind="category", categories=("a", "b"))
    x = np.concatenate([np.zeros((NODES, 1), np.float32), np.asarray(graph.x)], axis=1)
    return with_columns(graph, x, [new, *COLUMNS])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({0: {"name": "Age"}}, "(?s)no 'age'.*did you mean 'Age'"),
        ({1: {"name": "tariff"}, 2: {"name": "when"}}, "no 'plan', 'since'"),
        ({0: {"kind": "category", "categories": ("x",)}}, "'age' holds text, in training.*numbers"),
        ({1: {"kind": "number", "categories": ()}}, "'plan' holds numbers, in training.*text"),
        ({2: {"kind": "number"}}, "'since' holds numbers, in training.*dates"),
    ],
)
def test_other_columns_are_refused_by_name(
    finished: siafu.Run, changes: dict[int, dict[str, Any]], told: str
) -> None:
    graph = customers()
    columns = [column.model_copy(update=changes.get(k, {})) for k, column in enumerate(COLUMNS)]
    with pytest.raises(DataError, match=told):
        siafu.infer(finished, with_columns(graph, np.asarray(graph.x), columns))


def test_a_missing_column_is_looked_for_in_its_own_table(finished: siafu.Run) -> None:
    graph, (_, *columns) = customers(), COLUMNS
    other = with_columns(graph, np.asarray(graph.x)[:, 1:], columns)
    unused = {"unused": {"note": "free text"}, "edge_unused": {"ago": "free text"}}
    other = replace(other, schema=other.schema and other.schema.model_copy(update=unused))
    with pytest.raises(DataError, match=r"no 'age' in the node table.*'note'") as told:
        siafu.infer(finished, other)
    assert "'ago'" not in str(told.value)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> siafu.Run:
    """A run on one rank."""
    return trained(tmp_path_factory.mktemp("runs") / "run")


def test_a_column_that_says_nothing_may_be_missing(finished: siafu.Run) -> None:
    graph = customers()
    less = with_columns(graph, np.asarray(graph.x)[:, :3], list(COLUMNS[:3]))
    assert len(siafu.infer(finished, less)) == NODES


def test_what_is_unlike_training_is_told(finished: siafu.Run, siafu_command: Command) -> None:
    graph = with_extra(customers())
    assert graph.schema is not None
    x = np.array(graph.x)
    x[:5, 2] = 3
    more = COLUMNS[1].model_copy(update={"categories": ("basic", "gold", "silver", "lead")})
    columns = [graph.schema.nodes[0], COLUMNS[0], more, *COLUMNS[2:]]
    save_store(with_columns(graph, x, columns), siafu_command.here / "new.store")
    answer = siafu_command("infer", finished.path, "--data", "new.store")
    assert answer.code == 0, answer.err
    said = " ".join((answer.out + answer.err).split())
    assert "that the model does not know are left out: 'new'" in said
    assert "Column 'plan': 5 rows with a category that training never saw" in said


@pytest.fixture
def siafu_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """The command line in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return Command(tmp_path, monkeypatch, capsys)


def test_edges_need_the_columns_that_a_model_reads_alone(
    tmp_path: Path, finished: siafu.Run
) -> None:
    graph = customers()
    assert graph.schema is not None
    less = replace(graph, edge_attr=None, edge_attr_names=())
    less = replace(less, schema=graph.schema.model_copy(update={"edges": ()}))
    with pytest.raises(DataError, match="no 'amount'"):
        siafu.infer(finished, less)
    run = trained(tmp_path / "run", model="gcn", edge_features=False)
    assert len(siafu.infer(run, less)) == NODES


def test_weights_of_edges_are_as_in_training(tmp_path: Path, finished: siafu.Run) -> None:
    graph = customers()
    weights = np.random.default_rng(1).random(graph.num_edges, dtype=np.float32)
    weighted = replace(graph, edge_weight=weights)
    run = trained(tmp_path / "run", weighted, model="gcn", edge_features=False)
    with pytest.raises(DataError, match="had weights"):
        siafu.infer(run, graph)
    own, other = siafu.infer(finished), siafu.infer(finished, weighted)
    assert other.column("confidence") == own.column("confidence"), "left out"
    unread = trained(tmp_path / "gat", weighted, model="gat", edge_features=False)
    assert siafu.infer(unread, graph).equals(siafu.infer(unread, weighted)), "gat reads none"


def test_the_unit_of_weights_makes_no_difference(tmp_path: Path) -> None:
    graph = customers()
    weights = np.random.default_rng(1).integers(1, 9, graph.num_edges).astype(np.float32)
    found = []
    for unit, ranks in ((1, 1), (1024, 3)):
        weighted = replace(graph, edge_weight=weights * unit)
        settings = {"model": "sage", "edge_features": False, "ranks": ranks}
        run = trained(tmp_path / str(unit), weighted, **settings)
        # Other data is divided by the mean of the training, not by its own.
        for other in (weighted, replace(graph, edge_weight=weights * unit * 2)):
            table = siafu.infer(run, other).sort_by("id")
            found.append(table.column("confidence").to_numpy())
    own, twice = found[:2]
    assert not np.allclose(own, twice, atol=1e-3)
    np.testing.assert_allclose(found[2:], [own, twice], atol=2e-4)


def test_reverse_edges_are_added_as_in_training(tmp_path: Path, siafu_command: Command) -> None:
    (tmp_path / "people.csv").write_text(
        "\n".join(["id,age,label", *(f"{k},{k * 7 % 13},{k % 2}" for k in range(30))])
    )
    (tmp_path / "calls.csv").write_text(
        "\n".join(["src,dst", *(f"{k},{(k * 3 + 1) % 30}" for k in range(30))])
    )
    siafu.partition("calls.csv", "parts", parts=1, nodes="people.csv", undirected=True)
    run = siafu.fit("parts", model="sage", epochs=2, out=str(tmp_path / "run"))
    own = siafu.infer(run).sort_by("id").column("confidence").to_numpy()
    told = siafu_command("infer", run.path, "--data", "calls.csv", "--nodes", "people.csv")
    assert "Reverse edges are added" in told.out + told.err
    other = siafu.infer(run, "calls.csv", nodes="people.csv").sort_by("id")
    np.testing.assert_allclose(other.column("confidence").to_numpy(), own, rtol=1e-5)


@pytest.mark.parametrize("text", ["nodes: 3", "nodes: {age: {}}", "- 1", "nodes: {age: {a: 1}}"])
def test_a_damaged_schema_of_a_run_is_told(tmp_path: Path, text: str) -> None:
    folder = RunFolder(tmp_path)
    folder.schema.write_text(text)
    with pytest.raises(StoreError, match=r"schema\.yaml"):
        learnt_schema(folder)


def test_data_without_names_is_refused(finished: siafu.Run) -> None:
    graph = customers()
    x = np.nan_to_num(np.asarray(graph.x))
    bare = replace(graph, x=x, schema=None, feature_names=(), edge_attr_names=())
    with pytest.raises(DataError, match="no names"):
        siafu.infer(finished, bare)


def test_parts_cut_by_themselves_have_statistics_of_their_own(
    tmp_path: Path, finished: siafu.Run
) -> None:
    siafu.partition(customers(), tmp_path / "own.parts", parts=1)
    run = siafu.fit(tmp_path / "own.parts", epochs=1, out=str(tmp_path / "run"))
    assert learnt_schema(RunFolder(run.path)) == learnt_schema(RunFolder(finished.path))
    assert len(siafu.infer(finished, tmp_path / "own.parts")) == NODES, "of the same statistics"
    siafu.partition(customers(), tmp_path / "none.parts", parts=1, scale="none")
    with pytest.raises(DataError, match="another way"):
        siafu.infer(finished, tmp_path / "none.parts")
    with pytest.raises(ConfigError, match="seen: scale with the parts"):
        siafu.fit(tmp_path / "own.parts", epochs=1, scale="none")
    with pytest.raises(ConfigError, match="as they were in training"):
        siafu.infer(finished, customers(), scale="none")


def test_a_run_that_took_columns_as_they_were_does_so_again(tmp_path: Path) -> None:
    graph = customers()
    x = np.nan_to_num(np.asarray(graph.x))
    plain = replace(graph, x=x, edge_attr=None, edge_attr_names=(), schema=None)
    run = trained(tmp_path / "run", plain, edge_features=False, model="gcn")
    assert not (run.path / "schema.yaml").exists()
    numbers = [FeatureColumn(name=column.name) for column in COLUMNS]
    own = siafu.infer(run).column("confidence").to_numpy()
    named = replace(with_columns(graph, x, numbers), edge_attr=None, edge_attr_names=())
    named = replace(named, schema=Schema(nodes=tuple(numbers)))
    np.testing.assert_allclose(siafu.infer(run, named).column("confidence").to_numpy(), own)
    with pytest.raises(DataError, match="'plan'"):
        siafu.infer(run, replace(graph, edge_attr=None, edge_attr_names=()))


def test_the_schema_may_be_changed_by_a_file(tmp_path: Path) -> None:
    file = tmp_path / "changes.yaml"
    said = {
        "nodes": {"age": {"scale": "none", "fill": 0}, "since": {"use": False}},
        "edges": {"amount": {"kind": "category", "most_levels": 2}},
    }
    file.write_text(yaml.safe_dump(said))
    parts = siafu.partition(customers(), tmp_path / "p", parts=1, schema=str(file), scale="robust")
    facts, part = parts.facts["graph"], parts.part(0)
    assert "since" not in facts["feature_names"]
    assert [*facts["edge_attr_names"]][2:] == ["amount is other", "amount is missing"]
    raw = np.asarray(customers().x)[:, 0]
    np.testing.assert_array_equal(part.load("x")[:, 0], np.nan_to_num(raw))
    file.write_text("nodes:\n  agee: {use: false}\n")
    with pytest.raises(ConfigError, match="agee"):
        siafu.partition(customers(), tmp_path / "q", parts=1, schema=str(file))
    with pytest.raises(ConfigError, match="can't be read"):
        siafu.partition(customers(), tmp_path / "q", parts=1, schema=str(tmp_path / "none.yaml"))


@pytest.mark.parametrize("scale", ["standard", "robust", "none"])
def test_numbers_are_scaled_as_asked(tmp_path: Path, scale: Any) -> None:
    graph = customers()
    siafu.partition(graph, tmp_path / "p", parts=1, scale=scale)
    age = np.asarray(graph.x)[:, 0]
    known = age[~np.isnan(age) & np.asarray(graph.train)].astype(np.float64)
    low, median, high = np.percentile(known, (25, 50, 75))
    centre, spread = {
        "standard": (known.mean(), known.std()),
        "robust": (median, high - low),
        "none": (0, 1),
    }[scale]
    expected = (np.where(np.isnan(age), median, age) - centre) / spread
    held = open_parts(tmp_path / "p").part(0).load("x")[:, 0]
    np.testing.assert_allclose(held, expected, rtol=1e-4, atol=1e-5)


def test_columns_without_names_are_not_scaled(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Only columns of tables"):
        siafu.partition("planted:100", tmp_path / "p", parts=1, scale="robust")


def test_links_are_learnt_of_all_rows(tmp_path: Path, runs_on_pool: None) -> None:
    settings = {"task": "link", "strategy": "batchgnn", "model": "sage", "epochs": 1}
    settings |= {"edge_features": False, "fanout": "3,3"}
    runs = [trained(tmp_path / f"{n}", customers(), ranks=n, **settings) for n in (1, 3)]
    schemas = [learnt_schema(RunFolder(run.path)) for run in runs]
    assert schemas[0] == schemas[1]
    assert [column.learnt.rows for column in schemas[0].nodes if column.learnt] == [NODES] * 4


def test_a_cut_that_was_stopped_goes_on_with_the_same_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_store(customers(), tmp_path / "store")
    siafu.partition(tmp_path / "store", tmp_path / "whole", parts=2)
    with monkeypatch.context() as patched:
        patched.setattr("siafu.graph.partial.STEP_SECONDS", 0.0)
        patched.setattr(writing_parts, "write_sends", _out_of_disk)
        with pytest.raises(SiafuError, match="goes on"):
            siafu.partition(tmp_path / "store", tmp_path / "parts", parts=2)
    monkeypatch.setattr("siafu.partitioning.prepared.fit_schema", lambda *told: 1 / 0)
    siafu.partition(tmp_path / "store", tmp_path / "parts", parts=2)
    whole, other = (open_parts(tmp_path / name) for name in ("whole", "parts"))
    assert whole.facts == other.facts
    for part in range(2):
        assert whole.part(part).entries == other.part(part).entries


def test_features_of_edges_are_told_of_where_they_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, settings in (("no", {}), ("yes", {"model": "gat", "edge_features": True})):
        siafu.fit(customers(), epochs=1, out=tmp_path / name, **settings)
        told = capsys.readouterr().err
        assert "Columns of the nodes: 4 become" in told
        assert ("Columns of the edges: 1 become" in told) == (name == "yes")


def _out_of_disk(*told: Any) -> None:
    raise OSError(28, "No space left on device")


def test_inspect_tells_columns_and_prints_a_schema_that_can_be_given_back(
    finished: siafu.Run, siafu_command: Command
) -> None:
    save_store(customers(), siafu_command.here / "data.store")
    told = " ".join(siafu_command("inspect", "data.store").out.split())
    assert "plan: 3 categories (basic, gold, silver)" in told
    assert "since: date" in told
    printed = siafu_command("inspect", "data.store", "--schema").out
    assert Schema.from_dict(yaml.safe_load(printed)) == customers().schema
    edited = yaml.safe_load(printed)
    edited["nodes"]["plan"]["use"] = False
    (siafu_command.here / "edited.yaml").write_text(yaml.safe_dump(edited))
    cut = siafu_command("partition", "data.store", "p", "--parts", 1, "--schema", "edited.yaml")
    assert cut.code == 0, cut.err
    assert "Left out: same (constant)" in " ".join((cut.out + cut.err).split())
    told = " ".join(siafu_command("inspect", "p").out.split())
    assert "not used" in told
    assert "same: number, left out (constant)" in told
    of_run = yaml.safe_load(siafu_command("inspect", finished.path, "--schema").out)
    assert Schema.from_dict(of_run) == learnt_schema(RunFolder(finished.path))
    assert siafu_command("inspect", finished.path).code == 0
    save_store(siafu.load("planted:60"), "plain.store")
    assert "no schema" in siafu_command("inspect", "plain.store", "--schema").err


def test_ends_that_were_found_are_found_by_name_again(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    names = np.array([f"{k:04d}" for k in range(60)])
    nodes = pa.table(
        {"patient": names, "age": draw.normal(size=60), "ill": draw.integers(0, 2, 60)}
    )
    src, dst = names[draw.integers(0, 60, (2, 400))]
    visits = pa.table({"patient_a": src, "patient_b": dst})
    settings = {"model": "sage", "epochs": 2, "hidden": 8, "quiet": True}
    run = siafu.fit(nodes=nodes, edges=visits, label="ill", out=str(tmp_path / "run"), **settings)
    want = run.predict(nodes=nodes, edges=visits, quiet=True)
    other = run.predict(
        nodes=nodes.select(["ill", "age", "patient"]),
        edges=visits.select(["patient_b", "patient_a"]),
        quiet=True,
    )
    assert other["p(1)"].to_pylist() == want["p(1)"].to_pylist()
