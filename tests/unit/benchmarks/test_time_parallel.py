"""What 128 GPUs would do is predicted from seconds of a GPU alone."""

from benchmarks.time_parallel import predictions_of
from siafu.ingest import drifting, graph_from_events


def test_nothing_is_predicted_from_seconds_of_a_cpu() -> None:
    graph = graph_from_events(drifting(30, num_steps=4), window="each", edge_life=3)[0]
    row = {"model": "tm-gcn", "ranks": 1, "block": 0, "epoch_seconds": 0.5}
    assert predictions_of([row], graph, "cpu") == []
    found = predictions_of([row], graph, "cuda")
    assert [each["exchange"] for each in found] == ["all-to-all", "banded"]
    assert all(each["speed_up"] > 1 for each in found)
