"""What minibatches have of other ranks, told from a graph's numbers, beside what a run sends."""

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest

import siafu
from siafu.config import make_config
from siafu.launch.statistics import spec_of
from siafu.partitioning import Cut, assign, open_parts
from siafu.plan import (
    CutStatistics,
    GraphStatistics,
    Setting,
    draw_minibatches,
    foresee,
    graph_statistics,
)
from siafu.plan.machine import TYPICAL
from siafu.plan.sampled import count_far, count_minibatches

pytestmark = pytest.mark.usefixtures("runs_on_pool")
GRAPH = GraphStatistics(nodes=20_000, edges=240_000, features=32, degree_spread=0.3)


@pytest.mark.parametrize("ranks", [2, 5])
def test_a_cut_at_random_goes_through_as_many_edges_as_lead_elsewhere(ranks: int) -> None:
    cut = CutStatistics(ranks=ranks, halo_rows=round(GRAPH.random_halo(ranks)))
    assert GRAPH.cut_share(cut) == pytest.approx((ranks - 1) / ranks, rel=0.02)
    assert GRAPH.cut_share(CutStatistics(ranks=ranks, halo_rows=0)) == pytest.approx(0, abs=1e-9)


def test_nothing_is_asked_for_where_nothing_is_cut() -> None:
    config = make_config(data="x", model="sage", strategy="batchgnn", ranks=2).resolved()
    counts = count_minibatches(config, GRAPH, GRAPH.at(2))
    none, some, all_of_it = (count_far(counts, GRAPH, 2, share) for share in (0.0, 0.2, 0.5))
    assert (none.requests, none.answers, none.edges) == (0, 0, 0)
    assert 0 < some.answers < all_of_it.answers
    assert all_of_it.edges == pytest.approx(sum(counts.edges) / 2, rel=0.01)


def test_bytes_of_a_sampled_run_are_told(tmp_path: Path) -> None:
    graph = siafu.load("planted:2000")
    siafu.partition(graph, tmp_path / "parts", parts=2, method="hash", quiet=True)
    settings = {"model": "sage", "strategy": "batchgnn", "ranks": 2, "batch_size": 100}
    settings |= {"macrobatch": "1", "fanout": "4,4", "evaluate": "exact"}
    run = siafu.fit(
        str(tmp_path / "parts"), epochs=1, quiet=True, out=str(tmp_path / "run"), **settings
    )
    sent = run.result["bytes_sent"]
    config = make_config(data="x", **settings)
    part_of = assign(graph, Cut(num_parts=2, method="hash"))
    drawn = draw_minibatches(graph, part_of, 2, config.resolved())
    cut = CutStatistics.of(open_parts(tmp_path / "parts").quality)
    # As they were drawn, the first epoch is told to the byte; by the law of degrees about so.
    for found, near in ((drawn, 1e-9), (None, 0.2)):
        statistics = graph_statistics(graph).with_cuts([cut.model_copy(update={"drawn": found})])
        at = Setting(
            config=config.resolved(),
            spec=spec_of(config, statistics),
            statistics=statistics,
            machine=TYPICAL,
        )
        told = foresee(at, "batchgnn", config.chosen, 2).traffic
        rows = sent["feature"] - told.evaluation  # by one pass: predictions are of the same weights
        assert told.other == pytest.approx(sent["sample"] + rows, rel=near)


def test_columns_of_a_table_count_as_what_they_become(tmp_path: Path) -> None:
    columns = {"id": list(range(40)), "age": [1.5, None] * 20, "town": ["a", "b", "c", "d"] * 10}
    folder = tmp_path / "tables"
    folder.mkdir()
    pa_csv.write_csv(pa.table(columns), folder / "nodes.csv")
    pa_csv.write_csv(pa.table({"src": [0, 1], "dst": [1, 2]}), folder / "edges.csv")
    told = graph_statistics(siafu.load(str(folder)))
    assert told.features == 2 + 4  # a number, its gaps, four towns
