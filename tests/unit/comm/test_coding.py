"""A format is a value; the byte that stands for it is in checkpoints, and never changes."""

import pytest

from siafu.comm import FORMATS, UNCHANGED, Format
from siafu.errors import PlanError
from siafu.ops import WireLayout


def test_codes_are_those_of_old_checkpoints() -> None:
    codes = {(each.kind, each.bits): each.code for each in FORMATS}
    rounded = {("rounded", bits): bits for bits in (1, 2, 4, 8, 16)}
    floats = {("float", 8): 9, ("float", 16): 17, ("float", 32): 32}
    assert codes == {("kept", 0): 0, **rounded, **floats}
    assert all(Format.of_code(each.code) == each for each in FORMATS)


def test_bits_of_the_settings_name_a_format() -> None:
    assert Format.of_bits(32) == UNCHANGED
    assert Format.of_bits(4) == Format("rounded", 4)
    assert {str(each) for each in FORMATS} == {*"01248", "16", "32", "fp8", "bf16"}
    assert all(Format.of_wire(str(each)) == each for each in FORMATS)
    assert Format.of_wire(8) == Format("rounded", 8)


@pytest.mark.parametrize("each", FORMATS, ids=str)
def test_rows_are_as_long_as_their_layout_says(each: Format) -> None:
    layout = WireLayout.build(each.codes(3), 21, changes=True)
    assert layout.num_bytes == 3 * each.row_bytes(21)


def test_more_bits_have_less_variance() -> None:
    variances = [each.variance for each in FORMATS]
    assert variances == sorted(variances, reverse=True)
    assert UNCHANGED.variance == 0


def test_unknown_formats_are_refused() -> None:
    with pytest.raises(PlanError, match="Unknown format"):
        Format("rounded", 3)
