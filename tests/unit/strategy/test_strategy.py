"""Choices that make sense, and those that are refused with a reason."""

import pytest

from siafu.config import make_config
from siafu.errors import ConfigError
from siafu.launch.checks import check_run
from siafu.strategy import PRESETS, Strategy


def test_quantised_strategies_call_themselves_unbiased() -> None:
    assert PRESETS["halo"].exactness == PRESETS["sar"].exactness == "exact"
    assert PRESETS["adaqp"].exactness == Strategy(wire=8).exactness == "unbiased"


@pytest.mark.parametrize(
    ("wire", "bits"),
    [(16, 16), ("bf16", 16), ("fp8", 16), (8, 8), (4, 8), (2, 8), ("adaptive", 8), ("random", 8)],
)
def test_gradients_of_weights_are_never_coarser_than_rows(wire, bits):
    assert Strategy(wire=wire).gradient_bits == bits


@pytest.mark.parametrize(
    ("choice", "exactness"),
    [
        ({"wire": 2, "changes": True}, "unbiased"),
        ({"wire": "adaptive", "wire_bits": 2, "changes": True}, "unbiased"),
        ({"wire": 1, "changes": True}, "bounded"),
        ({"wire": 0, "changes": True}, "bounded"),
        ({"wire": "adaptive", "wire_bits": 1, "changes": True}, "bounded"),
        ({"staleness": 1}, "bounded"),
    ],
)
def test_rows_that_are_kept_say_what_they_are(choice: dict, exactness: str) -> None:
    assert Strategy(**choice).exactness == exactness


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
        ({"wire": 1}, "without --changes"),
        ({"wire": 0}, "without --changes"),
        ({"changes": True}, "--changes with --wire 32"),
        ({"changes": True, "wire": "adaptive", "wire_bits": 0.25}, "0, 1, 2, 4 or 8 bits"),
        ({"staleness": 2}, "--staleness 2"),
        ({"staleness": 1, "wire": 0, "changes": True}, "--wire 0"),
        ({"smoothing": 0.5}, "--staleness 0"),
        ({"smoothing": 0.5, "staleness": 1, "wire": 4, "changes": True}, "with --changes"),
        ({"by_columns": True, "staleness": 1}, "--staleness with --by-columns"),
        ({"by_columns": True, "stages": 2}, "--stages with --by-columns"),
        ({"by_columns": True, "stages": "auto"}, "--stages with --by-columns"),
        ({"by_columns": True, "recompute": True}, "--recompute with --by-columns"),
        ({"recompute": 1.5}, "recompute=1.5"),
        ({"recompute": -0.1}, "recompute=-0.1"),
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
