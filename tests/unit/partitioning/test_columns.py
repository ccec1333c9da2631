"""Columns of tables are fitted on training rows alone and prepared row by row."""

from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.errors import ConfigError, DataError
from siafu.graph import Array, FeatureColumn, Graph, Schema, graph_from_edges
from siafu.graph.schema import Scale
from siafu.partitioning import fitting
from siafu.partitioning.edge_weights import ScaledWeights
from siafu.partitioning.fitting import fit_columns, keep_one
from siafu.partitioning.prepared import ColumnChoices, fit_schema, told
from siafu.partitioning.preparing import Preparation

GAP = np.nan
AGE = FeatureColumn(name="age")
PLAN = FeatureColumn(name="plan", kind="category", categories=("basic", "gold", "silver"))


def fitted(column: FeatureColumn, values: list[float], scale: Scale = "standard") -> FeatureColumn:
    rows = np.array(values, np.float32)[:, None]
    return fit_columns([column], [rows], len(rows), scale)[0]


def prepared(
    column: FeatureColumn, values: list[float], *, as_held: FeatureColumn | None = None
) -> list[list[float]]:
    own = column if as_held is None else as_held
    rows = np.array(values, np.float32)[:, None]
    out: list[list[float]] = Preparation([column], [own], len(rows) + 1).apply(rows).tolist()
    return out


def test_numbers_are_filled_flagged_and_scaled() -> None:
    age = fitted(AGE, [1, GAP, 3, 8])
    assert age.prepared_names() == ["age", "age is missing"]
    learnt = age.learnt
    assert learnt is not None
    assert (learnt.rows, learnt.gaps, learnt.fill) == (4, 1, 3.0)
    assert learnt.centre == 4.0
    assert learnt.spread == pytest.approx(np.std([1, 3, 8]))
    whole = fitted(AGE, [1, 3, 8], "none")
    assert whole.prepared_names() == ["age"]
    assert prepared(whole, [5, GAP]) == [[5.0], [3.0]]
    mean = fitted(AGE.model_copy(update={"fill": "mean"}), [1, 3, 8], "none")
    assert prepared(mean, [GAP]) == [[4.0]]
    zero = fitted(AGE.model_copy(update={"fill": 0.0}), [1, 3, 8], "none")
    assert prepared(zero, [GAP]) == [[0.0]]


def test_robust_scale_does_not_see_an_outlier() -> None:
    learnt = fitted(AGE, [1, 2, 3, 4, 1e9], "robust").learnt
    assert learnt is not None
    assert (learnt.centre, learnt.spread) == (3.0, 2.0)
    flat = fitted(AGE, [0, 0, 0, 0, 0, 8], "robust").learnt
    assert flat is not None
    assert flat.spread == pytest.approx(np.std([0, 0, 0, 0, 0, 8]))


def test_booleans_stay_and_a_column_may_keep_its_scale() -> None:
    boolean = FeatureColumn(name="active", kind="boolean")
    assert prepared(fitted(boolean, [0, 1, 1]), [0, 1, GAP]) == [[0.0], [1.0], [1.0]]
    own = AGE.model_copy(update={"scale": "none"})
    assert prepared(fitted(own, [2, 4]), [3]) == [[3.0]]


@pytest.mark.parametrize(
    ("values", "names", "why"),
    [
        ([7, 7, 7], [], "constant"),
        ([7, GAP, 7], ["age is missing"], "constant"),
        ([GAP, GAP], [], "no value in training rows"),
    ],
)
def test_what_says_nothing_is_left_out(values: list[float], names: list[str], why: str) -> None:
    column = fitted(AGE, values)
    assert column.prepared_names() == names
    assert column.learnt is not None
    assert column.learnt.left_out == why


