"""Events from files and objects as dynamic graphs, and what is said about the data."""

import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siafu.errors import DataError
from siafu.graph import IntegerIds
from siafu.ingest import (
    EventOptions,
    Events,
    drifting,
    graph_from_events,
    is_dynamic,
    load_dynamic,
)

DATA = os.environ.get("SIAFU_DATA")

TEXT = """source,target,timestamp,rating,label,remark
ann,bob,2024-01-01,1,good,-
bob,cat,2024-01-20,2,bad,-
ann,cat,2024-01-03,1,good,-
ann,bob,2024-01-02 12:00:00,3,good,-
"""


def test_csv_of_dates_and_text_ids(tmp_path):
    (tmp_path / "e.csv").write_text(TEXT)
    graph, notes = load_dynamic(tmp_path / "e.csv", window="7d", edge_life=2)
    assert graph.ids.to_arrow().to_pylist() == ["ann", "bob", "cat"]
    assert graph.dates
    np.testing.assert_array_equal(graph.times - graph.times[0], [0, 7 * 86400, 14 * 86400])
    assert [list(s.weight) for s in graph.iterate()] == [[2, 1], [2, 1], [1]]
    assert load_dynamic(tmp_path / "e.csv", window=7 * 86400)[0].num_snapshots == 3
    assert graph.edge_class_names == ("bad", "good")
    assert list(graph.edge_events(0).label) == [1, 1, 1]
    assert list(graph.edge_events(0).weight) == [1, 3, 1]
    assert len(graph.edge_events(1).src) == 0
    assert notes == [
        "Event columns: src source, dst target, time timestamp, weight rating, label label.",
        "Event columns not used: remark.",
        "2 events out of order: sorted by time.",
        "3 snapshots, one for each window of 7d.",
        "1 window without events.",
        "Events have classes: edges are weighted by their number of events.",
        "1 event with the ends of another in their window: merged into one edge.",
    ]


def test_a_weight_that_was_named_is_the_weight(tmp_path):
    (tmp_path / "e.csv").write_text(TEXT)
    named = EventOptions(weight="rating")
    graph, notes = load_dynamic(tmp_path / "e.csv", window="7d", edge_life=2, options=named)
    assert [list(s.weight) for s in graph.iterate()] == [[4, 1], [4, 1], [2]]
    assert not any("weighted by their number" in note for note in notes)
    (tmp_path / "e.csv").write_text(TEXT.replace(",3,", ",-3,"))
    with pytest.raises(DataError, match="below 0") as caught:
        load_dynamic(tmp_path / "e.csv", window="7d", options=named)
    assert caught.value.seen == "-3 in column 'rating'"


def test_times_come_back_as_they_were(tmp_path):
    times = [1700000287850624225, 1700000287850624226, 1700000287850624999]
    ends = {"src": [1, 2, 1], "dst": [2, 3, 3]}
    pq.write_table(pa.table({**ends, "time": times}), tmp_path / "whole.parquet")
    whole, _ = load_dynamic(tmp_path / "whole.parquet")
    assert whole.event_time.tolist() == times
    assert whole.events_between(times[1], times[2]).time.tolist() == times[1:2]
    assert whole.events_between(-math.inf, times[2]).time.tolist() == times[:2]
    dates = pa.array(times, pa.timestamp("ns"))
    pq.write_table(pa.table({**ends, "time": dates}), tmp_path / "dates.parquet")
    _, notes = load_dynamic(tmp_path / "dates.parquet")
    assert any("finer digits are cut off" in note for note in notes)


@pytest.mark.parametrize(("step", "text"), [("1h", "10765s"), ("1ms", "0.00299")])
def test_many_dates_have_a_hundred_windows(tmp_path, step, text):
    times = np.datetime64("2023-01-01") + np.arange(300) * np.timedelta64(int(step[0]), step[1:])
    lines = [f"{k % 7},{k % 5},{time}" for k, time in enumerate(times)]
    (tmp_path / "e.csv").write_text("\n".join(["src,dst,time", *lines]))
    graph, notes = load_dynamic(tmp_path / "e.csv")
    assert 99 <= graph.num_snapshots <= 101
    assert any(f"each window of {text}" in note for note in notes)


