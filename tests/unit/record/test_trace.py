"""Traces: valid files, lanes that can be drawn, ranks joined, overlap measured."""

import json
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from siafu.errors import StoreError
from siafu.record import Span, Trace, busy_seconds, join_traces, overlap_seconds, read_trace

NOW = 1.8e9
"""Seconds since 1970, so that floats are as coarse as in a run."""


def made(spans: list[tuple[str, str, float, float]], rank: int = 0) -> Trace:
    """Return a trace of (category, lane, start, seconds)."""
    trace = Trace(rank)
    for number, (category, lane, start, seconds) in enumerate(spans):
        trace.add(f"task {number}", category, lane, start=NOW + start, seconds=seconds)
    return trace


def events_of(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["traceEvents"]


def drawn(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the complete events by the name of the thread they are drawn in."""
    events = events_of(path)
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"
    }
    lanes: dict[str, list[dict[str, Any]]] = {name: [] for name in threads.values()}
    for event in events:
        if event["ph"] == "X":
            lanes[threads[event["pid"], event["tid"]]].append(event)
    return lanes


def test_the_file_is_a_valid_trace(tmp_path: Path) -> None:
    spans = [("tensor", "w1", 0.5, 0.25), ("graph", "graph", 0.0, 0.75), ("graph", "graph", 1, 1)]
    trace = made(spans, rank=3)
    trace.write(tmp_path / "trace.json")
    events = events_of(tmp_path / "trace.json")
    names = {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    assert names == {"rank 3"}
    complete = [e for e in events if e["ph"] == "X"]
    assert len(complete) == 3
    for event in events:
        assert event.keys() >= {"ph", "name", "pid", "tid", "ts", "args"}
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
    for event in complete:
        assert event["pid"] == 3
        assert event["ts"] >= 0
        assert event["dur"] >= 0
    assert [e["ts"] for e in complete] == sorted(e["ts"] for e in complete)
    assert complete[1]["ts"] == pytest.approx(500_000, abs=1)
    assert complete[1]["dur"] == pytest.approx(250_000, abs=1)
    assert complete[1]["cat"] == "tensor"
    assert set(drawn(tmp_path / "trace.json")) == {"graph", "w1"}
    assert list(tmp_path.iterdir()) == [tmp_path / "trace.json"]


def test_spans_come_back_as_they_were(tmp_path: Path) -> None:
    trace = Trace(1)
    trace.add("forward 0", "tensor", "w", start=NOW, seconds=0.5, epoch=3, attempt="first")
    trace.write(tmp_path / "trace.json")
    (span,) = read_trace(tmp_path / "trace.json")
    assert span == Span("forward 0", "tensor", "w", NOW, 0.5, 1, {"epoch": 3, "attempt": "first"})


def test_facts_that_are_no_numbers_are_valid_json(tmp_path: Path) -> None:
    trace = Trace(0)
    trace.add("loss", "graph", "graph", start=NOW, seconds=0.0, loss=float("nan"))
    trace.write(tmp_path / "trace.json")
    text = (tmp_path / "trace.json").read_text()
    json.loads(text, parse_constant=pytest.fail)
    assert read_trace(tmp_path / "trace.json")[0].args == {"loss": "nan"}


def test_spans_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    trace = Trace(0, limit=2)
    for number in range(5):
        trace.add("task", "graph", "graph", start=NOW + number, seconds=0.5)
    assert (len(trace.spans), trace.left_out) == (2, 3)
    trace.write(tmp_path / "0.json")
    join_traces([tmp_path / "0.json"], tmp_path / "all.json")
    labels = [e["args"].get("name") for e in events_of(tmp_path / "all.json")]
    assert "rank 0 (3 spans left out)" in labels


def test_negative_durations_are_not_written() -> None:
    assert made([("graph", "graph", 0, -0.1)]).spans[0].seconds == 0


def test_threads_may_add_at_once() -> None:
    trace = Trace(0)

    def work() -> None:
        for _ in range(200):
            with trace.span("task", "tensor", "w"):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(trace.spans) == 800


def test_a_span_of_what_fails_is_kept() -> None:
    trace = Trace(0)
    with pytest.raises(ZeroDivisionError), trace.span("task", "graph", "graph"):
        1 / 0  # noqa: B018
    assert [span.name for span in trace.spans] == ["task"]


def test_spans_after_each_other_share_a_lane(tmp_path: Path) -> None:
    trace = Trace(0)
    for _ in range(2000):
        with trace.span("task", "graph", "graph"):
            pass
    trace.write(tmp_path / "trace.json")
    assert set(drawn(tmp_path / "trace.json")) == {"graph"}


def test_a_lane_holds_only_what_viewers_can_draw(tmp_path: Path) -> None:
    partly = [("tensor", "pool", 0.0, 1.0), ("tensor", "pool", 0.5, 1.0), ("tensor", "pool", 1, 1)]
    nested = [("tensor", "pool", 3.0, 1.0), ("tensor", "pool", 3.25, 0.5)]
    touching = [("tensor", "pool", 5.0, 1.0 + 1e-6), ("tensor", "pool", 6.0, 1.0)]
    made([*partly, *nested, *touching]).write(tmp_path / "trace.json")
    lanes = drawn(tmp_path / "trace.json")
    assert {name: len(events) for name, events in lanes.items()} == {"pool": 6, "pool (2)": 1}
    for events in lanes.values():
        for one, other in pairwise(events):
            ends = one["ts"] + one["dur"], other["ts"] + other["dur"]
            apart, inside = other["ts"] >= ends[0] - 0.5, ends[1] <= ends[0] + 0.5
            assert apart or inside


def test_ranks_are_joined_on_one_clock(tmp_path: Path) -> None:
    paths = []
    for rank, start in enumerate([10.0, 4.0, 7.0]):
        trace = made([("graph", "graph", start, 1.0)], rank)
        paths.append(tmp_path / f"{rank}.json")
        trace.write(paths[-1])
    join_traces(paths, tmp_path / "all.json")
    complete = [e for e in events_of(tmp_path / "all.json") if e["ph"] == "X"]
    assert [e["pid"] for e in complete] == [1, 2, 0]
    assert [e["ts"] for e in complete] == pytest.approx([0, 3e6, 6e6], abs=1)
    starts = {span.rank: span.start - NOW for span in read_trace(tmp_path / "all.json")}
    assert starts == pytest.approx({0: 10, 1: 4, 2: 7}, abs=1e-5)


def test_a_trace_of_nothing(tmp_path: Path) -> None:
    Trace(0).write(tmp_path / "trace.json")
    assert read_trace(tmp_path / "trace.json") == []
    assert overlap_seconds([], "graph", "tensor") == 0


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", '{"traceEvents": 5, "otherData": {"left_out": {}}}'):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(StoreError, match=r"x\.json"):
            read_trace(tmp_path / "x.json")
    with pytest.raises(StoreError, match="none"):
        Trace(0).write(tmp_path / "none" / "x.json")


@pytest.mark.parametrize(
    ("graph", "tensor", "want"),
    [
        ([(0, 10)], [(2, 3), (7, 2)], 5),
        ([(0, 1)], [(1, 1)], 0),  # one after the other
        ([(0, 4)], [(1, 2), (2, 2)], 3),  # two tensors at once count once
        ([(0, 3), (2, 3)], [(1, 9)], 4),
        ([(0, 5)], [], 0),
        ([(0, 5)], [(2, 0)], 0),
        ([(0, 2), (4, 2)], [(1, 4)], 2),
    ],
)
def test_overlap_by_hand(graph: list, tensor: list, want: float) -> None:
    spans = [("graph", "graph", *span) for span in graph]
    spans += [("tensor", f"w{k}", *span) for k, span in enumerate(tensor)]
    trace = made(spans)
    assert overlap_seconds(trace.spans, "graph", "tensor") == pytest.approx(want, abs=1e-5)
    assert overlap_seconds(trace.spans, "tensor", "graph") == pytest.approx(want, abs=1e-5)


def test_overlap_is_of_one_ranks_spans() -> None:
    first = made([("graph", "graph", 0, 2), ("tensor", "w", 1, 2)], rank=0)
    second = made([("graph", "graph", 0, 5), ("tensor", "w", 5, 5)], rank=1)
    spans = [*first.spans, *second.spans]
    assert overlap_seconds(spans, "graph", "tensor") == pytest.approx(1, abs=1e-5)


def test_overlap_of_a_category_with_itself() -> None:
    spans = made([("tensor", "a", 0, 3), ("tensor", "b", 1, 3), ("tensor", "c", 2, 1)]).spans
    assert overlap_seconds(spans, "tensor", "tensor") == pytest.approx(2, abs=1e-5)
    assert busy_seconds(spans, "tensor") == pytest.approx(4, abs=1e-5)
    assert busy_seconds(spans, "graph") == 0


def test_overlap_survives_the_file(tmp_path: Path) -> None:
    trace = made([("graph", "graph", 0, 2), ("tensor", "w", 1, 2)])
    trace.write(tmp_path / "trace.json")
    got = overlap_seconds(read_trace(tmp_path / "trace.json"), "graph", "tensor")
    assert got == pytest.approx(1, abs=1e-5)
