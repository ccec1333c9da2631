"""Rows of the benchmark of macrobatches: beside both baselines, and never of other weights."""

from typing import Any

import pytest

from benchmarks.macrobatch import AHEAD, IN_TURN, chosen, contestants, rows_of, say_reach


def told(seconds: float, weights: str = "same") -> dict[str, Any]:
    return {
        "fetch_seconds": seconds / 2,
        "epoch_seconds": seconds,
        "feature_bytes": 1000,
        "sample_bytes": 10,
        "messages": 4,
        "weights": weights,
    }


def test_rows_stand_beside_both_baselines() -> None:
    found = {IN_TURN: told(12.0), AHEAD: told(6.0), "k=32": told(3.0)}
    rows = {row["contestant"]: row for row in rows_of([found, found], {"hosts": 2})}
    assert rows["k=32"]["times_epoch"] == 2.0
    assert rows["k=32"]["times_in_turn"] == 4.0
    assert rows[AHEAD]["times_in_turn"] == 2.0
    assert rows[AHEAD]["messages"] == 8
    del found[IN_TURN]
    assert "times_in_turn" not in rows_of([found], {"hosts": 1})[0]


def test_other_weights_are_an_error_unless_something_else_is_computed() -> None:
    rows_of([{AHEAD: told(6.0), "k=32, aggregated": told(3.0, "other")}], {"hosts": 1})
    with pytest.raises(RuntimeError, match="k=32 ends with other weights"):
        rows_of([{AHEAD: told(6.0), "k=32": told(3.0, "other")}], {"hosts": 1})


def test_contestants_are_chosen_by_name_and_k_1_is_among_them() -> None:
    assert chosen(None) == list(contestants())
    assert chosen("k=32;k=1, in turn") == [IN_TURN, AHEAD, "k=32"]
    with pytest.raises(SystemExit, match="no such contestants"):
        chosen("k=3")


def test_a_graph_that_one_minibatch_all_but_covers_is_marked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say_reach({"1": 0.66, "32": 1.0})
    told = capsys.readouterr().out
    assert "k=1 reaches 66%, k=32 reaches 100%" in told
    assert "say little" in told
    say_reach({"1": 0.01, "32": 0.2})
    assert "say little" not in capsys.readouterr().out
