"""Sizes as people write and read them."""

import pytest

from siafu.cli.show import size
from siafu.errors import ConfigError
from siafu.options import read_bytes


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4GB", 4 * 10**9),
        ("512MiB", 512 << 20),
        ("2000000", 2_000_000),
        ("1.5k", 1500),
        ("2 TiB", 2 << 40),
    ],
)
def test_sizes_are_read(text: str, number: int) -> None:
    assert read_bytes(text) == number


@pytest.mark.parametrize("text", ["", "many", "4XB", "GB"])
def test_nonsense_sizes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        read_bytes(text)


@pytest.mark.parametrize("text", ["4", "16", "999999"])
def test_a_bare_number_is_asked_for_its_unit(text: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean {text}GB"):
        read_bytes(text)


def test_sizes_are_shown_in_readable_units() -> None:
    shown = [size(n) for n in (0, 1023, 1536, 3 << 20, 5 << 40)]
    assert shown == ["0 B", "1023 B", "1.5 KiB", "3 MiB", "5 TiB"]
