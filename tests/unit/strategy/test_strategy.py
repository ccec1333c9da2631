"""Choices that make sense, and those that are refused with a reason."""

import pytest

from siafu.config import make_config
from siafu.errors import ConfigError
from siafu.launch.checks import check_run
from siafu.strategy import PRESETS, Strategy


def test_quantised_strategies_call_themselves_unbiased() -> None:
    assert PRESETS["halo"].exactness == PRESETS["sar"].exactness == "exact"
    assert PRESETS["adaqp"].exactness == Strategy(wire=8).exactness == "unbiased"


def test_choices_say_what_is_quantised() -> None:
    assert PRESETS["halo"].choices(2)["wire"] == 32
    shown = PRESETS["adaqp"].choices(2)
    assert (shown["wire"], shown["wire_bits"], shown["overlap"]) == ("adaptive", 4, True)


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ({"wire": 3}, "wire=3"),
        ({"wire": "best"}, "adaptive"),
        ({"wire": "adaptive", "wire_bits": 1.5}, "2, 4 or 8 bits"),
        ({"wire": "adaptive", "wire_bits": 9}, "wire_bits=9"),
        ({"wire": "adaptive", "wire_period": 2}, "two epochs later"),
        ({"by_columns": True, "stages": 2}, "--stages with --by-columns"),
        ({"by_columns": True, "stages": "auto"}, "--stages with --by-columns"),
        ({"by_columns": True, "recompute": True}, "--recompute with --by-columns"),
        ({"by_columns": True, "wire": 8}, "not rounded"),
        ({"by_columns": True, "overlap": False}, "--no-overlap with --by-columns"),
        ({"by_columns": True, "unit": "interval"}, "unit=interval"),
    ],
)
def test_nonsense_is_refused(choice: dict, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Strategy(**choice)


@pytest.mark.parametrize("wire", [8, "8"])
def test_settings_become_choices(wire) -> None:
    strategy = make_config(data="planted", wire=wire, overlap=False).chosen
    assert (strategy.wire, strategy.overlap) == (8, False)
    adaptive = make_config(data="planted", strategy="adaqp", wire_bits=3).chosen
    assert (adaptive.wire, adaptive.wire_bits, adaptive.overlap) == ("adaptive", 3, True)


@pytest.mark.parametrize("setting", [{"wire_bits": 4}, {"wire_period": 10}])
def test_settings_of_adaptive_widths_need_them(setting: dict) -> None:
    with pytest.raises(ConfigError, match="adaptive"):
        check_run("planted", make_config(data="planted", wire=8, **setting))
