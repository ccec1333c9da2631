"""Files of settings: what plan takes of them, and a run's own file."""

from pathlib import Path

import pytest
import yaml

from siafu.errors import ConfigError, did_you_mean
from siafu.plan import read_statistics
from tests.command import Command
from tests.unit.plan.test_planning import MACHINE

SETTINGS = {"data": "planted", "model": "sage", "hidden": 48, "ranks": 2, "lr": 0.02, "epochs": 2}


def written(here: Path, **more: object) -> str:
    (here / "base.yaml").write_text(yaml.safe_dump({**SETTINGS, **more}))
    (here / "machine.json").write_text(MACHINE.model_dump_json())
    return "base.yaml"


def test_plan_takes_the_settings_of_a_training(siafu: Command) -> None:
    answer = siafu("plan", written(siafu.here), "--machine", "machine.json")
    assert answer.code == 0, answer.err
    assert "2,000 nodes" in answer.out
    assert "sage, 2 layers of 48" in answer.out
    assert "no use for: epochs, lr" in answer.err
    answer = siafu("plan", "base.yaml", "--machine", "machine.json", "--hidden", "24", "--json")
    assert '"ranks": 2' in answer.out
    answer = siafu("plan", written(siafu.here, hiden=4), "--machine", "machine.json")
    assert answer.code == 2
    assert "did you mean 'hidden'?" in answer.err


def test_file_of_a_run_repeats_it_in_another_folder(siafu: Command) -> None:
    base = written(siafu.here, out="first", ranks=1)
    assert siafu("train", base, "--quiet").code == 0
    answer = siafu("train", "first/config.yaml", "--quiet")
    assert answer.code == 0, answer.err
    first, again = siafu.here / "first", siafu.here / "runs" / "planted-sage-001"
    before, now = (yaml.safe_load((at / "config.yaml").read_text()) for at in (first, again))
    assert {**before, "out": None} == {**now, "out": None}
    # A file of the user's own names the folder that it means, and a run is gone on with in its own.
    assert "exists already" in siafu("train", base, "--quiet").err
    went_on = siafu("train", "first/config.yaml", "--resume", "auto", "--epochs", "3", "--quiet")
    assert went_on.code == 0, went_on.err
    assert "first" in went_on.out


def test_guess_is_never_the_word_itself(tmp_path: Path) -> None:
    assert did_you_mean("nodes", ["nodes", "edges"]) == ""
    assert did_you_mean("Nodes", ["nodes", "edges"]) == " (did you mean 'nodes'?)"
    (tmp_path / "graph.yaml").write_text("nodes: many\nedges: 2\nfeatures: 3\n")
    with pytest.raises(ConfigError) as told:
        read_statistics(tmp_path / "graph.yaml")
    assert "did you mean" not in told.value.seen
