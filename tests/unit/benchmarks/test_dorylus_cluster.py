"""The simulated cluster beside the paper's."""

import pytest

from benchmarks.dorylus_cluster import AMAZON, TABLE, Costs, Mode, ratios, simulate, to_converge


def test_the_papers_ratios_come_out() -> None:
    costs = Costs()
    modes: tuple[Mode, ...] = ("lambda", "cpu", "gpu")
    runs = {mode: simulate(AMAZON, costs, mode, epochs=4) for mode in modes}
    found = {mode: to_converge(AMAZON, costs, mode, run) for mode, run in runs.items()}
    told, paper = ratios(found), ratios(TABLE["amazon gat"])
    # The abstract's: 2.75 x the value of CPUs, 1.22 x the speed and "4.83 x" of GPUs.
    assert paper["value over cpu"] == pytest.approx(2.75, abs=0.02)
    assert paper["value over gpu"] == pytest.approx(4.83, abs=0.01)
    for name in ("value over cpu", "faster than gpu", "value over gpu"):
        assert told[name] == pytest.approx(paper[name], rel=0.2)


def test_dollars_of_the_papers_table_are_its_seconds_times_prices() -> None:
    seconds, dollars = TABLE["amazon gat"]["cpu"]
    assert dollars == pytest.approx(seconds * 12 * 0.432 / 3600, abs=0.01)
    seconds, dollars = TABLE["amazon gat"]["gpu"]
    assert dollars == pytest.approx(seconds * 12 * 3.06 / 3600, abs=0.01)
