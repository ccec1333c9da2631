"""Measuring a machine: every cost is a number above zero, and is kept with its date."""

import datetime
from pathlib import Path

import pytest

from siafu.plan import calibrate, keep_machine, kept_machine


def test_costs_are_measured_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SIAFU_CACHE", str(tmp_path))
    module = "siafu.plan.calibration"
    monkeypatch.setattr(f"{module}._EDGES", 1 << 10)
    monkeypatch.setattr(f"{module}.FAR_BYTES", 1 << 16)
    monkeypatch.setattr(f"{module}._REPEATS", 1)
    monkeypatch.setattr(f"{module}._STEP_NODES", 64)
    found = calibrate("cpu")
    assert all(cost > 0 for rates in found.rates for cost in rates.near.values())
    assert all(
        min(rates.element, rates.draw, rates.sample, *rates.attend) > 0 for rates in found.rates
    )
    assert found.link.bytes_per_second > 0
    assert found.link.is_shared
    path = keep_machine(found)
    assert path.is_relative_to(tmp_path)
    assert kept_machine("cpu", found.date) == found
    assert kept_machine("cpu", found.date + datetime.timedelta(days=400)) is None
    path.write_text("{}")
    assert kept_machine("cpu", found.date) is None
