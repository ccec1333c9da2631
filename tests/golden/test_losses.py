"""A fixed seed still gives the stored losses."""

from pathlib import Path

import pytest

from tests.golden.losses import CURVES, compute_on, read
from tests.harness import RankPool

SAME = 1e-5
"""Relative. Between processors and versions of torch, matrix products add in other orders: 1e-7
a step in float32, a little more after 20 steps of Adam. A changed draw or formula gives 1e-3."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("golden")


@pytest.mark.parametrize(
    ("name", "size"), [(name, size) for name, curve in CURVES.items() for size in curve.ranks]
)
def test_losses_are_those_stored(ranks: RankPool, folder: Path, name: str, size: int) -> None:
    want = read(name)
    assert len(want) == CURVES[name].epochs
    assert compute_on(ranks, name, size, folder) == pytest.approx(want, rel=SAME)
