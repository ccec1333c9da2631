"""Malformed input of any kind ends in exit code 0 or 2, never in an exception.

The same cases as `python -m benchmarks.fuzz` makes, fewer of them and in this process; that command
tries thousands, each in a child of its own with limits on time and memory.
"""

import random
from pathlib import Path

import pytest

from benchmarks import fuzz_inputs, fuzz_settings
from tests.command import Command

MAKERS = fuzz_inputs.MAKERS | fuzz_settings.MAKERS
_CASES = 30
_SEED = 1


@pytest.mark.parametrize("group", sorted(MAKERS))
def test_malformed_input_is_refused_or_read(
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("SIAFU_DATA", raising=False)
    refused = 0
    for number in range(_CASES):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setenv("SIAFU_CACHE", str(folder / ".cache"))
        arguments = MAKERS[group](random.Random(f"{_SEED} {group} {number}"), folder)
        answer = Command(folder, monkeypatch, capsys)(*arguments)
        shown = f"case {number}: {arguments}\n{answer.err}"
        assert answer.code in (0, 2), shown
        assert "Traceback" not in answer.err, shown
        assert answer.code == 0 or "  fix:  " in answer.err or "─ Error ─" in answer.err, shown
        refused += answer.code == 2
    assert refused > _CASES // 3