@pytest.mark.parametrize(("kind", "scale"), [("number", "standard"), ("boolean", "none")])
def test_a_constant_that_is_the_only_column_is_kept_as_ones(kind: str, scale: Scale) -> None:
    column = AGE.model_copy(update={"kind": kind})
    table = np.array([[0, GAP], [0, GAP]], np.float32)
    both = fit_columns([column, FeatureColumn(name="pay")], [table], 2, scale)
    kept = keep_one(both)
    assert [one.prepared_names() for one in kept] == [["age"], []]
    assert prepared(kept[0], [0, GAP]) == [[1.0], [1.0]]
    assert fitted(AGE, [7, 7]).prepared_names() == []
    assert prepared(keep_one((fitted(AGE, [7, 7]),))[0], [7, 8]) == [[1.0], [2.0]]
    plan = keep_one((fitted(PLAN, [1, 1]),))[0]
    assert prepared(plan, [1, 1], as_held=PLAN) == [[1.0], [1.0]]
    useful = fit_columns([AGE, PLAN], [np.array([[7, 1], [7, 2]], np.float32)], 2, scale)
    assert keep_one(useful) == useful


def test_categories_become_columns_and_an_unseen_one_none() -> None:
    plan = fitted(PLAN, [0, 1, 1, GAP])
    assert plan.prepared_names() == ["plan=basic", "plan=gold", "plan is missing"]
    assert prepared(plan, [0, 1, 2, GAP]) == [[1, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 1]]
    other_order = PLAN.model_copy(update={"categories": ("gold", "lead", "basic")})
    rows = prepared(plan, [0, 1, 2], as_held=other_order)
    assert rows == [[0, 1, 0], [0, 0, 0], [1, 0, 0]]
    piece = np.array([[0], [1], [1], [GAP]], np.float32)
    assert Preparation([plan], [other_order], 4).count_unseen([piece]) == {"plan": 2}


def test_rare_categories_share_a_column_with_unseen_ones() -> None:
    few = PLAN.model_copy(update={"most_levels": 1})
    plan = fitted(few, [1, 1, 0])
    assert plan.prepared_names() == ["plan=gold", "plan is other"]
    assert prepared(plan, [1, 0, 2, GAP]) == [[1, 0], [0, 1], [0, 1], [0, 0]]
    given = np.array([[0], [1], [2]], np.float32)
    assert Preparation([plan], [PLAN], 3).count_unseen([given]) == {"plan": 1}


def test_numbers_may_be_used_as_categories_and_text_as_numbers() -> None:
    schema = Schema(nodes=(AGE, FeatureColumn(name="n", kind="category", categories=("10", "9"))))
    said = {"nodes": {"age": {"kind": "category"}, "n": {"kind": "number", "scale": "none"}}}
    columns = schema.overridden(said, "f.yaml").nodes
    table = np.array([[2, 0], [3.5, 1], [2, GAP]], np.float32)
    both = fit_columns(columns, [table], 3, "standard")
    preparation = Preparation(both, schema.nodes, 3)
    assert preparation.names == ("age=2", "age=3.5", "n", "n is missing")
    new = np.array([[3.5, 1], [7, 0], [GAP, GAP]], np.float32)
    assert preparation.apply(new).tolist() == [[0, 1, 9, 0], [0, 0, 10, 0], [0, 0, 9.5, 1]]
    assert preparation.count_unseen([new]) == {"age": 1}


def test_text_that_is_no_number_and_an_unknown_fill_are_told() -> None:
    text = PLAN.model_copy(update={"kind": "number", "table_kind": "category"})
    with pytest.raises(ConfigError, match="basic"):
        fitted(text, [0, 1])
    with pytest.raises(ConfigError, match="lead"):
        fitted(PLAN.model_copy(update={"fill": "lead"}), [0, 1])
    gold = fitted(PLAN.model_copy(update={"fill": "gold"}), [0, 1, GAP])
    assert prepared(gold, [GAP]) == [[0, 1, 1]]


