"""Plans: what a graph's numbers say of its cuts, what fits, what is best, and bad input."""

import datetime
import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from siafu.config import make_config
from siafu.errors import ConfigError
from siafu.graph import graph_from_edges
from siafu.ingest import load
from siafu.launch import make_plan
from siafu.launch.planning import plan_run
from siafu.launch.statistics import spec_of
from siafu.partitioning import Cut, assign, partition_graph, score
from siafu.plan import (
    KNOWN,
    CutStatistics,
    GraphStatistics,
    Link,
    Machine,
    Outlook,
    Plan,
    Setting,
    foresee,
    graph_statistics,
    read_bandwidth,
    read_latency,
    read_machine,
    read_statistics,
)
from siafu.plan.machine import Rates, at_width
from siafu.plan.seconds import Phases
from siafu.strategy import PRESETS

RATES = Rates(
    threads=1,
    near={16: 4e-10, 256: 1e-10},
    far={16: 3e-9, 256: 1e-9},
    product={16: 1e-10, 256: 5e-11},
    element=5e-10,
    draw=2e-9,
    select=5e-10,
    attend=(1.5e-9, 4e-9),
    maximum=4e-10,
    code=4e-9,
    sample=2e-8,
)
MACHINE = Machine(
    name="test",
    date=datetime.date(2026, 1, 1),
    torch="2",
    cores=16,
    rates=(RATES, RATES.model_copy(update={"threads": 16, "element": 1e-10, "draw": 1.5e-10})),
    layer_seconds=3e-4,
    attend_layer_seconds=5e-4,
    step_seconds=5e-4,
    link=Link(bytes_per_second=2e9, latency_seconds=2e-5, is_shared=True),
)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    path = tmp_path / "machine.json"
    path.write_text(MACHINE.model_dump_json())
    return path


def planned(data: str, machine: Path, **settings: object) -> Plan:
    """Return a plan by the costs above."""
    return plan_run(make_config(data=data, **settings), machine=machine)


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_halo_of_random_cuts_follows_from_degrees(parts: int) -> None:
    graph = load("powerlaw:3000")
    found = graph_statistics(graph)
    cut = CutStatistics.of(score(graph, assign(graph, Cut(num_parts=parts, method="hash")), parts))
    assert found.random_halo(parts) == pytest.approx(cut.halo_rows, rel=0.1)


def test_law_goes_through_the_cuts_it_is_fitted_to_and_never_above_random() -> None:
    graph = KNOWN["arxiv"]
    left_out = graph.model_copy(update={"cuts": tuple(c for c in graph.cuts if c.ranks != 8)})
    assert left_out.at(8).halo_rows == pytest.approx(graph.at(8).halo_rows, rel=0.15)
    assert not left_out.at(8).is_measured
    assert graph.at(8).is_measured
    for ranks in (2, 64, 1024):
        assert graph.at(ranks).halo_rows <= graph.random_halo(ranks)
        assert graph.at(ranks).largest_halo <= graph.nodes


def test_plan_reaches_a_thousand_machines_from_numbers_alone(machine: Path) -> None:
    found = planned("papers100M", machine, model="sage", ranks=1024, layers=3, hidden=256)
    assert found.setting.link is not None
    assert {one.ranks for one in found.outlooks} == {1 << power for power in range(11)}
    halo = [one for one in found.outlooks if one.name == "halo"]
    assert [one.memory_bytes for one in halo] == sorted(
        (one.memory_bytes for one in halo), reverse=True
    )
    assert any("still help" in line or "do not help" in line for line in found.sentences())
    json.dumps(found.as_dict())


def test_memory_decides_what_fits_and_stages_fill_the_gap(machine: Path) -> None:
    free = planned("products", machine, model="gat", ranks=16, memory="10TB")
    halo = next(one for one in free.outlooks if (one.name, one.ranks) == ("halo", 16))
    sar = next(one for one in free.outlooks if (one.name, one.ranks) == ("sar", 16))
    assert sar.memory_bytes < halo.memory_bytes
    middle = (sar.memory_bytes + halo.memory_bytes) // 2
    tight = planned("products", machine, model="gat", ranks=16, memory=f"{middle / 1e9:.3f}GB")
    at_16 = [one for one in tight.outlooks if one.ranks == 16]
    assert not next(one.fits for one in at_16 if one.strategy.stages == 1)
    between = [one for one in at_16 if one.name == "halo" and one.strategy.stages != 1]
    assert len(between) == 1
    assert between[0].fits
    assert "--stages" in between[0].flags
    assert tight.fastest is not None
    assert tight.fastest.fits


