"""Python that a run's settings name runs where its user has named or confirmed it, else never."""

import importlib.util
import py_compile
import shutil
from pathlib import Path

import pytest

import siafu
from siafu.config import make_config
from siafu.engine.networks.own_model import own_model
from siafu.errors import ConfigError
from siafu.launch import resume_run, write_inference
from siafu.launch.own_code import UntrustedModelError, check_trusted, find_source, trust_named
from tests.command import Command

MODEL = """
import pathlib
from torch import nn

pathlib.Path({mark!r}).touch()


class Net(nn.Linear):
    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)

    def forward(self, x, edge_index):
        return super().forward(x)
"""


@pytest.fixture(autouse=True)
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """The command line in an empty folder, of a user who trusts nothing yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SIAFU_CONFIG", str(tmp_path / "config"))
    return Command(tmp_path, monkeypatch, capsys)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """A file that the model's code leaves behind when it runs."""
    return tmp_path / "ran"


def write_model(file: Path, mark: Path) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(MODEL.format(mark=str(mark)))


def trained(model: str) -> Path:
    return siafu.fit("planted:200", model=model, epochs=1, out="run", checkpoint_every=1).path


@pytest.fixture
def foreign(tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that came from somebody else, with the model inside."""
    write_model(tmp_path / "model.py", mark)
    run = trained("model.py:Net")
    (run / "notes.py").write_text((tmp_path / "model.py").read_text())
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("model: model.py:Net", "model: run/notes.py:Net"))
    mark.unlink()
    return run


def test_own_run_is_inferred_and_resumed_without_a_question(tmp_path: Path, mark: Path) -> None:
    write_model(tmp_path / "model.py", mark)
    run = trained("model.py:Net")
    mark.unlink()
    write_inference(run, tmp_path / "out", say=print)
    assert mark.exists()
    resume_run(run, {"epochs": 2}, quiet=True)


def test_foreign_model_is_not_run(command: Command, foreign: Path, mark: Path) -> None:
    for arguments in (
        ("infer", foreign),
        ("train", "--resume", foreign, "--epochs", 2),
        ("train", foreign / "config.yaml", "--out", "other"),
    ):
        answer = command(*arguments)
        assert answer.code == 2, answer
        assert not mark.exists(), arguments
        assert "--model run/notes.py:Net" in answer.err
        found = find_source("run/notes.py:Net")
        assert found is not None
        assert str(found.path) in answer.err
        assert found.sha256 in answer.err
    with pytest.raises(UntrustedModelError):
        write_inference(foreign, Path("out"), say=print)
    with pytest.raises(UntrustedModelError):
        resume_run(foreign, {"epochs": 2}, quiet=True)
    assert not mark.exists()
    assert not Path("other").exists()


def test_model_named_on_the_command_line_is_run_and_remembered(
    command: Command, foreign: Path, mark: Path
) -> None:
    assert command("infer", foreign, "--model", "run/notes.py:Net").code == 0
    assert mark.exists()
    assert command("infer", foreign, "--overwrite").code == 0
    assert command("train", "--resume", foreign, "--epochs", 2, "--quiet").code == 0


def test_changed_file_is_no_longer_trusted(command: Command, foreign: Path, mark: Path) -> None:
    assert command("infer", foreign, "--model", "run/notes.py:Net").code == 0
    mark.unlink()
    with (foreign / "notes.py").open("a") as file:
        file.write("# one line more\n")
    assert command("infer", foreign, "--overwrite").code == 2
    assert not mark.exists()


def test_copy_elsewhere_is_another_file(command: Command, foreign: Path, mark: Path) -> None:
    # What it imports from beside it is another's too.
    assert command("infer", foreign, "--model", "run/notes.py:Net").code == 0
    shutil.copytree(foreign, "copy")
    config = Path("copy/config.yaml")
    config.write_text(config.read_text().replace("run/notes.py", "copy/notes.py"))
    mark.unlink()
    assert command("infer", "copy", "--overwrite").code == 2
    assert not mark.exists()


@pytest.mark.parametrize("answer", [True, False])
def test_terminal_is_asked(
    command: Command, foreign: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, answer: bool
) -> None:
    monkeypatch.setattr("siafu.cli.trust._someone_can_answer", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: answer)
    assert command("infer", foreign).code == (0 if answer else 2)
    assert mark.exists() is answer


def test_model_in_a_package_is_checked_without_importing_it(
    command: Command, tmp_path: Path, mark: Path
) -> None:
    write_model(tmp_path / "boxed" / "nets.py", mark)
    (tmp_path / "boxed" / "__init__.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    settings = "data: planted:200\nmodel: boxed.nets:Net\nepochs: 1\n"
    (tmp_path / "given.yaml").write_text(settings)
    assert "nets.py" in command("train", "given.yaml").err
    assert not mark.exists()
    assert command("train", "given.yaml", "--model", "boxed.nets:Net", "--quiet").code == 0
    assert command("train", "given.yaml", "--quiet").code == 0, "it is remembered"


def test_callables_of_python_itself_are_not_run_either(command: Command, tmp_path: Path) -> None:
    (tmp_path / "given.yaml").write_text("data: planted:200\nmodel: os:getpid\n")
    answer = command("train", "given.yaml")
    assert answer.code == 2
    assert "not named or confirmed" in answer.err


def test_another_class_is_not_put_in_the_place_of_a_runs_model(foreign: Path) -> None:
    with pytest.raises(ConfigError, match="keeps its model"):
        write_inference(foreign, Path("out"), model="run/notes.py:Other", say=print)


def test_home_that_can_not_be_written_to_fails_nothing(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SIAFU_CONFIG", str(tmp_path / "file" / "inside"))
    write_model(tmp_path / "model.py", mark)
    run = trained("model.py:Net")
    with pytest.raises(UntrustedModelError):
        write_inference(run, tmp_path / "out", say=print)


def test_a_rank_that_decides_nothing_remembers_nothing(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "model.py", mark)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    trust_named("model.py:Net")
    monkeypatch.delenv("WORLD_SIZE")  # a stray RANK alone does not let anything pass
    with pytest.raises(UntrustedModelError):
        check_trusted("model.py:Net", "run.yaml", "name it")


def test_bytecode_beside_a_model_is_not_run(tmp_path: Path, mark: Path) -> None:
    write_model(tmp_path / "other.py", mark)
    source = (tmp_path / "other.py").read_text()
    cached = importlib.util.cache_from_source(str(tmp_path / "model.py"))
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(tmp_path / "other.py"), cached, invalidation_mode=unchecked)
    (tmp_path / "model.py").write_text(source.replace(f"pathlib.Path({str(mark)!r}).touch()", ""))
    own_model(make_config(data="planted", model="model.py:Net"), 3, 2)
    assert not mark.exists()
