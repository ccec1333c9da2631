"""Latency counts as hidden only where simulated workers have cores of their own."""

from typing import Any

from benchmarks.pipeline import rows_of


def found() -> dict[str, dict[str, Any]]:
    def side(seconds: float) -> dict[str, Any]:
        return {"seconds": [seconds], "losses": [1.0], "beside": [2.0]}

    return {
        "synchronous": side(2.0),
        "cloud 0ms": side(1.0),
        "cloud 0ms, taking turns": side(1.0),
        "cloud 100ms": side(1.25),
        "cloud 100ms, taking turns": side(3.0),
    }


def test_latency_is_measured_against_none_for_a_pipeline_and_for_taking_turns() -> None:
    rows = {row["contestant"]: row for row in rows_of(found(), None)}
    assert rows["cloud 100ms"]["times_zero_latency"] == 1.25
    assert rows["cloud 100ms, taking turns"]["times_zero_latency"] == 3.0
    assert "times_zero_latency" not in rows["synchronous"]


def test_workers_that_share_cores_leave_no_figure_of_latency() -> None:
    rows = rows_of(found(), "16 simulated workers have 1 cores beside those of the ranks")
    assert not [row for row in rows if "times_zero_latency" in row]
    assert sum("latency_not_measured" in row for row in rows) == 4
