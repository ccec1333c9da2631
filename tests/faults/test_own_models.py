"""A user's own model that goes wrong: told as his, with his file and line, exit code 2."""

from pathlib import Path

import pytest

import siafu as package
from siafu.errors import ModelError
from siafu.record import RunFolder
from tests.command import Command

HEAD = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.map = nn.Linear(in_channels, out_channels)
        {init}

    def forward(self, {takes}):
        {forward}
"""
"""The line of `forward` is the 13th, that of `init` the 10th."""


def write(
    here: Path,
    *,
    init: str = "pass",
    takes: str = "x, edge_index",
    forward: str = "return self.map(x)",
) -> None:
    (here / "mine.py").write_text(HEAD.format(init=init, takes=takes, forward=forward))


def refused(siafu: Command, *arguments: object) -> str:
    """Return what the command told, after checking that it failed in the agreed form."""
    answer = siafu(*arguments)
    assert answer.code == 2, answer
    assert "\n  seen: " in answer.err
    assert "\n  fix:  " in answer.err
    assert "Traceback" not in answer.err
    return answer.err


def train(siafu: Command, *more: object) -> str:
    arguments = ("train", "planted:200", "--model", "mine.py:Net", "--epochs", 2, "--quiet")
    return refused(siafu, *arguments, *more)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"forward": "return 1 / 0"}, "mine.py, line 13, in forward: return 1 / 0"),
        ({"init": "self.x = missing"}, "mine.py, line 10, in __init__: self.x = missing"),
        ({"forward": "return [0][1]"}, "IndexError: list index out of range"),
        ({"forward": "return torch.ones(3) @ x"}, "mine.py, line 13"),
        ({"forward": "raise SystemExit(0)"}, "SystemExit: 0"),
        ({"forward": "return self.map(x"}, "SyntaxError"),
        ({"init": "import no_such_package"}, "No module named 'no_such_package'"),
    ],
)
def test_mistake_is_shown_with_the_users_frames_alone(
    siafu: Command, changes: dict[str, str], told: str
) -> None:
    write(siafu.here, **changes)
    text = train(siafu)
    assert told in text
    assert "the code of mine.py:Net" in text
    assert "site-packages" not in text
    assert "siafu/engine" not in text
    assert "SIAFU_TRACEBACK=1" in text


def test_error_comes_before_what_can_be_done_with_the_run(siafu: Command) -> None:
    write(siafu.here, forward="return 1 / 0")
    text = siafu("train", "planted:200", "--model", "mine.py:Net", "--out", "run").err
    assert 0 < text.index("error: An error in the code of mine.py:Net") < text.index("To go on: ")
    with pytest.raises(ModelError) as told:
        package.fit("planted:200", model="mine.py:Net", out="again", quiet=True)
    assert "What was done is kept. To go on: siafu.resume('again')" in told.value.__notes__


def test_file_without_a_class_is_told_its_classes(siafu: Command) -> None:
    write(siafu.here)
    text = siafu("train", "planted:200", "--model", "mine.py").err
    assert "fix:  give mine.py:Net; mine.py has: Net" in text
    assert "none is found there" in siafu("train", "planted:200", "--model", "gone.py").err


def test_all_frames_are_shown_on_demand(siafu: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    write(siafu.here, forward="return 1 / 0")
    monkeypatch.setenv("SIAFU_TRACEBACK", "1")
    answer = siafu("train", "planted:200", "--model", "mine.py:Net", "--quiet")
    assert answer.code == 2
    assert "siafu/engine" in answer.err


@pytest.mark.parametrize("strategy", ["halo", "batchgnn"])
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"forward": "return torch.cat([self.map(x)] * 2, 1)"}, "14 columns of Net, 7 classes"),
        ({"forward": "return self.map(x), x"}, "Net gives a tuple"),
        ({"forward": "return self.map(x)[:, 0]"}, "Net gives a tensor ["),
        ({"forward": "return self.map(x).long()"}, "of int64"),
        ({"forward": "return self.map(x)[1:]"}, "one row for each node"),
        ({"forward": "return self.map(x).detach()"}, "does not depend on its weights"),
        ({"takes": "x"}, "forward(self, x, edge_index)"),
        ({"takes": "x, edge_index, edge_weight"}, "edge_weight=None"),
        ({"takes": "x, edge_index, batch"}, "batch=None"),
        ({"init": "self.map.requires_grad_(False)"}, "nothing to train"),
    ],
)
def test_output_or_forward_that_does_not_fit_is_refused_before_the_first_epoch(
    siafu: Command, strategy: str, changes: dict[str, str], told: str
) -> None:
    write(siafu.here, **changes)
    assert told in train(siafu, "--strategy", strategy)


@pytest.mark.parametrize("model", ["..m:Net", ":Net", "mine.py:", "a..b:Net", "mine.py:a-b", ":"])
def test_model_that_names_no_place_or_class(siafu: Command, model: str) -> None:
    assert "FILE.py:Class" in refused(siafu, "train", "planted:200", "--model", model)


@pytest.mark.parametrize(
    ("source", "told"),
    [("Net = 3\n", "no such class"), ("def Net():\n    return 3\n", "Not a torch module")],
)
def test_name_that_is_no_model(siafu: Command, source: str, told: str) -> None:
    (siafu.here / "mine.py").write_text(source)
    assert told in train(siafu)


def test_class_that_requires_what_it_is_not_offered(siafu: Command) -> None:
    (siafu.here / "mine.py").write_text(
        "from torch import nn\n\nclass Net(nn.Module):\n    def __init__(self, depth): ...\n"
    )
    text = train(siafu)
    assert "requires depth" in text
    assert "in_channels" in text


def test_predictions_that_can_not_be_written_lose_no_weights(siafu: Command) -> None:
    write(siafu.here)
    lines = (siafu.here / "mine.py").read_text()
    fails = "assert not __import__('os').path.exists('run/weights.safetensors')"
    write(siafu.here, forward=f"{fails}; return self.map(x)")
    answer = siafu(
        "train", "planted:200", "--model", "mine.py:Net", "--epochs", 2, "--quiet", "--out", "run"
    )
    assert answer.code == 2, answer
    folder = RunFolder(siafu.here / "run")
    assert folder.weights.exists()
    assert folder.result.exists()
    (siafu.here / "mine.py").write_text(lines)
    assert siafu("infer", "run", "--model", "mine.py:Net").code == 0


@pytest.mark.parametrize("content", [b"x = '\\0'\0", b"\xf4\x00name", b"# \xf0(\x8c\xbc"])
def test_a_model_file_that_is_no_source(siafu: Command, content: bytes) -> None:
    (siafu.here / "mine.py").write_bytes(content)
    answer = siafu("train", "planted:60", "--model", "mine.py:Net", "--epochs", 1)
    assert answer.code == 2
    assert "Traceback" not in answer.err
    assert "mine.py" in answer.err