def test_text_id_that_is_empty_is_missing(tmp_path):
    (tmp_path / "e.csv").write_text("src,dst,time\na,b,1\n,b,2\na,b,3\n")
    with pytest.raises(DataError, match="An id is missing") as error:
        load_dynamic(tmp_path / "e.csv", window=1)
    assert "'src'" in error.value.seen


def test_parquet_and_csv_give_the_same_graph(tmp_path):
    (tmp_path / "a.csv").write_text("u,v,t\n900,5,3\n5,-7,1\n5,-7,9\n")
    pq.write_table(
        pa.table({"u": [900, 5, 5], "v": [5, -7, -7], "t": [3, 1, 9]}), tmp_path / "b.pq"
    )
    graphs = [load_dynamic(tmp_path / name, window=2)[0] for name in ("a.csv", "b.pq")]
    for graph in graphs:
        assert list(graph.ids.values) == [-7, 5, 900]
        assert graph.num_snapshots == 5
    for one, other in zip(*(graph.iterate() for graph in graphs), strict=True):
        assert one.equals(other)


def test_a_file_without_header_and_columns_by_option(tmp_path):
    rows = ["6,2,4,1289241911.7", "6,5,2,1289241941.5", "1,15,1,1289243140.3"]
    (tmp_path / "otc.csv").write_text("\n".join(rows))
    graph, notes = load_dynamic(tmp_path / "otc.csv", window="10m")
    assert list(graph.ids.values) == [1, 2, 5, 6, 15]
    assert any("no header" in note for note in notes)
    (tmp_path / "odd.csv").write_text("a,b,when,kilos\n1,2,5,7\n2,1,6,8\n")
    options = EventOptions(src="a", dst="b", time="when", weight="kilos", id_type="text")
    graph, _ = load_dynamic(tmp_path / "odd.csv", options=options)
    assert graph.ids.to_arrow().to_pylist() == ["1", "2"]
    assert list(graph.edge_events(1).weight) == [8]


def test_a_node_table_beside_the_events(tmp_path):
    (tmp_path / "events.csv").write_text("src,dst,t\nb,a,1\na,c,2\n")
    nodes = "id,label,f0,f1\nc,red,1,2\na,blue,3,4\nb,,5,6\nd,red,0,0\n"
    (tmp_path / "nodes.csv").write_text(nodes)
    graph, _ = load_dynamic(tmp_path, window=1)
    assert graph.ids.to_arrow().to_pylist() == ["c", "a", "b", "d"]
    assert graph.class_names == ("blue", "red")
    assert list(graph.y) == [1, 0, -1, 1]
    assert graph.features(0).tolist() == [[1, 2], [3, 4], [5, 6], [0, 0]]
    assert list(graph.edge_events(0).src) == [2]
    (tmp_path / "events.csv").write_text("src,dst,t\nb,a,1\na,x,2\n")
    with pytest.raises(DataError, match="node table does not have"):
        load_dynamic(tmp_path / "events.csv", options=EventOptions(nodes=tmp_path / "nodes.csv"))


def test_a_word_in_a_feature_column_of_the_node_table_is_refused(tmp_path):
    (tmp_path / "events.csv").write_text("src,dst,t\n0,1,1\n1,2,2\n")

    def load(words):
        cells = [f"{row}.5" for row in range(100 - len(words))] + words
        rows = [f"{row},{cell},town {row}" for row, cell in enumerate(cells)]
        (tmp_path / "nodes.csv").write_text("\n".join(["id,height,home", *rows]) + "\n")
        return load_dynamic(tmp_path, window=1)

    with pytest.raises(DataError, match="cells that are none") as caught:
        load(["tall"])
    assert caught.value.seen.startswith("column 'height': 'tall' in data row 99 ")
    # text it is where more cells are words: a note says why it is not used
    graph, notes = load(["tall", "small"])
    assert graph.x is None
    told = "\n".join(notes)
    assert "mostly numbers, but 'tall' in row 98" in told
    assert "home    text     not used" in told


