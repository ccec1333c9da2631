"""What is wrong with events is said by name, with what was seen and how to mend it."""

import numpy as np
import pytest

from siafu.errors import ConfigError, DataError
from siafu.ingest import EventOptions, drifting, load, load_dynamic

GOOD = "src,dst,t\na,b,1\nb,c,5\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("src,dst,t\na,b,soon\n", "neither a number nor a date"),
        ("src,dst,t\na,b,2024-01-01\nb,c,31.12.2024\n", "neither a number nor a date"),
        ("src,dst,t\na,b,2024-01-01T00:00:00Z\nb,c,2024-01-02T00:00:00\n", "different kinds"),
        ("src,dst,t\na,b,1\nb,c,2024-01-02\n", "different kinds"),
        ("src,dst,t\na,b,1\nb,c,\n", "has no time"),
        ("src,dst,t\na,b,1.5\nb,c,nan\n", "has no time"),
        ("src,dst,t\n", "no rows"),
        ("a,b,t\nx,y,1\n", "no column for src"),
        ("src,dst,when\nx,y,1\n", "no column for time"),
        ("src,dst,t\n1,2,1\n,3,2\n", "An id is missing"),
        ("src,dst,t,weight\na,b,1,2\nb,c,2,\n", "A number is missing"),
    ],
)
def test_bad_tables(tmp_path, text, problem):
    (tmp_path / "e.csv").write_text(text)
    with pytest.raises(DataError, match=problem):
        load_dynamic(tmp_path / "e.csv", window=1)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"window": "2w"}, "window is longer than the data"),
        ({"window": "soon"}, "window is no length of time"),
        ({"window": 0}, "window is no length of time"),
        ({"window": 1e300}, "window is longer than the data"),
        ({"window": 2, "stride": "-1"}, "stride is no length of time"),
        ({"window": 2, "stride": "1e"}, "different kinds"),
        ({"window": "each", "stride": 1}, "A stride needs"),
        ({"window": "0.000001"}, "too short"),
        ({"window": 1, "edge_life": 0}, "at least one snapshot"),
        ({"window": 1, "options": EventOptions(weighting="sum")}, "no weights to sum"),
        ({"options": EventOptions(time="wehn")}, "no column 'wehn'"),
    ],
)
def test_bad_settings(tmp_path, settings, problem):
    (tmp_path / "e.csv").write_text(GOOD)
    with pytest.raises((ConfigError, DataError), match=problem):
        load_dynamic(tmp_path / "e.csv", **settings)


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"dst": [0], "t": [1]}, "has no events"),
        ({"src": [0], "dst": [1]}, "have no times"),
        ({"src": [0, 1], "dst": [1, 0], "t": ["x", "y"]}, "times are not numbers"),
        ({"src": [0, 1], "dst": [1, 0], "t": [1]}, "t does not fit"),
        ({"src": [0, 9], "dst": [1, 0], "t": [1, 2], "num_nodes": 3}, "does not exist"),
        ({"src": [0, -1], "dst": [1, 0], "t": [1, 2]}, "does not exist"),
        ({"src": [0.5], "dst": [1.0], "t": [1]}, "whole numbers"),
        ({"src": [0, 1], "dst": [1, 0], "t": [1.0, np.inf]}, "missing, NaN"),
        ({"src": [0], "dst": [1], "t": [9], "signal": np.ones((3, 2))}, "outside the snapshots"),
        ({"src": [0, 1], "dst": [1, 0], "t": [1, 2], "y": [0]}, "y does not fit"),
    ],
)
def test_bad_arrays(tmp_path, arrays, problem):
    np.savez(tmp_path / "e.npz", **arrays)
    with pytest.raises(DataError, match=problem):
        load_dynamic(tmp_path / "e.npz")


def test_unknown_sources_and_choices():
    with pytest.raises(DataError, match="No such data set"):
        load_dynamic("no_such_thing")
    with pytest.raises(DataError, match="a dynamic graph, not a static one"):
        load("drifting")
    with pytest.raises(DataError, match="not a dynamic graph we know"):
        load_dynamic(42)
    with pytest.raises(DataError, match="size of a built-in"):
        load_dynamic("drifting:huge")
    with pytest.raises(DataError, match="too small"):
        drifting(3)
    with pytest.raises(ConfigError, match="time_unit"):
        EventOptions(time_unit="years")
    with pytest.raises(ConfigError, match="its own snapshots"):
        load_dynamic("drifting", window=3)
