"""Sizes as people write and read them."""

import pytest

from siafu.cli.data import parse_bytes
from siafu.cli.show import size
from siafu.errors import StoreError


@pytest.mark.parametrize(
    ("text", "number"),
    [("4GB", 4 * 10**9), ("512MiB", 512 << 20), ("100", 100), ("1.5k", 1500), ("2 TiB", 2 << 40)],
)
def test_sizes_are_read(text: str, number: int) -> None:
    assert parse_bytes(text) == number


@pytest.mark.parametrize("text", ["", "many", "4XB", "GB"])
def test_nonsense_sizes_are_refused(text: str) -> None:
    with pytest.raises(StoreError, match="Not a size"):
        parse_bytes(text)


def test_sizes_are_shown_in_readable_units() -> None:
    shown = [size(n) for n in (0, 1023, 1536, 3 << 20, 5 << 40)]
    assert shown == ["0 B", "1023 B", "1.5 KiB", "3 MiB", "5 TiB"]
