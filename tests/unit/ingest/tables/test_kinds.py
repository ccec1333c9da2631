"""Columns of any kind: what each is taken for, how it is held, and why some are left out."""

from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siafu.config import make_columns
from siafu.errors import ConfigError, DataError
from siafu.graph import load_store
from siafu.ingest import TableOptions, ingest_to_store
from tests.unit.ingest.tables.made import made, schema_of

ROWS = 60
RNG = np.random.default_rng(3)
TOWNS = RNG.choice(["Ulm", "Bonn", "Kiel"], ROWS).tolist()


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_each_kind_is_held_as_numbers(tmp_path: Path, ending: str) -> None:
    days = [date(2024, 1, 1 + row % 28) for row in range(ROWS)]
    moments = [datetime(2024, 5, 1, row % 24, tzinfo=UTC) for row in range(ROWS)]
    graph, told = made(
        tmp_path / "t",
        {
            "pay": [f"{row}.25" if row % 7 else "-" for row in range(ROWS)],
            "town": [town if row else "" for row, town in enumerate(TOWNS)],
            "paid": ["Yes" if row % 3 else "no" for row in range(ROWS)],
            "flag": [row % 2 == 0 for row in range(ROWS)],
            "day": [str(day) for day in days],
            "moment": [moment.isoformat() for moment in moments],
        },
        ending=ending,
    )
    assert [(one.name, one.kind, one.gaps) for one in schema_of(graph).nodes] == [
        ("pay", "number", 9),
        ("town", "category", 1),
        ("paid", "boolean", 0),
        ("flag", "boolean", 0),
        ("day", "date", 0),
        ("moment", "date", 0),
    ]
    x = np.array(graph.x)
    assert schema_of(graph).nodes[1].categories == ("Bonn", "Kiel", "Ulm")
    assert np.isnan(x[0, 1])
    assert [("Bonn", "Kiel", "Ulm")[int(code)] for code in x[1:, 1]] == TOWNS[1:]
    np.testing.assert_array_equal(x[:, 2], [float(row % 3 > 0) for row in range(ROWS)])
    epoch = date(1970, 1, 1)
    np.testing.assert_array_equal(x[:, 4], np.float32([(day - epoch).days for day in days]))
    np.testing.assert_allclose(x[:, 5], [m.timestamp() / 86400 for m in moments], rtol=1e-7)
    assert "town    category  feature     1  3 different" in told


