"""What Python tells: all that the command line does, and a notebook a line that follows a run."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
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
    assert str(run.path) in capsys.readouterr().err
    siafu.fit("planted:120", epochs=1, quiet=True, out=str(tmp_path / "silent"))
    assert len(shown) == 4
    assert capsys.readouterr() == ("", "")


def _tables(plans: str) -> dict[str, Any]:
    names = [f"n{k:03}" for k in range(200)]
    nodes = pa.table(
        {
            "id": names,
            "plan": [plans[k % len(plans)] for k in range(200)],
            "kind": [("good", "bad")[k % 2] for k in range(200)],
        }
    )
    ends = {"src": ["stranger", *names[1:]], "dst": names[1:] + names[:1]}
    return {"nodes": nodes, "edges": pa.table(ends)}


def test_scripts_are_told_what_the_command_line_tells(tmp_path: Path, capsys) -> None:
    assert not in_notebook()
    settings: Any = {"label": "kind", "epochs": 1, "checkpoint_every": 1}
    run = siafu.fit(**_tables("abc"), **settings, out=str(tmp_path / "a"))
    out, err = capsys.readouterr()
    assert not out
    for told in ("Run:", "used as", "Dropped 1 ", "Classes: 0 bad"):
        assert told in err
    siafu.infer(run, **_tables("xyz"))
    assert "a category that training never saw" in capsys.readouterr().err
    siafu.resume(run, epochs=2)
    assert "Report:" in capsys.readouterr().err
    siafu.partition("planted:120", tmp_path / "parts")
    assert "memory" in capsys.readouterr().err


def test_quiet_calls_tell_nothing(tmp_path: Path, capsys) -> None:
    settings: Any = {"label": "kind", "epochs": 1, "checkpoint_every": 1}
    run = siafu.fit(**_tables("abd"), **settings, quiet=True, out=str(tmp_path / "a"))
    siafu.infer(run, **_tables("xyz"), quiet=True)
    siafu.resume(run, epochs=2, quiet=True)
    siafu.partition("planted:120", tmp_path / "parts", quiet=True)
    siafu.load(**_tables("abe"), label="kind")
    assert capsys.readouterr() == ("", "")
    siafu.load(**_tables("abf"), label="kind", quiet=False)
    assert "Dropped 1 " in capsys.readouterr().err


def test_the_line_tells_how_far_it_is() -> None:
    assert line_of(1, 2, {"loss": 0.5, "val": 0.75}) == (
        f"epoch 1 of 2 {'━' * 15}{'─' * 15} loss 0.5000  val 0.75"
    )
