"""The file of prices: what it holds, what a user may change, what is refused."""

import datetime
from pathlib import Path

import pytest

from siafu.errors import ConfigError
from siafu.plan import read_prices
from siafu.plan.prices import PACKAGED


def written(folder: Path, text: str, *, date: str = "date = 2026-01-31\n") -> Path:
    path = folder / "mine.toml"
    path.write_text(date + text)
    return path


def test_packaged_prices_are_the_papers() -> None:
    prices = read_prices()
    assert prices.date == datetime.date(2021, 7, 14)
    stated = {"c5.large": 0.085, "c5.xlarge": 0.17, "c5.2xlarge": 0.34, "c5n.large": 0.108}
    stated |= {"c5n.xlarge": 0.216, "r5a.xlarge": 0.226, "t3.medium": 0.0416}
    stated |= {"g3s.xlarge": 0.75, "p3.2xlarge": 3.06}
    for name, dollars in stated.items():
        assert prices.instance(name).dollars_per_hour == dollars
        assert "paper" in prices.instance(name).source
    others = prices.instances.keys() - stated.keys()
    assert {prices.instance(name).source for name in others} == {"by size", "assumption"}
    assert prices.lambda_price.dollars_per_gb_second == 0.0000166667
    assert prices.lambda_price.dollars_per_million_requests == 0.20
    # The paper says the same again by the hour, of 192 MB.
    hour = 3600 * 192 / 1024 * prices.lambda_price.dollars_per_gb_second
    assert hour == pytest.approx(0.01125, rel=1e-5)
    assert (prices.route.dollars_per_gb_out, prices.route.dollars_per_gb_in) == (0, 0)


def test_the_h200_is_marked_as_an_assumption() -> None:
    assert read_prices().instance("h200").source == "assumption"


def test_own_file_overrides_only_what_it_names(tmp_path: Path) -> None:
    text = """
    [instances]
    "c5.large" = { dollars_per_hour = 1 }
    mine = { dollars_per_hour = 2.5, source = "the invoice" }
    [lambda]
    memory_mb = 512
    [transfer]
    route = "across zones"
    """
    prices, packaged = read_prices(str(written(tmp_path, text))), read_prices()
    assert prices.date == datetime.date(2026, 1, 31)
    assert prices.path == tmp_path / "mine.toml"
    assert prices.remark.startswith("mine.toml on top of")
    assert prices.instance("c5.large").dollars_per_hour == 1
    assert prices.instance("c5.large").source == "your file"  # no longer the paper's
    assert prices.instance("mine").source == "the invoice"
    assert prices.instance("c5.xlarge") == packaged.instance("c5.xlarge")
    assert prices.lambda_price.memory_mb == 512
    assert prices.lambda_price.step_seconds == packaged.lambda_price.step_seconds
    assert prices.route.dollars_per_gb_in == 0.01


def test_a_copy_of_the_packaged_file_is_a_file_of_ones_own(tmp_path: Path) -> None:
    copy = written(tmp_path, PACKAGED.read_text(), date="")
    assert read_prices(copy).instances == read_prices().instances


def test_a_route_of_ones_own(tmp_path: Path) -> None:
    text = '[transfer]\nroute = "vpn"\n[transfer.routes]\n'
    text += "vpn = { dollars_per_gb_out = 0.5, dollars_per_gb_in = 0.25 }\n"
    route = read_prices(written(tmp_path, text)).route
    assert (route.dollars_per_gb_out, route.dollars_per_gb_in) == (0.5, 0.25)


def test_unknown_instance_names_a_near_one() -> None:
    with pytest.raises(ConfigError, match=r"c5\.xlrge.*did you mean 'c5\.xlarge'"):
        read_prices().instance("c5.xlrge")


MISTAKES = {
    "[lambda]\nmemory = 5": r"lambda\.memory .*did you mean 'memory_mb'",
    "[lamda]\nmemory_mb = 5": "lamda in .*did you mean 'lambda'",
    "[lambda]\nmemory_mb = 0": r"lambda\.memory_mb = 0",
    "[lambda]\nstep_seconds = -0.1": r"lambda\.step_seconds = -0\.1",
    "[lambda]\ndollars_per_gb_second = nan": r"lambda\.dollars_per_gb_second = nan",
    "[lambda]\ndollars_per_gb_second = inf": r"lambda\.dollars_per_gb_second = inf",
    "[lambda]\ndollars_per_gb_second = true": r"lambda\.dollars_per_gb_second = True",
    "[lambda]\ndollars_per_gb_second = '1'": r"lambda\.dollars_per_gb_second = '1'",
    "lambda = 5": "lambda = 5",
    "[instances]\nmine = { dollars_per_hour = -1 }": r'instances."mine"\.dollars_per_hour = -1',
    "[instances]\nmine = {}": r'instances."mine"\.dollars_per_hour = .nothing',
    "[instances]\nmine = 5": r'instances."mine" = 5',
    "[instances]\nmine = { dollars_per_hour = 1, source = 2 }": r'instances."mine"\.source = 2',
    "[instances]\nmine = { dollars = 1 }": r'instances."mine"\.dollars ',
    "[instances]\nc5.large = { dollars_per_hour = 1 }": r'instances."c5"\.large ',
    "[instances_billing]\nstep_seconds = 0": r"instances_billing\.step_seconds = 0",
    "[transfer]\nroute = 'same zon'": "same zon.*did you mean 'same zone'",
    "[transfer]\nroute = 5": r"transfer\.route = 5",
    "[transfer.routes]\nvpn = 5": r'transfer\.routes\."vpn" = 5',
    "[transfer.routes]\nvpn = { dollars_per_gb_out = 1 }": "dollars_per_gb_in = .nothing",
    "currency = 'EUR'": "currency = 'EUR'",
    "region = 5": "region = 5",
    "no toml": "mine.toml",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_name_key_and_file(text: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=MISTAKES[text]) as caught:
        read_prices(path)
    assert str(path) in caught.value.seen


@pytest.mark.parametrize("date", ["", "date = 2026\n", "date = 2026-01-31T00:00:00\n"])
def test_a_file_without_a_date_is_refused(date: str, tmp_path: Path) -> None:
    path = written(tmp_path, 'region = "here"', date=date)
    with pytest.raises(ConfigError, match=r"date = .*mine\.toml"):
        read_prices(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml"):
        read_prices(tmp_path / "none.toml")
