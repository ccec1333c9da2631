"""Dollars of a run, against figures worked out by hand."""

import json
from pathlib import Path

import pytest

from siafu.elastic.task import Usage
from siafu.errors import ConfigError
from siafu.plan import Bill, PoolUsage, Prices, Servers, make_bill, pool_usage, read_prices
from siafu.plan.bill import round_up

PAPER = read_prices()


def bill_of(prices: Prices = PAPER, **changes) -> Bill:
    asked = {"seconds": 3600.0, "epochs": 100, **changes}
    return make_bill(prices, Servers(instance="c5.xlarge", ranks=4), **asked)


def test_four_servers_for_an_hour() -> None:
    bill = bill_of()
    assert bill.servers_dollars == pytest.approx(0.68, rel=1e-12)  # 4 x $0.17
    assert bill.dollars == bill.servers_dollars
    assert bill.dollars_per_epoch == pytest.approx(0.0068, rel=1e-12)
    assert bill.value == pytest.approx(1 / (3600 * 0.68), rel=1e-12)


def test_a_pool_by_hand() -> None:
    usages = [Usage(seconds=0.25, sent_bytes=3 * 10**9, received_bytes=10**9)] * 1000
    usage = pool_usage(usages, PAPER, memory_mb=192)
    assert usage.requests == 1000
    assert usage.billed_seconds == pytest.approx(250, rel=1e-12)
    assert usage.gb_seconds == pytest.approx(46.875, rel=1e-12)  # 250 s x 0.1875 GB
    bill = bill_of(seconds=60.0, epochs=10, usage=usage)
    assert bill.servers_dollars == pytest.approx(4 * 0.17 / 60, rel=1e-12)
    assert bill.pool_compute_dollars == pytest.approx(46.875 * 0.0000166667, rel=1e-12)
    assert bill.pool_requests_dollars == pytest.approx(0.0002, rel=1e-12)
    assert bill.transfer_dollars == 0
    total = 0.68 / 60 + 46.875 * 0.0000166667 + 0.0002
    assert bill.dollars == pytest.approx(total, rel=1e-12)
    assert bill.dollars_per_epoch == pytest.approx(total / 10, rel=1e-12)
    assert bill.value == pytest.approx(1 / (60 * total), rel=1e-12)


def test_an_hour_of_one_of_the_papers_lambdas() -> None:
    usage = pool_usage([Usage(seconds=3600)], PAPER, memory_mb=192)
    bill = bill_of(usage=usage)
    assert bill.pool_compute_dollars == pytest.approx(0.01125, rel=1e-5)


def test_workers_have_the_prices_memory_unless_told() -> None:
    usage = pool_usage([Usage(seconds=1)], PAPER)
    assert usage.gb_seconds == pytest.approx(1769 / 1024, rel=1e-12)


def test_transfer_has_a_price_each_way(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    routes = "x = { dollars_per_gb_out = 0.02, dollars_per_gb_in = 0.01 }"
    path.write_text(f'date = 2026-01-31\n[transfer]\nroute = "x"\n[transfer.routes]\n{routes}\n')
    usage = PoolUsage(requests=1, sent_bytes=5 * 10**9, received_bytes=3 * 10**9)
    bill = bill_of(read_prices(path), usage=usage)
    assert bill.transfer_dollars == pytest.approx(5 * 0.02 + 3 * 0.01, rel=1e-12)
    assert bill.prices_date == "2026-01-31"
    assert bill.prices_file == "prices.toml"


@pytest.mark.parametrize(
    ("seconds", "step", "want"),
    [
        (0.0, 0.001, 0.0),
        (1e-5, 0.001, 0.001),  # ten microseconds are billed as a millisecond
        (0.007, 0.001, 0.007),  # which is above 7 steps in floats
        (0.0071, 0.001, 0.008),
        (59.2, 1.0, 60.0),
        (60.0, 1.0, 60.0),
    ],
)
def test_time_is_rounded_up(seconds: float, step: float, want: float) -> None:
    assert round_up(seconds, step) == pytest.approx(want, abs=1e-12)


def test_every_invocation_is_rounded_up_by_itself() -> None:
    usage = pool_usage([Usage(seconds=0.0001)] * 10, PAPER)
    assert usage.billed_seconds == pytest.approx(0.01, rel=1e-12)


def test_servers_are_billed_whole_seconds_and_value_counts_real_ones() -> None:
    bill = bill_of(seconds=9.5)
    assert bill.servers_dollars == pytest.approx(0.68 * 10 / 3600, rel=1e-12)
    assert bill.value == pytest.approx(1 / (9.5 * bill.servers_dollars), rel=1e-12)


@pytest.mark.parametrize(("ranks", "shared", "want"), [(4, 1, 4), (4, 2, 2), (5, 2, 3), (1, 8, 1)])
def test_ranks_share_instances(ranks: int, shared: int, want: int) -> None:
    servers = Servers(instance="c5.large", ranks=ranks, ranks_per_instance=shared)
    assert servers.instances == want
    bill = make_bill(PAPER, servers, seconds=3600.0, epochs=1)
    assert bill.dollars == pytest.approx(want * 0.085, rel=1e-12)


def test_a_run_of_nothing_has_no_value_and_no_price_of_an_epoch() -> None:
    bill = bill_of(seconds=0.0, epochs=0)
    assert (bill.dollars, bill.dollars_per_epoch, bill.value) == (0, None, None)
    assert list(bill.rows()) == ["dollars"]


def test_usage_of_ranks_adds_up() -> None:
    one = pool_usage([Usage(seconds=0.5, sent_bytes=3)], PAPER)
    two = pool_usage([Usage(seconds=0.25, received_bytes=4)], PAPER)
    both = one + two
    assert both == pool_usage(
        [Usage(seconds=0.5, sent_bytes=3), Usage(seconds=0.25, received_bytes=4)], PAPER
    )
    assert both.times(2) == both + both


def test_unknown_machines_and_counts_are_refused() -> None:
    with pytest.raises(ConfigError, match="c6"):
        make_bill(PAPER, Servers(instance="c6", ranks=1), seconds=1.0, epochs=1)
    with pytest.raises(ConfigError, match="0 ranks"):
        Servers(instance="c5.large", ranks=0)


def test_rows_tell_every_item_that_is_not_nothing() -> None:
    rows = bill_of().rows()
    assert list(rows) == ["dollars", "dollars/epoch", "value"]
    assert rows["dollars"] == "$0.680  (4 x c5.xlarge, 3600 s; prices of 2021-07-14)"
    usage = PoolUsage(requests=10, gb_seconds=0.5, sent_bytes=10**9, received_bytes=10**9)
    rows = bill_of(usage=usage).rows()
    assert rows["  pool"] == "$0.00000833 for 0.5 GB-s, $0.00000200 for 10 requests"
    assert rows["  transfer"] == "$0.00 for 2 GB"


def test_the_bill_of_a_result_is_json() -> None:
    told = json.loads(json.dumps(bill_of(usage=PoolUsage(requests=3)).as_dict()))
    assert told["dollars"] == pytest.approx(0.68 + 3 * 0.2e-6)
    assert told["usage"]["requests"] == 3
    assert PoolUsage(**told["usage"]) == PoolUsage(requests=3)
    assert Servers(**told["servers"]) == Servers(instance="c5.xlarge", ranks=4)