def test_too_little_memory_is_answered_with_the_smallest_that_works(machine: Path) -> None:
    found = planned("products", machine, model="gat", ranks=8, memory="1MB")
    (line,) = found.sentences()
    assert "the smallest that works is --strategy sar --ranks 8 with --memory" in line
    assert found.fastest is None
    given = line.split("--memory ")[1].split("GB")[0]
    again = planned("products", machine, model="gat", ranks=8, memory=f"{given}GB")
    assert again.fastest is not None


def test_wins_and_losses_are_told_as_such(machine: Path) -> None:
    found = planned("products", machine, model="gat", ranks=2, memory="10TB")
    one, two = (next(o for o in found.outlooks if o.ranks == ranks) for ranks in (1, 2))
    half, long = (replace(two, phases=Phases(exchange=one.seconds * times)) for times in (0.5, 1.7))

    def told(*outlooks: Outlook) -> str:
        return "\n".join(replace(found, outlooks=outlooks).sentences())

    assert "it is 2 times as fast as one rank." in told(one, half)
    assert "More ranks still help at 2 ranks." in told(one, half)
    slow = told(replace(one, budget=1), long)
    assert "it takes 1.7 times as long as one rank, which does not fit." in slow
    assert "Fewer than 2 ranks do not fit; whether more are faster is told by --ranks 4." in slow
    assert "Whether more are faster is told by --ranks 2." in told(one)


def test_graph_without_edges_has_a_plan(machine: Path) -> None:
    graph = graph_from_edges([], [], 50)
    found = graph_statistics(graph)
    assert found.at(4).halo_rows == 0
    plan = make_plan(_saved(found, machine.parent), machine=machine, ranks=4, model="gat")
    assert plan.fastest is not None
    assert plan.sentences()
    by_rows = [one for one in plan.outlooks if one.name != "columns"]
    assert all(layer.total == 0 for one in by_rows for layer in one.traffic.layers)


def _saved(found: GraphStatistics, folder: Path) -> Path:
    path = folder / "statistics.json"
    path.write_text(found.model_dump_json())
    return path


def test_plan_of_parts_and_of_data_have_the_bytes_of_that_cut(
    tmp_path: Path, machine: Path
) -> None:
    graph = load("planted:400")
    partition_graph(graph, tmp_path / "parts", num_parts=2)
    of_parts = planned(str(tmp_path / "parts"), machine, ranks=2)
    of_data = planned("planted:400", machine, ranks=2)
    pairs = zip(of_parts.outlooks, of_data.outlooks, strict=True)
    for one, other in pairs:
        assert one.is_measured
        assert one.strategy == other.strategy
        if one.name != "batchgnn":
            assert one.traffic == other.traffic
    assert of_parts.setting.link is None


def test_prices_make_money_a_reason(machine: Path) -> None:
    found = planned("products", machine, model="sage", ranks=8, instance="c5.xlarge")
    assert found.cheapest is not None
    assert any(line.startswith("Money:") for line in found.sentences())
    assert all(one.dollars is not None and one.dollars > 0 for one in found.outlooks)


@pytest.mark.parametrize(
    ("text", "want"), [("10Gbit", 1.25e9), ("1.2GB", 1.2e9), ("100 mbit/s", 1.25e7), ("8bit", 1.0)]
)
def test_bandwidths_are_read(text: str, want: float) -> None:
    assert read_bandwidth(text) == pytest.approx(want)


@pytest.mark.parametrize(("text", "want"), [("50us", 5e-5), ("1 ms", 1e-3), ("0.1s", 0.1)])
def test_latencies_are_read(text: str, want: float) -> None:
    assert read_latency(text) == pytest.approx(want)