def test_types_of_arrow_are_kinds(tmp_path: Path) -> None:
    graph, _ = made(
        tmp_path / "t",
        {
            "town": pa.array(TOWNS).dictionary_encode(),
            "day": pa.array([date(2020, 2, 29), None] * (ROWS // 2)),
            "emb": pa.array([[1.0, None], None, [3.0, 4.0]] * (ROWS // 3)),
            "cost": pa.array([1, 2] * (ROWS // 2), pa.decimal128(8, 2)),
        },
    )
    kinds = [(one.name, one.kind, one.gaps) for one in schema_of(graph).nodes]
    assert kinds == [
        ("town", "category", 0),
        ("day", "date", 30),
        ("emb[0]", "number", 20),
        ("emb[1]", "number", 40),
        ("cost", "number", 0),
    ]


def test_what_looks_like_an_id_an_index_or_text_is_no_feature(tmp_path: Path) -> None:
    columns = {
        "row": list(range(100, 100 + ROWS)),
        "branch_id": [row % 4 for row in range(ROWS)],
        "ref": [f"r{row}" for row in range(ROWS)],
        "words": [f"text {row % 50}" for row in range(ROWS)],
        "zip": [f"0{row % 9}123" for row in range(ROWS)],
        "empty": pa.nulls(ROWS),
        "age": [row % 30 for row in range(ROWS)],
    }
    graph, told = made(tmp_path / "t", columns)
    assert graph.feature_names == ("zip", "age")
    assert schema_of(graph).nodes[0].kind == "category"
    unused = schema_of(graph).unused
    assert "index: 100 to 159" in unused["row"]
    assert "by its name" in unused["branch_id"]
    assert "each text is there once" in unused["ref"]
    assert "free text: 50 different" in unused["words"]
    assert "no values" in unused["empty"]
    assert "free text: 50 different in 60 rows" in told
    asked, _ = made(tmp_path / "a", columns, features=("row", "branch_id", "words"))
    assert asked.feature_names == ("row", "branch_id", "words")


def test_columns_that_tell_the_target_are_left_out(tmp_path: Path) -> None:
    fraud = (RNG.random(ROWS) < 0.3).astype(int)
    columns = {
        "is_fraud": [int(one) if row % 5 else None for row, one in enumerate(fraud)],
        "outcome": ["bad" if one else "fine" for one in fraud],
        "score": fraud * 10.0 + 1,
        "age": RNG.integers(20, 60, ROWS),
    }
    graph, told = made(tmp_path / "t", columns, label="is_fraud")
    assert graph.feature_names == ("age",)
    assert "Warning: left out, since they tell the target: outcome, score" in told
    asked, _ = made(tmp_path / "a", columns, label="is_fraud", features=("outcome", "age"))
    assert asked.feature_names == ("outcome", "age")
    number = RNG.random(ROWS)
    line, _ = made(tmp_path / "n", {"y": number, "euro": number * 2 + 1, "age": columns["age"]})
    assert line.feature_names == ("age",)


def test_columns_that_look_like_a_split_are_told_and_no_features(tmp_path: Path) -> None:
    words = ["Train", "dev", "test", ""]
    columns = {
        "fold": [words[row % 4] for row in range(ROWS)],
        "subset": ["train"] * ROWS,
        "vehicle": ["train" if row % 2 else "bus" for row in range(ROWS)],
        "age": RNG.integers(20, 60, ROWS),
    }
    graph, told = made(tmp_path / "t", columns)
    assert graph.feature_names == ("vehicle", "age")
    assert schema_of(graph).unused["fold"] == "looks like a split"
    assert (
        "column 'fold' looks like a split (Train, dev, test) and is no feature: --split-col" in told
    )
    taken, told = made(tmp_path / "s", columns, split="fold")
    assert (taken.train.sum(), taken.val.sum(), taken.test.sum()) == (15, 15, 15)
    assert "'fold'" not in told
    asked, _ = made(tmp_path / "a", columns, features=("fold", "age"))
    assert asked.feature_names == ("fold", "age")


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_targets_are_classes_or_numbers(tmp_path: Path, ending: str) -> None:
    words = ["no" if row % 3 else "yes" for row in range(ROWS)]
    graph, _ = made(tmp_path / "w", {"y": words}, ending=ending)
    assert (graph.class_names, graph.y.tolist()[:4]) == (("no", "yes"), [1, 0, 0, 1])
    assert schema_of(graph).targets[0].counts == (40, 20)
    values = [row / 7 if row else None for row in range(ROWS)]
    graph, told = made(tmp_path / "f", {"y": values}, ending=ending)
    assert (graph.num_classes, graph.num_targets, graph.target_names) == (0, 1, ("y",))
    np.testing.assert_array_equal(graph.y[1:, 0], np.float32(values[1:]))
    assert np.isnan(graph.y[0, 0])
    assert "Target y is a number to be told" in told
    whole = [row % 5 for row in range(ROWS)]
    graph, _ = made(tmp_path / "i", {"y": whole}, ending=ending)
    assert (graph.num_classes, graph.y.tolist()) == (5, whole)
    graph, _ = made(tmp_path / "n", {"y": whole}, ending=ending, target="number")
    assert graph.num_targets == 1
    graph, told = made(tmp_path / "m", {"y": [7 * row for row in range(ROWS)]}, ending=ending)
    assert graph.num_targets == 1
    assert "--label-as classes" in told


def test_several_targets(tmp_path: Path) -> None:
    p, q = [row % 2 for row in range(ROWS)], [row / 9 for row in range(ROWS)]
    labels, _ = made(tmp_path / "l", {"p": p, "q": p[::-1]}, label=("p", "q"))
    assert (labels.y.dtype, labels.num_classes) == (np.uint8, 2)
    numbers, told = made(tmp_path / "n", {"p": p, "q": q}, label=("p", "q"))
    assert (numbers.num_targets, numbers.target_names) == (2, ("p", "q"))
    assert "Targets p, q are numbers" in told


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_text_in_a_target_of_numbers_is_told_with_its_place(tmp_path: Path, ending: str) -> None:
    cells = [f"{row}.5" for row in range(ROWS)]
    cells[41] = "unknown!"
    with pytest.raises(DataError, match="mixes numbers and text") as caught:
        made(tmp_path / "t", {"y": cells}, ending=ending)
    assert "column 'y': 'unknown!' in data row 41" in caught.value.seen


EDGES = {"src": [row % 9 for row in range(40)], "dst": [row % 7 for row in range(40)]}
AGE = {"age": [row % 11 for row in range(20)]}


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_columns_of_edges_likewise(tmp_path: Path, ending: str) -> None:
    ways = ["card", "cash", "wire", ""] * 10
    edges = EDGES | {
        "weight": [float(row) for row in range(40)],
        "way": ways,
        "day": ["2024-02-29"] * 39 + ["?"],
        "edge_id": list(range(40)),
    }
    graph, told = made(tmp_path / "t", AGE, edges, ending)
    assert graph.edge_attr_names == ("way", "day")
    assert schema_of(graph).edges[0].categories == ("card", "cash", "wire")
    assert [one.gaps for one in schema_of(graph).edges] == [10, 1]
    order = np.argsort(EDGES["dst"], kind="stable")
    np.testing.assert_array_equal(graph.edge_weight, order)
    codes = [np.nan if not way else ["card", "cash", "wire"].index(way) for way in ways]
    np.testing.assert_array_equal(graph.edge_attr[:, 0], np.float32(codes)[order])
    assert "weight   number    weight" in told
    (way,) = (line for line in told.splitlines() if line.startswith("  way"))
    assert (
        " ".join(way.split())
        == "way category edge feature 10 with --edge-features, or own model; 3 different"
    )
    (day,) = (line for line in told.splitlines() if line.startswith("  day"))
    assert " ".join(day.split()) == "day date edge feature 1 with --edge-features, or own model"


@pytest.mark.parametrize("bad", [-1.0, None])
def test_weights_that_can_not_be_are_features(tmp_path: Path, bad: float | None) -> None:
    edges = EDGES | {"weight": [1.0] * 39 + [bad]}
    graph, told = made(tmp_path / "t", AGE, edges)
    assert (graph.edge_weight, graph.edge_attr_names) == (None, ("weight",))
    assert "Column weight is not used as a weight" in told


def test_targets_of_edges(tmp_path: Path) -> None:
    kinds = ["good", "bad", None, "good"] * 10
    graph, _ = made(tmp_path / "c", AGE, EDGES | {"kind": kinds}, edge_label="kind")
    order = np.argsort(EDGES["dst"], kind="stable")
    assert (graph.edge_class_names, graph.num_edge_classes) == (("bad", "good"), 2)
    want = np.array([{"good": 1, "bad": 0, None: -1}[kind] for kind in kinds])
    np.testing.assert_array_equal(graph.edge_y, want[order])
    assert graph.edge_attr is None
    sums = [row / 3 for row in range(40)]
    edges = EDGES | {"sum": sums}
    graph, _ = made(tmp_path / "n", AGE, edges, edge_label="sum", undirected=True)
    assert (graph.num_edge_targets, graph.edge_target_names) == (1, ("sum",))
    told = np.asarray(graph.edge_y)[:, 0]
    assert sorted(told[np.isfinite(told)].tolist()) == np.float32(sums).tolist()


def test_a_column_called_y_that_is_asked_for_as_a_feature_is_no_target(tmp_path: Path) -> None:
    places = {"x": RNG.random(ROWS).tolist(), "y": RNG.random(ROWS).tolist()}
    graph, _ = made(tmp_path, places, features=("x", "y"))
    assert (graph.feature_names, graph.y) == (("x", "y"), None)


@pytest.mark.parametrize(
    ("form", "first"),
    [("{:02}.{:02}.2024", None), ("{}.{}.2024", None), ("{:02}/{:02}/2024", "day")],
)
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_dates_with_the_day_first(
    tmp_path: Path, ending: str, form: str, first: str | None
) -> None:
    days = [date(2024, 1 + k % 12, 1 + k % 28) for k in range(ROWS)]
    cells = [form.format(one.day, one.month) for one in days]
    cells[3] = "n/a"
    cells[5] = ""
    graph, _ = made(tmp_path, {"since": cells}, ending=ending)
    want = np.array([(one - date(1970, 1, 1)).days for one in days], np.float32)
    want[[3, 5]] = np.nan
    np.testing.assert_array_equal(np.array(graph.x)[:, 0], want)
    column = schema_of(graph).nodes[0]
    assert (column.kind, column.first, column.gaps) == ("date", first, 2)


def test_dates_with_slashes_are_dates_where_a_day_tells(tmp_path: Path) -> None:
    months = [f"{1 + k % 12}/{1 + k % 28}/2024" for k in range(ROWS)]
    unclear = [f"{1 + k % 12:02}/{1 + k % 11:02}/2024" for k in range(ROWS)]
    graph, _ = made(tmp_path / "a", {"since": months, "seen": unclear})
    since, *_ = schema_of(graph).nodes
    assert (since.name, since.kind, since.first) == ("since", "date", "month")
    assert np.array(graph.x)[14, 0] == (date(2024, 3, 15) - date(1970, 1, 1)).days
    assert all(one.kind != "date" for one in schema_of(graph).nodes[1:])
    # Few rows tell nothing; a trained run knows.
    few = {"since": ["03/04/2024"] * 3}
    graph, _ = made(tmp_path / "b", few, node_kinds=(("since", "date", "day"),))
    assert np.array(graph.x)[0, 0] == (date(2024, 4, 3) - date(1970, 1, 1)).days


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_infinite_targets_are_gaps(tmp_path: Path, ending: str) -> None:
    pay = RNG.random(ROWS)
    pay[[1, 2, 3, 4]] = [np.inf, -np.inf, np.nan, 1e300]
    nodes = {"age": list(range(ROWS)), "pay": pay}
    graph, told = made(tmp_path / "one", nodes, ending=ending, label="pay")
    assert np.isnan(np.array(graph.y)[:, 0]).nonzero()[0].tolist() == [1, 2, 3, 4]
    assert schema_of(graph).targets[0].gaps == 4
    assert "Target pay has 3 infinite numbers, taken as gaps." in told
    nodes = {"pay": pay, "rent": RNG.random(ROWS), "low": RNG.random(ROWS)}
    graph, _ = made(tmp_path / "two", nodes, ending=ending, label=("pay", "rent"))
    assert np.isnan(np.array(graph.y)).sum(axis=0).tolist() == [4, 0]
    assert [one.gaps for one in schema_of(graph).targets] == [4, 0]


def test_a_class_may_be_called_inf(tmp_path: Path) -> None:
    words = ["inf", "cav", "art"] * 20
    graph, told = made(tmp_path, {"age": list(range(ROWS)), "arm": words}, label="arm")
    assert (graph.class_names, "infinite" in told) == (("art", "cav", "inf"), False)
    assert np.array(graph.y)[:3].tolist() == [2, 1, 0]


def test_columns_that_are_to_be_left_out_are_no_features(tmp_path: Path) -> None:
    nodes = {"age": [row % 11 for row in range(ROWS)], "town": TOWNS, "pay": [0.5] * ROWS}
    edges = {"src": [0, 1], "dst": [1, 2], "day": [1.5, 2.5], "sum": [2.5, 3.5]}
    settings = make_columns(features=["-age", "-town"], edge_attr="-day")
    options = {name: getattr(settings.table_options(), name) for name in ("left_out", "features")}
    options["edge_left_out"] = settings.table_options().edge_left_out
    graph, told = made(tmp_path / "t", nodes, edges, **options)
    assert (graph.feature_names, graph.edge_attr_names) == (("pay",), ("sum",))
    assert schema_of(graph).unused == {"age": "left out as asked", "town": "left out as asked"}
    assert told.count("left out as asked") == 3
    with pytest.raises(DataError, match="no column 'agee'"):
        made(tmp_path / "u", nodes, edges, left_out=("agee",))
    with pytest.raises(ConfigError, match="not both"):
        make_columns(features="-age,town").table_options()


def test_signs_of_money_and_percent_are_no_text(tmp_path: Path) -> None:
    count = 2 * ROWS
    nodes = {
        "price": [f"€ {1000 + row:,}.50" for row in range(count)],
        "fee": [f"-${row}.25" if row % 9 else "" for row in range(count)],
        "water": [f"{row % 50} %" for row in range(count)],
        "people": [f"{row + 1},000,000" for row in range(count)],
        "odd": [f"{row},234" for row in range(count)],
    }
    graph, _ = made(tmp_path, nodes)
    kinds = {one.name: one.kind for one in schema_of(graph).nodes}
    assert kinds == dict.fromkeys(("price", "fee", "water", "people"), "number")
    found = np.array(graph.x)[[1, 7]].tolist()
    assert found == [[1001.5, -1.25, 1, 2e6], [1007.5, -7.25, 7, 8e6]]
    assert np.isnan(np.array(graph.x)[0, 1])
    assert "odd" in schema_of(graph).unused, "a comma may be a point"


def test_a_target_of_fractions_and_words_is_told(tmp_path: Path) -> None:
    grams = [f"{row}.25" if row % 5 else "unknown" for row in range(ROWS)]
    with pytest.raises(DataError, match=r"(?s)mixes numbers and text.*'unknown' in data row 0"):
        made(tmp_path, {"age": list(range(ROWS)), "grams": grams}, label="grams")


def test_one_is_told_as_one(tmp_path: Path) -> None:
    pay = [f"{k % 7}.5" for k in range(2 * ROWS)]
    pay[7] = "much"
    graph, told = made(tmp_path, {"pay": pay})
    assert np.isnan(np.array(graph.x)[7, 0])
    assert "pay: 1 cell among numbers taken as a gap, the first 'much' in data row 7" in told


def test_edges_to_predict_know_their_row_and_their_split(tmp_path: Path) -> None:
    rows = 400
    edges = {
        "src": [row % 9 for row in range(rows)],
        "dst": [row % 7 if row != 5 else 99 for row in range(rows)],
        "late": [None if row == 6 else row % 2 for row in range(rows)],
        "split": [("train", "val", "test", "")[row % 4] for row in range(rows)],
    }
    graph, told = made(tmp_path / "t", AGE, edges, edge_label="late", undirected=True)
    assert graph.edge_row is not None
    assert graph.edge_split is not None
    row_of = np.array(graph.edge_row)
    given = row_of >= 0
    assert sorted(row_of[given].tolist()) == [row for row in range(rows) if row != 5]
    src, dst = graph.edge_index()
    assert src[given].tolist() == [edges["src"][row] for row in row_of[given]]
    assert dst[given].tolist() == [edges["dst"][row] for row in row_of[given]]
    side = [0 if row == 6 else (1, 2, 3, 0)[row % 4] for row in row_of[given]]
    assert np.array(graph.edge_split)[given].tolist() == side
    assert not np.array(graph.edge_split)[~given].any(), "reverses are not asked about"
    assert " split split split " in " ".join(told.split())
    plain, _ = made(tmp_path / "plain", AGE, edges)
    assert (plain.edge_row, plain.edge_split) == (None, None)
    (tmp_path / "two" / "edges").mkdir(parents=True)
    for number, low in enumerate((0, 200)):
        piece = {name: column[low : low + 200] for name, column in edges.items()}
        pq.write_table(pa.table(piece), tmp_path / "two" / "edges" / f"{number}.parquet")
    ids = {"id": list(range(20)), **AGE}
    pq.write_table(pa.table(ids), tmp_path / "two" / "nodes.parquet")
    options = TableOptions(edge_label="late")
    ingest_to_store(tmp_path / "two", tmp_path / "two.store", options=options)
    both = load_store(tmp_path / "two.store")
    assert sorted(np.array(both.edge_row).tolist()) == [row for row in range(rows) if row != 5]


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_namibia_is_a_country_among_countries(tmp_path: Path, ending: str) -> None:
    columns = {"land": ["DE", "NA", "FR", "US", "NA", "IT"] * 10, "size": ["S", "NA", "M"] * 20}
    graph, told = made(tmp_path / "t", columns, ending=ending)
    land, size = schema_of(graph).nodes
    assert (land.gaps, size.gaps) == (0, 20)
    assert "NA" in land.categories
    assert "land: NA is taken for a code like the others" in told
    assert "size: NA" not in told


def test_numbers_of_a_file_that_begin_with_zeros_are_names(tmp_path: Path) -> None:
    columns = {"zip": ["01500", "1500", "80331", "04109"] * 15, "size": [1, 20, 300, 4000] * 15}
    graph, _ = made(tmp_path / "t", columns, ending="csv")
    place, size = schema_of(graph).nodes
    assert (place.kind, size.kind) == ("category", "number")
    assert place.categories == ("01500", "04109", "1500", "80331")
    assert graph.x[:4, 1].tolist() == [1, 20, 300, 4000]


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["€ 48,500", "€ 1,250", "€ 980", "€ 1,234,567"], [48500, 1250, 980, 1234567]),
        (["48,500", "1,250.5", "7", "-2,000"], [48500, 1250.5, 7, -2000]),
        (["EUR 48500", "12 USD", "GBP 3,000", "4 CHF"], [48500, 12, 3000, 4]),
    ],
)
def test_thousands_and_money_are_numbers(tmp_path: Path, cells: list[str], values: list) -> None:
    graph, _ = made(tmp_path / "t", {"pay": cells * 15})
    assert schema_of(graph).nodes[0].kind == "number"
    assert graph.x[:4, 0].tolist() == values


def test_commas_before_fractions_are_not_thousands(tmp_path: Path) -> None:
    graph, _ = made(tmp_path / "t", {"pay": ["0,125", "1,250", "2,5", "1,750"] * 15})
    assert schema_of(graph).nodes[0].kind == "category"


def test_edges_from_a_node_to_itself_are_told(tmp_path: Path) -> None:
    edges = {"src": [0, 1, 2, 3], "dst": [0, 1, 3, 2]}
    graph, told = made(tmp_path / "t", {"id": [0, 1, 2, 3], "a": [1.5, 2.5, 3.5, 4.5]}, edges)
    assert graph.num_edges == 4
    assert "2 edges lead from a node to itself; kept." in told