def test_windows_of_events_of_units_and_of_every_time(tmp_path):
    rows = "".join(f"{i % 3},{(i + 1) % 3},{i * 1000}\n" for i in range(10))
    (tmp_path / "e.csv").write_text("src,dst,t\n" + rows)

    def load(**settings):
        return load_dynamic(tmp_path / "e.csv", **settings)[0]

    assert [len(load(window="4e").edge_events(t).src) for t in range(3)] == [4, 4, 2]
    assert load(window="4e", options=EventOptions(partial_window="drop")).num_snapshots == 2
    assert load(window="10e").num_snapshots == 1
    assert load(window="5e", options=EventOptions(partial_window="drop")).num_snapshots == 2
    assert load(window="2s", options=EventOptions(time_unit="ms")).num_snapshots == 5
    assert load().num_snapshots == load(window="each").num_snapshots == 10
    overlapping = load(window=4000, stride=2000)
    assert overlapping.overlapping
    assert not load(window=4000, stride=4000).overlapping
    assert [len(overlapping.edge_events(t).src) for t in range(5)] == [4, 4, 4, 4, 2]
    assert overlapping.num_events == 18


def test_many_times_without_a_window_are_cut_into_a_hundred(tmp_path):
    (tmp_path / "e.csv").write_text("src,dst,t\n" + "".join(f"1,2,{i}\n" for i in range(999)))
    graph, notes = load_dynamic(tmp_path / "e.csv")
    assert graph.num_snapshots == 100
    assert any("100 snapshots" in note for note in notes)


def test_npz_with_a_signal_over_a_fixed_graph(tmp_path):
    signal = np.arange(12, dtype=np.float32).reshape(4, 3)
    path = tmp_path / "s.npz"
    np.savez(path, src=[0, 1], dst=[1, 2], t=[0, 0], signal=signal, node_id=["a", "b", "c"])
    graph, _ = load_dynamic(path)
    assert is_dynamic(path)
    assert graph.signal.shape == (4, 3, 1)
    assert [s.num_edges for s in graph.iterate()] == [2, 2, 2, 2]
    assert graph.deltas.num_changes == 0
    assert graph.ids.to_arrow().to_pylist() == ["a", "b", "c"]


def test_npz_edges_are_as_old_as_the_node_they_start_at(tmp_path):
    np.savez(tmp_path / "p.npz", edge_index=[[2, 1], [0, 0]], node_time=[2000, 2001, 2005])
    graph, _ = load_dynamic(tmp_path / "p.npz", window=1)
    assert [len(graph.edge_events(t).src) for t in range(5)] == [1, 0, 0, 0, 1]


def test_drifting_is_learnable_and_the_same_every_time():
    one, other = drifting(80, num_steps=6), drifting(80, num_steps=6)
    np.testing.assert_array_equal(one.src, other.src)
    together = one.y[one.time, one.src] == one.y[one.time, one.dst]
    assert (together == one.label).mean() > 0.95
    pairs = [set(zip(one.src[one.time == t], one.dst[one.time == t], strict=True)) for t in (2, 3)]
    assert 0.3 < len(pairs[0] & pairs[1]) / len(pairs[0]) < 0.7
    assert is_dynamic("drifting")
    assert load_dynamic("drifting:1k")[0].num_nodes == 1000


def test_pyg_temporal_data_and_lists_of_data():
    torch = pytest.importorskip("torch")
    pyg = pytest.importorskip("torch_geometric.data")
    ends = {"src": torch.tensor([0, 1, 2]), "dst": torch.tensor([1, 2, 0])}
    events = pyg.TemporalData(**ends, t=torch.tensor([3, 1, 2]), y=torch.tensor([0, 1, 1]))
    graph, notes = load_dynamic(events, window=1)
    assert [list(graph.edge_events(t).label) for t in range(3)] == [[1], [1], [0]]
    assert "1 event out of order: sorted by time." in notes
    edges = [torch.tensor([[0, 1], [1, 2]]), torch.empty(2, 0, dtype=torch.int64)]
    more = {"x": torch.ones(3, 2), "y": torch.arange(3)}
    steps = [pyg.Data(edge_index=edge_index, **more) for edge_index in edges]
    graph, _ = load_dynamic(steps)
    assert [s.num_edges for s in graph.iterate()] == [2, 0]
    assert graph.x.shape == (2, 3, 2)
    assert graph.num_classes == 3
    forecast = [pyg.Data(edge_index=edges[0], y=torch.rand(3), num_nodes=3) for _ in range(2)]
    assert load_dynamic(forecast)[0].signal.shape == (2, 3, 1)


