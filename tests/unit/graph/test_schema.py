"""What a schema says survives a manifest and YAML; a file may change some of it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from siafu.errors import ConfigError
from siafu.graph import (
    FeatureColumn,
    Graph,
    Learnt,
    Schema,
    TargetColumn,
    graph_from_edges,
    load_store,
    save_store,
)

SCHEMA = Schema(
    nodes=(
        FeatureColumn(name="age", gaps=1),
        FeatureColumn(name="plan", kind="category", categories=("1", "yes", "gold")),
        FeatureColumn(name="emb[0]"),
        FeatureColumn(name="emb[1]", scale="none"),
    ),
    edges=(FeatureColumn(name="amount"),),
    targets=(TargetColumn(name="fraud", kind="class", classes=("no", "yes"), counts=(2, 1)),),
    unused={"ref": "looks like an id"},
    edge_unused={"ref": "looks like an id", "day": "free text"},
)


def graph_with_schema() -> Graph:
    graph = graph_from_edges(np.array([0, 1]), np.array([1, 2]), 3)
    x = np.array([[np.nan, 0, 1, 2], [3, 2, 1, 0], [4, 1, 0, 0]], np.float32)
    return replace(
        graph,
        x=x,
        edge_attr=np.array([[1], [np.nan]], np.float32),
        feature_names=tuple(column.name for column in SCHEMA.nodes),
        edge_attr_names=("amount",),
        schema=SCHEMA,
    )


def test_a_store_keeps_the_schema_and_the_gaps(tmp_path: Path) -> None:
    save_store(graph_with_schema(), tmp_path / "store")
    loaded = load_store(tmp_path / "store")
    assert loaded.schema == SCHEMA
    assert isinstance(loaded.x, np.ndarray)
    assert np.isnan(loaded.x[0, 0])


def test_yaml_gives_the_schema_back() -> None:
    learnt = Learnt(rows=3, gaps=1, fill=0.1, centre=1 / 3, spread=2.5e-7)
    fitted = SCHEMA.model_copy(
        update={"nodes": (SCHEMA.nodes[0].model_copy(update={"learnt": learnt}),)}
    )
    for schema in (SCHEMA, fitted, Schema()):
        assert Schema.from_dict(yaml.safe_load(schema.to_yaml())) == schema


@pytest.mark.parametrize(
    "said",
    [
        {"nodes": ["age"]},
        {"nodes": {"age": 3}},
        {"nodes": {"age": {"kind": "text"}}},
        {"nodes": {"age": {"learnt": {"rows": -1}}}},
        {"nodes": {"age": {"learnt": {"rows": 1, "fill": float("nan")}}}},
        {"nodes": {"plan": {"kind": "category", "categories": ["a", "a"]}}},
        {"columns": {}},
    ],
)
def test_what_is_no_schema_is_a_value_error(said: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Schema.from_dict(said)


def test_entries_of_a_list_are_said_together() -> None:
    lists = [FeatureColumn(name=f"emb[{k}]") for k in range(400)]
    lists[7] = FeatureColumn(name="emb[7]", gaps=3)
    schema = Schema(nodes=(*lists, FeatureColumn(name="age"), FeatureColumn(name="one[0]")))
    assert list(schema.to_dict()["nodes"]) == [
        "emb[0..6]",
        "emb[7]",
        "emb[8..399]",
        "age",
        "one[0]",
    ]
    assert Schema.from_dict(yaml.safe_load(schema.to_yaml())) == schema
    changed = schema.overridden({"nodes": {"emb[8..399]": {"use": False}}}, "f.yaml")
    assert [column.use for column in changed.nodes].count(False) == 392


def test_a_file_changes_what_is_done_but_not_what_numbers_mean() -> None:
    said = {
        "nodes": {
            "age": {"kind": "category", "most_levels": 4},
            "plan": {"use": False, "categories": ["other"]},
            "emb": {"fill": 0},
        },
    }
    age, plan, first, second = SCHEMA.overridden(said, "edited.yaml").nodes
    assert (age.kind, age.most_levels, age.gaps) == ("category", 4, 1)
    assert (plan.use, plan.categories) == (False, ("1", "yes", "gold"))
    assert (first.fill, second.fill, second.scale) == (0.0, 0.0, "none")


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"nodes": {"aeg": {"use": False}}}, "aeg"),
        ({"nodes": {"age": {"kind": "text"}}}, "kind"),
        ({"nodes": {"age": {"scal": "none"}}}, "scal"),
        ({"nodes": {"age": {"fill": "zero"}}}, "fill"),
        ({"nodes": {"age": 3}}, "age"),
        ({"nodes": ["age"]}, "age"),
    ],
)
def test_a_slip_in_the_file_is_told(said: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=r"edited\.yaml") as told:
        SCHEMA.overridden(said, "edited.yaml")
    assert named in str(told.value)


@pytest.mark.parametrize(("group", "flag"), [("nodes", "--features"), ("edges", "--edge-attr")])
def test_lines_on_a_column_that_is_there_but_not_used_tell_why(group: str, flag: str) -> None:
    with pytest.raises(ConfigError, match="looks like an id") as told:
        SCHEMA.overridden({group: {"ref": {"kind": "date"}}}, "edited.yaml")
    assert "'ref' in edited.yaml; the tables have it" in str(told.value)
    assert flag in str(told.value)
    assert "has not" not in str(told.value)
