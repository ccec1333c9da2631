"""The benchmark's graphs, gate, bills and ratios, against figures worked out by hand."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.measure import starved
from benchmarks.value import (
    billed,
    common,
    facts_of,
    gate,
    gpu_rows,
    make_graph,
    measure_gpu,
    ratios,
    row_of,
)
from siafu.config import make_config
from siafu.launch import Run
from siafu.plan import PoolUsage, Servers, make_bill, read_prices

PRICES = read_prices()
CPU = Servers(instance="c5.large", ranks=2)


def arguments(**changes) -> Namespace:
    asked = {"prices": None, "instance": "c5.large", "gpu_instance": "p3.2xlarge", "epochs": 4}
    return Namespace(**{**asked, "ranks": 2, "repeats": 1, "gpu_results": "none", **changes})


@pytest.mark.parametrize("name", ["sparse", "dense"])
def test_graphs_are_the_same_everywhere(name):
    one, other = make_graph(name, 0.05), make_graph(name, 0.05)
    assert facts_of(one) == facts_of(other)
    assert (one.src == other.src).all()
    assert one.num_edges == one.num_nodes * facts_of(one)["degree"]
    make_config(data=name, **common(one, 5))


def test_other_losses_are_refused():
    gate("x", [1.0, 0.5], [1.0, 0.5002])
    with pytest.raises(RuntimeError, match="x learns something else"):
        gate("x", [1.0, 0.5], [1.0, 0.51])
    with pytest.raises(RuntimeError, match="x learns something else"):
        gate("x", [1.0], [1.0, 0.5])


def test_a_bill_is_of_a_thousand_epochs_with_the_pools_share():
    usage = PoolUsage(requests=10, gb_seconds=2.0, sent_bytes=100)
    told = make_bill(PRICES, CPU, seconds=5.0, epochs=5, usage=usage).as_dict()
    bill = billed(PRICES, CPU, 0.36, Run(Path(), {"bill": told}))
    assert bill.servers_dollars == pytest.approx(2 * 0.1 * 0.085)
    assert bill.usage == usage.times(200)
    assert billed(PRICES, CPU, 0.36).usage == PoolUsage()


def test_ratios_by_hand():
    gpu = Servers(instance="p3.2xlarge", ranks=1)
    rows = [row_of("cpu", "", [0.2], billed(PRICES, CPU, 0.2))]
    rows.append(row_of("gpu", "", [0.01], billed(PRICES, gpu, 0.01)))
    found = ratios(rows)
    assert found["of"] == "cpu"
    # 2 x $0.085 for 20 times as long as $3.06 an hour.
    assert found["times cheaper than gpu"] == pytest.approx(3.06 / (20 * 0.17), rel=1e-3)
    assert found["times faster than gpu"] == pytest.approx(0.05)
    assert found["gpu dollars an hour for equal dollars"] == pytest.approx(3.4, rel=1e-3)
    assert found["gpu dollars an hour for equal value"] == pytest.approx(20 * 3.4, rel=1e-3)
    assert found["value over gpu"] == pytest.approx(3.06 / 68, rel=1e-3)


def test_ratios_of_a_pool_are_against_both_kinds_of_cpu():
    rows = [row_of(n, "", [0.2], billed(PRICES, CPU, 0.2)) for n in ("cpu", "cpu pipelined")]
    rows.append(row_of("cpu + pool", "", [0.1], billed(PRICES, CPU, 0.1)))
    found = ratios(rows)
    assert found["value over cpu"] == found["value over cpu pipelined"] == pytest.approx(4.0)


def test_a_pool_whose_workers_take_the_ranks_cores_is_not_compared(monkeypatch):
    rows = [row_of(n, "", [0.2], billed(PRICES, CPU, 0.2)) for n in ("cpu", "cpu + pool")]
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(2)))
    problem = starved(16, ranks=2)
    assert ratios(rows, problem) == {"of": "cpu + pool", "not compared": problem}
    assert problem is not None
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(18)))
    assert starved(16, ranks=2) is None
    assert starved(16, ranks=2, threads=2) is not None


def test_a_measured_line_is_taken_back(tmp_path):
    graph, path = make_graph("dense", 0.05), tmp_path / "gpu.jsonl"
    line = measure_gpu(graph, arguments(), tmp_path, "cpu")
    assert len(line["seconds"]) == 2  # of four epochs, two are not counted
    path.write_text(json.dumps(line) + "\n")
    (row,) = gpu_rows(graph, arguments(gpu_results=str(path)), line["losses"])
    assert row["dollars"] > 0


def test_the_gpus_line_must_be_of_this_graph_and_learn_alike(tmp_path, capsys):
    graph, path = make_graph("sparse", 0.01), tmp_path / "gpu.jsonl"
    line = {
        "facts": facts_of(graph),
        "losses": [1.0, 0.5],
        "seconds": [0.01],
        "cpu": "",
        "gpu": "V100",
    }
    other = {**line, "facts": {**facts_of(graph), "edges": 3}, "seconds": [7.0]}
    path.write_text("".join(json.dumps(row) + "\n" for row in (line, other)))
    asked = arguments(gpu_results=str(path))
    (row,) = gpu_rows(graph, asked, [1.0, 0.5])
    assert (row["epoch"]["median_ms"], row["price of the gpu"]) == (10.0, "paper")
    with pytest.raises(RuntimeError, match="the GPU on sparse learns"):
        gpu_rows(graph, asked, [1.0, 0.4])
    assert gpu_rows(make_graph("dense", 0.05), asked, [1.0]) == []
    assert "no GPU" in capsys.readouterr().out