class Signal:
    """What PyG Temporal's signals have; its package is not needed to read them."""

    features = tuple(np.arange(6.0).reshape(3, 2) + t for t in range(4))
    targets = tuple(np.arange(3.0) * 2 + 2 + t for t in range(4))


def test_pyg_temporal_signals_static_and_changing():
    static, changing = Signal(), Signal()
    static.edge_index, static.edge_weight = np.array([[0, 1], [1, 2]]), np.array([0.5, 2.0])
    changing.edge_indices = [np.array([[0], [t % 3]]) for t in range(4)]
    changing.edge_weights = [np.ones(1)] * 4
    graph, _ = load_dynamic(static)
    assert [list(s.weight) for s in graph.iterate()] == [[0.5, 2.0]] * 4
    np.testing.assert_array_equal(graph.signal[1:, :, 0], Signal.targets[:-1])
    np.testing.assert_array_equal(graph.signal[0, :, 0], Signal.features[0][:, -1])
    graph, _ = load_dynamic(changing)
    assert [int(s.dst()[0]) for s in graph.iterate()] == [0, 1, 2, 0]
    assert isinstance(graph.ids, IntegerIds)


@pytest.mark.skipif(not DATA, reason="SIAFU_DATA is not set")
@pytest.mark.parametrize(
    ("name", "settings", "snapshots", "events"),
    [
        ("dyn_bitcoin_otc", {"window": 1_200_000}, 138, 35_592),
        ("dyn_bitcoin_otc", {"window": "14d", "partial": "drop"}, 135, 35_569),
        ("dyn_uci_messages", {"window": 190_080, "partial": "drop"}, 88, 59_803),
        ("dyn_chess", {}, 100, 65_053),
        ("dyn_dblp_coauthor", {}, 25, 185_480),
        ("dyn_us_legis", {}, 12, 60_396),
        ("sig_chickenpox", {}, 521, 102),
        ("sig_england_covid", {}, 61, 82_529),
    ],
)
def test_public_sets_have_as_many_windows_as_published(name, settings, snapshots, events):
    options = EventOptions(partial_window=settings.pop("partial", "keep"))
    path = Path(DATA) / f"{name}.npz"
    assert is_dynamic(path)
    graph, _ = load_dynamic(path, **settings, edge_life=10, options=options)
    assert (graph.num_snapshots, graph.num_events) == (snapshots, events)
    last = graph.num_snapshots - 1
    for got in graph.iterate(last // 2, last // 2 + 3):
        assert np.all(np.diff(got.keys()) > 0)
    assert got.equals(graph.snapshot(last // 2 + 2))


def test_events_of_one_time_are_told() -> None:
    at_once = Events(
        name="once",
        ids=IntegerIds(np.arange(3)),
        src=np.array([0, 1]),
        dst=np.array([1, 2]),
        time=np.array([7, 7]),
    )
    graph, notes = graph_from_events(at_once)
    assert graph.num_snapshots == 1
    assert "All events have one time: there is one snapshot." in notes
    for other in (replace(at_once, time=np.array([7, 8])), replace(at_once, num_steps=9)):
        assert not any("one time" in note for note in graph_from_events(other)[1])


@pytest.mark.parametrize("name", ["fee", "amount"])
def test_a_feature_missing_in_one_file_of_two(tmp_path: Path, name: str) -> None:
    """Also where its name is that of a weight."""
    (tmp_path / "a.csv").write_text(f"src,dst,t,{name}\na,b,1,2\nb,c,2,3\n")
    (tmp_path / "b.csv").write_text("src,dst,t\na,b,3\nb,c,4\n")
    with pytest.raises(DataError, match=f"no column '{name}'") as refused:
        load_dynamic(tmp_path, window=1, options=EventOptions(attr=(name,)))
    assert "b.csv" in str(refused.value)
    assert "leave it out of --edge-attr" in str(refused.value)
    assert "--columns" not in str(refused.value)
