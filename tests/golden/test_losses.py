"""A fixed seed still gives the stored losses."""

from pathlib import Path

import pytest

from siafu.config import MODEL_DEFAULTS
from tests.golden.losses import EPOCHS, compute, data_of, make_parts, read

SAME = 1e-5
"""Relative. Between processors and versions of torch, matrix products add in other orders: 1e-7
a step in float32, a little more after 20 steps of Adam. A changed draw or formula gives 1e-3."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("golden")


@pytest.mark.parametrize("model", MODEL_DEFAULTS)
def test_losses_are_those_stored(folder: Path, model: str) -> None:
    want = read(model)
    assert len(want) == EPOCHS
    assert compute(model, make_parts(data_of(model), folder)) == pytest.approx(want, rel=SAME)
