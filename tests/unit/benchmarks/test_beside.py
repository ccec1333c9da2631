"""Figures beside others say who is ahead."""

import pytest

from benchmarks.beside import faster, mb, ms


@pytest.mark.parametrize(
    ("ours", "theirs", "told"),
    [
        (2142.0, 5384.0, "2.5 x faster than PyG (5.4 s)"),
        (0.802, 0.299, "2.7 x slower than PyG (0.3 ms)"),
        (16.4, 15.6, "1.05 x slower than PyG (16 ms)"),
        (13.0, 555.0, "43 x faster than PyG (555 ms)"),
        (100.0, 100.2, "as fast as PyG (100 ms)"),
    ],
)
def test_wins_read_as_wins_and_losses_as_losses(ours: float, theirs: float, told: str) -> None:
    assert faster(ours, theirs, "PyG") == told


def test_units() -> None:
    assert [ms(value) for value in (2142.0, 445.0, 9.1, 0.299)] == [
        "2.1 s",
        "445 ms",
        "9.1 ms",
        "0.3 ms",
    ]
    assert mb(1079) == "1,079 MB"