def test_columns_are_found_by_name() -> None:
    pay = FeatureColumn(name="pay", scale="none")
    table = np.array([[1, 0, 5], [3, 1, 7]], np.float32)
    columns = fit_columns([AGE, PLAN, pay], [table], 2, "none")
    turned = [pay, FeatureColumn(name="new"), PLAN, AGE]
    preparation = Preparation(columns, turned, 9)
    assert preparation.extra == ("new",)
    assert preparation.apply(np.array([[5, 9, 0, 1]], np.float32)).tolist() == [[1, 1, 0, 5]]
    with pytest.raises(DataError, match=r"(?s)'age', 'pay'.*did you mean 'Age'"):
        Preparation(columns, [PLAN, FeatureColumn(name="Age")], 9)
    with pytest.raises(DataError, match=r"'age', 'pay' \(not read: free text\).*'note'"):
        Preparation(columns, [PLAN], 9, unused={"pay": "free text", "note": "free text"})
    with pytest.raises(DataError, match="'pay' holds text, in training it held numbers"):
        Preparation(columns, [AGE, PLAN, FeatureColumn(name="pay", kind="category")], 9)
    nothing = FeatureColumn(name="pay", kind="category", gaps=9)
    gaps = Preparation(columns, [AGE, PLAN, nothing], 9)
    assert gaps.apply(np.array([[1, 0, GAP]], np.float32)).tolist() == [[1, 1, 0, 6]]


def table_graph(seed: int = 0, rows: int = 40) -> Graph:
    rng = np.random.default_rng(seed)
    x = rng.normal(50, 30, (rows, 3)).astype(np.float32)
    x[:, 1] = rng.integers(0, 3, rows)
    x[rng.random((rows, 3)) < 0.2] = np.nan
    ends = rng.integers(0, rows, (2, 3 * rows))
    attr = rng.normal(5, 9, (3 * rows, 1)).astype(np.float32)
    attr[::7] = np.nan
    graph = graph_from_edges(ends[0], ends[1], rows, edge_attr=attr)
    columns = (AGE, PLAN, FeatureColumn(name="since", kind="date"))
    return replace(
        graph,
        x=x,
        train=rng.random(rows) < 0.5,
        feature_names=tuple(column.name for column in columns),
        edge_attr_names=("amount",),
        schema=Schema(nodes=columns, edges=(FeatureColumn(name="amount"),)),
    )


@given(st.integers(0, 1000), st.sampled_from(["standard", "robust", "none"]))
@settings(max_examples=25, deadline=None)
def test_rows_are_prepared_one_by_one_without_gaps(seed: int, scale: Scale) -> None:
    graph = table_graph(seed)
    assert graph.schema is not None
    schema = fit_schema(graph, ColumnChoices(scale=scale))
    again = Schema.from_dict(yaml.safe_load(schema.to_yaml()))
    assert again == schema
    assert isinstance(graph.x, np.ndarray)
    preparation = Preparation(again.nodes, graph.schema.nodes, graph.num_nodes)
    whole = preparation.apply(graph.x)
    assert np.isfinite(whole).all()
    single = [preparation.apply(graph.x[row : row + 1]) for row in range(len(graph.x))]
    np.testing.assert_array_equal(whole, np.concatenate(single))