@pytest.mark.parametrize("text", ["", "fast", "0Gbit", "10", "-1Gbit", "1.2.3GB"])
def test_bandwidths_that_can_not_be_read(text: str) -> None:
    with pytest.raises(ConfigError, match="bandwidth can't be read"):
        read_bandwidth(text)


def test_latencies_that_can_not_be_read() -> None:
    with pytest.raises(ConfigError, match="latency can't be read"):
        read_latency("soon")


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("nodes: 10\nedges: 5\n", "features"),
        ("nodes: 10\nedges: 5\nfeatures: 3\nnoodles: 4\n", "noodles"),
        ("nodes: -1\nedges: 5\nfeatures: 3\n", "nodes"),
        ("- 1\n", "key: value"),
    ],
)
def test_damaged_statistics_are_told(tmp_path: Path, text: str, seen: str) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="statistics of a graph can't be read") as caught:
        read_statistics(path)
    assert seen in caught.value.seen


def test_damaged_costs_are_told(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_text('{"name": "x"}')
    with pytest.raises(ConfigError, match="costs of a machine can't be read"):
        read_machine(path)


def test_own_models_and_dynamic_ones_are_refused(machine: Path) -> None:
    for model in ("model.py:Net", "tm-gcn"):
        with pytest.raises(ConfigError, match="built-in models of static graphs"):
            planned("products", machine, model=model)


def test_ranks_together_are_held_back_by_what_all_threads_reach() -> None:
    alone, shared = MACHINE.shared(1), MACHINE.shared(16)
    assert (alone.threads, shared.threads) == (16, 1)
    assert alone.limited(1).of("element") == pytest.approx(RATES.element)
    assert shared.of("element") == pytest.approx(8e-10)  # of 16 threads, half the cost at best
    assert MACHINE.shared(4).of("draw") == pytest.approx(max((2e-9 * 1.5e-10) ** 0.5, 3e-10))


def test_costs_between_widths_lie_between_their_costs() -> None:
    costs = {16: 4.0, 64: 2.0, 256: 1.0}
    assert 1.0 < at_width(costs, 100) < 2.0
    assert at_width(costs, 1000) == 1.0
    assert at_width(costs, 8) == 8.0


def test_narrower_numbers_are_quicker_where_a_device_computes_in_them(tmp_path: Path) -> None:
    costs = {}
    for device in ("cpu", "GPU"):
        path = tmp_path / f"{device}.json"
        path.write_text(MACHINE.model_copy(update={"device": device}).model_dump_json())
        for precision in ("bf16", "float32", "float64"):
            found = planned("products", path, model="sage", ranks=4, precision=precision)
            costs[device, precision] = found.outlooks[0]
    gpu, cpu = (
        [costs[device, kind] for kind in ("bf16", "float32", "float64")]
        for device in ("GPU", "cpu")
    )
    for narrow, wide in itertools.pairwise(gpu):
        assert 2 * narrow.phases.edges == pytest.approx(wide.phases.edges, rel=0.2)
        assert narrow.phases.products < wide.phases.products
    assert cpu[0].phases.edges == pytest.approx(cpu[1].phases.edges, rel=0.2)  # widened first
    assert cpu[2].phases.products == pytest.approx(2 * cpu[1].phases.products)


def test_a_row_crosses_once_per_host() -> None:
    graph, halo = KNOWN["arxiv"], PRESETS["halo"]
    config = make_config(data="arxiv", model="sage", ranks=4)
    slow = Link(bytes_per_second=1e7, latency_seconds=5e-5)
    told = {}
    for here, once in ((1, True), (2, True), (2, False), (4, True)):
        at = Setting(
            config=config.resolved(),
            spec=spec_of(config, graph),
            statistics=graph,
            machine=MACHINE,
            link=slow,
            ranks_per_host=here,
        )
        told[here, once] = foresee(at, "halo", replace(halo, once_per_host=once), 4)
    shared, alone = told[2, True], told[2, False]
    assert shared.traffic == alone.traffic  # each rank has the row once, from whomever
    times = shared.phases.exchange / alone.phases.exchange
    assert times == pytest.approx(0.77, abs=0.03)  # 41.4 of 53.4 MB were measured
    assert told[4, True].phases.exchange < 0.1 * told[1, True].phases.exchange  # nothing crosses
