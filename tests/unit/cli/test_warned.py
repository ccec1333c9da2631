"""A training that goes wrong says so, once, and what to try."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import siafu
from tests.command import Command


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.usefixtures("runs_on_pool")
def test_an_exploding_run_says_so_once(siafu: Command, count: int) -> None:
    settings = ("--epochs", 6, "--lr", 1e4, "--ranks", count, "--out", "run", "--eval-every", 6)
    answer = siafu("train", "planted:200", *settings)
    assert answer.code == 0, answer
    warned = (siafu.here / "run" / "warnings.txt").read_text()
    assert warned.count("The loss has grown from") == 1


def test_a_loss_that_is_not_finite_ends_the_run_with_what_to_try(siafu: Command) -> None:
    answer = siafu("train", "planted:200", "--epochs", 9, "--lr", 1e30, "--out", "run")
    assert answer.code == 2
    assert "The loss is not finite" in answer.err
    assert "--clip-norm" in answer.err


@pytest.mark.parametrize("quiet", [True, False])
def test_python_is_warned_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: bool
) -> None:
    graph = siafu.load("planted:60")
    graph = replace(graph, y=np.zeros_like(graph.y))
    siafu.fit(graph, epochs=1, hidden=4, quiet=quiet, out=str(tmp_path / "run"))
    err = " ".join(capsys.readouterr().err.split())
    assert "Warning: All 36 training nodes are of one class, 0" in err
    assert ("Run: " in err) is not quiet
