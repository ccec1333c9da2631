"""Rows as floats of fewer bits, beside floats of torch taken one row at a time."""

import pytest
import torch
from torch import Tensor

from siafu.errors import DataError, PlanError
from siafu.ops import DrawKey, WireLayout, decode, encode, encode_changes
from siafu.ops.wire.floats import BF16, FLOATS, FP8, float_bytes

KEY = DrawKey(seed=1, epoch=0, purpose=0)
KINDS = {"plain": 1.0, "huge": 1e36, "tiny": 1e-37, "denormal": 1e-42, "zero": 0.0}


def message(x: Tensor, code: int) -> tuple[WireLayout, Tensor]:
    layout = WireLayout.build(torch.full((len(x),), code, dtype=torch.uint8), x.size(1), x.dtype)
    return layout, encode(x, None, layout, KEY, torch.arange(len(x))).payload


def one_by_one(row: Tensor, code: int) -> Tensor:
    """Return what a row becomes: the nearest of all values there are, the even one of two."""
    if code == BF16:
        return row.bfloat16()
    values = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    top = row.abs().max()
    scale = 2.0 ** (max(int(torch.frexp(top.float()).exponent), -118) - 8) if top else 1.0
    away = (row.double().abs()[:, None] / scale - values).abs()
    nearest = away.min(dim=1, keepdim=True).values == away
    even = nearest & (torch.arange(127) % 2 == 0)
    at = torch.where(even.any(dim=1), even.int().argmax(dim=1), nearest.int().argmax(dim=1))
    return values[at] * row.double().sign() * scale


@pytest.mark.parametrize("width", [1, 10, 41])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("code", FLOATS)
def test_rows_are_the_nearest_floats(code: int, kind: str, width: int) -> None:
    x = torch.randn(7, width, generator=torch.Generator().manual_seed(3)) * KINDS[kind]
    layout, payload = message(x, code)
    assert len(payload) == 7 * float_bytes(code, width) == layout.num_bytes
    got = decode(payload, layout)
    for row, read in zip(x, got, strict=True):
        assert torch.equal(read, one_by_one(row, code).float())
    assert torch.equal(decode(payload, layout.to("cpu")), got)


@pytest.mark.parametrize("code", FLOATS)
def test_errors_are_within_half_a_unit(code: int) -> None:
    x = torch.randn(50, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    layout, payload = message(x, code)
    error = (decode(payload, layout) - x).abs()
    relative, least = (2.0**-4, 2.0**-17) if code == FP8 else (2.0**-8 + 1e-7, 0.0)
    assert (error <= relative * x.abs() + least * x.abs().amax(1, keepdim=True)).all()


def test_bytes_of_a_row() -> None:
    assert [float_bytes(BF16, width) for width in (1, 2, 3, 128)] == [4, 4, 8, 256]
    assert [float_bytes(FP8, width) for width in (1, 4, 5, 128)] == [8, 8, 12, 132]


def test_what_cannot_be_sent_is_refused() -> None:
    x = torch.ones(3, 12)
    x[1, 5] = torch.nan
    for code in FLOATS:
        with pytest.raises(DataError, match="node 1"):
            message(x, code)
    with pytest.raises(PlanError, match="Unknown wire width"):
        WireLayout.build(torch.tensor([FP8, 4], dtype=torch.uint8), 12)
    layout = WireLayout.build(torch.full((3,), BF16, dtype=torch.uint8), 12)
    with pytest.raises(PlanError, match="Changes"):
        encode_changes(x, None, layout, KEY, torch.arange(3), torch.zeros(3, 12))
