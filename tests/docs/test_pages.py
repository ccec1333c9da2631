"""Code blocks of every page of the site run as they stand, page by page."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.command import Command
from tests.docs.pages import ROOT, blocks_of, run_commands, run_python

PAGES = sorted((ROOT / "docs").rglob("*.md"))
BEGIN_WITH_PARTS = {"minibatches.md"}
"""Pages whose first command reads `my.parts`."""


def has_blocks_to_run(page: Path) -> bool:
    return any(block.reason is None for block in blocks_of(page))


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.stem) for page in PAGES if has_blocks_to_run(page)],
)
@pytest.mark.usefixtures("runs_on_pool")
def test_blocks_of_a_page_run(
    page: Path,
    user_folder: Path,
    user_parts: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if page.name in BEGIN_WITH_PARTS:
        shutil.copytree(user_parts, user_folder / "my.parts")
    command = Command(user_folder, monkeypatch, capsys)
    names: dict[str, Any] = {}
    for block in blocks_of(page):
        if block.reason is not None:
            continue
        if block.language == "bash":
            run_commands(block, command)
        else:
            names = run_python(block, names, user_folder)


def test_few_blocks_are_not_run() -> None:
    every = [block for page in PAGES for block in blocks_of(page)]
    assert sum(block.reason is not None for block in every) <= len(every) // 6