@given(st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_rows_that_are_not_trained_on_change_nothing(seed: int) -> None:
    graph = table_graph(seed)
    x, attr, train = np.array(graph.x), np.array(graph.edge_attr), np.asarray(graph.train)
    x[~train] = np.random.default_rng(seed).integers(0, 3, x[~train].shape)
    into = np.repeat(train, np.diff(graph.indptr))
    attr[~into] = 1e6
    other = replace(graph, x=x, edge_attr=attr)
    assert fit_schema(graph, ColumnChoices()) == fit_schema(other, ColumnChoices())


def test_training_edges_count_where_edges_have_a_split() -> None:
    graph = table_graph()
    split = np.zeros(graph.num_edges, np.uint8)
    split[:10] = 1
    schema = fit_schema(replace(graph, edge_split=split), ColumnChoices(all_rows=True))
    assert schema.edges[0].learnt is not None
    assert schema.edges[0].learnt.rows == 10
    assert schema.nodes[0].learnt is not None
    assert schema.nodes[0].learnt.rows == graph.num_nodes


def test_all_rows_count_where_none_are_trained_on() -> None:
    graph = table_graph()
    nobody = replace(graph, train=np.zeros(graph.num_nodes, bool))
    schema = fit_schema(nobody, ColumnChoices())
    assert schema == fit_schema(replace(graph, train=None), ColumnChoices())
    lonely = np.zeros(graph.num_nodes, bool)
    lonely[:1] = True
    indptr = np.concatenate([[0], np.full(graph.num_nodes, graph.num_edges)])
    indptr[1] = 0
    schema = fit_schema(replace(graph, indptr=indptr, train=lonely), ColumnChoices())
    assert schema.edges[0].learnt is not None
    assert schema.edges[0].learnt.rows == graph.num_edges


def _moments(table: Array, rows: int) -> list[float]:
    pieces = [table[low : low + rows] for low in range(0, len(table), rows)]
    learnt = fit_columns([AGE], pieces, len(table), "standard")[0].learnt
    assert learnt is not None
    return [learnt.centre, learnt.spread, float(learnt.fill)]


def test_pieces_make_no_difference_worth_naming() -> None:
    table = np.random.default_rng(1).normal(1e4, 1, (1000, 1)).astype(np.float32)
    for rows in (1, 7, 999):
        np.testing.assert_allclose(_moments(table, rows), _moments(table, 1000), rtol=1e-9)
    exact = table.astype(np.float64)
    np.testing.assert_allclose(_moments(table, 7)[:2], [exact.mean(), exact.std()], rtol=1e-9)


def test_a_median_of_many_rows_is_that_of_a_fixed_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "_SAMPLE_NUMBERS", 2048)
    table = np.random.default_rng(2).normal(0, 1, (20_000, 1)).astype(np.float32)
    assert _moments(table, 300)[2] == _moments(table, 20_000)[2]
    assert abs(_moments(table, 300)[2]) < 0.1


def _weighted(weights: Array) -> tuple[Graph, Array]:
    """Return a graph with weights, and which of its edges lead into training nodes."""
    graph = table_graph()
    into = np.repeat(np.asarray(graph.train), np.diff(graph.indptr))
    return replace(graph, edge_weight=weights.astype(np.float32)), into


def test_weights_are_divided_by_their_mean_over_training_edges() -> None:
    weights = np.random.default_rng(3).random(120) * 1e6
    graph, into = _weighted(weights)
    schema = fit_schema(graph, ColumnChoices())
    assert schema.weight_mean == pytest.approx(weights[into].mean(), rel=1e-6)
    assert "divided by their mean" in told(schema)[-1]
    scaled = ScaledWeights(graph.edge_weight, schema.weight_mean)
    assert scaled[0:120].dtype == np.float32
    np.testing.assert_allclose(scaled[5:90], weights[5:90] / weights[into].mean(), rtol=1e-6)
    assert fit_schema(graph, ColumnChoices(scale="none")).weight_mean == 1.0


@pytest.mark.parametrize(
    ("weights", "why"),
    [(np.linspace(-1, 9, 120), "some are below 0"), (np.zeros(120), "all are 0")],
)
def test_weights_without_a_scale_stay_and_are_told(weights: Array, why: str) -> None:
    schema = fit_schema(_weighted(weights)[0], ColumnChoices())
    assert (schema.weight_mean, schema.weights_kept) == (1.0, why)
    assert told(schema)[-1] == f"Warning: the weights of edges are not scaled: {why}."


def test_weights_of_one_say_nothing() -> None:
    schema = fit_schema(_weighted(np.ones(120))[0], ColumnChoices())
    assert (schema.weight_mean, schema.weights_kept) == (1.0, "")
    assert not any("eights" in line for line in told(schema))
