"""What a notebook shows of a run: a line that follows it and is gone at the end."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import siafu
from siafu.launch.notebook import in_notebook, line_of


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have this process look like a notebook, and note what its cell shows."""
    lines: list[str] = []
    handle = SimpleNamespace(update=lines.append)

    def display(line: str, *, display_id: bool) -> Any:
        lines.append(line)
        return handle

    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    page = SimpleNamespace(display=display, Pretty=str)
    monkeypatch.setitem(sys.modules, "IPython.display", page)
    return lines


def test_a_notebook_follows_a_run(shown: list[str], tmp_path: Path, capsys) -> None:
    called: list[int] = []
    run = siafu.fit(
        "planted:120",
        epochs=2,
        out=str(tmp_path / "run"),
        on_epoch=lambda epoch, metrics: called.append(epoch),
    )
    assert [line[:12] for line in shown] == ["preparing", "epoch 1 of 2", "epoch 2 of 2", ""]
    assert called == [1, 2]
    assert str(run.path) in capsys.readouterr().out
    siafu.fit("planted:120", epochs=1, quiet=True, out=str(tmp_path / "silent"))
    assert len(shown) == 4
    assert not capsys.readouterr().out


def test_scripts_are_told_nothing_unless_asked(tmp_path: Path, capsys) -> None:
    assert not in_notebook()
    siafu.fit("planted:120", epochs=1, out=str(tmp_path / "a"))
    assert capsys.readouterr() == ("", "")
    siafu.fit("planted:120", epochs=1, quiet=False, out=str(tmp_path / "b"))
    assert "Run:" in capsys.readouterr().err


def test_the_line_tells_how_far_it_is() -> None:
    assert line_of(1, 2, {"loss": 0.5, "val": 0.75}) == (
        f"epoch 1 of 2 {'━' * 15}{'─' * 15} loss 0.5000  val 0.75"
    )
