"""Windows over a CSR: each entry once, and each row, also an empty one, ends in exactly one."""

import numpy as np
import pytest

from siafu.partitioning.chunks import windows

COUNTS = [[0, 0, 3, 0, 5, 1, 0, 0], [9], [0], [0, 0], [1, 1, 1, 1], [0, 7, 0]]


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("step", [1, 2, 3, 100])
def test_windows_cover_entries_and_rows_once(counts: list[int], step: int) -> None:
    offsets = np.concatenate([[0], np.cumsum(counts)])
    row_of = np.repeat(np.arange(len(counts)), counts)
    entries, ended = [], []
    for window in windows(offsets, step):
        for entry in range(window.low, window.high):
            at = int(np.searchsorted(window.offsets, entry, side="right")) - 1
            assert window.first_row + at == row_of[entry]
            entries.append(entry)
        done = np.flatnonzero(window.offsets[1:] <= window.high)
        ended += (window.first_row + done).tolist()
    assert entries == list(range(offsets[-1]))
    assert ended == list(range(len(counts)))


def test_windows_from_the_middle_are_the_rest() -> None:
    offsets = np.array([0, 0, 4, 4, 9])
    whole, rest = list(windows(offsets, 3)), list(windows(offsets, 3, start=3))
    assert [(w.low, w.first_row, w.offsets.tolist()) for w in whole[1:]] == [
        (w.low, w.first_row, w.offsets.tolist()) for w in rest
    ]
