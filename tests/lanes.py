"""Tests in several processes side by side, a file at a time: `pytest -p tests.lanes -n 3`.

Most tests keep one core busy at best: they wait for children, deadlines or a disk. A lane takes the
next file when it is done with one; what takes long alone comes first, so that lanes end together.
"""

import pytest
from xdist.scheduler import LoadFileScheduling

LONG = (
    "tests/docs/test_types.py",
    "tests/unit/ops/",
    "tests/docs/test_wheel.py",
    "tests/ray/",
    "tests/unit/launch/test_settings_walk.py",
    "tests/docs/",
    "tests/parity/",
    "tests/faults/",
)
"""In this order, before all others. Kernels are compiled where they are tested."""
TOGETHER = ("tests/ray/",)
"""Folders whose files share what is costly to start: a cluster."""


class Lanes(LoadFileScheduling):
    """Files in the order they were collected in; a few folders as if they were one file."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return next((folder for folder in TOGETHER if file.startswith(folder)), file)


def _turn(item: pytest.Item) -> int:
    file = item.nodeid
    return next((turn for turn, name in enumerate(LONG) if file.startswith(name)), len(LONG))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long files first; the others stay in their order."""
    items.sort(key=_turn)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Lanes:
    """Return who hands files out."""
    return Lanes(config, log)
