"""Changes of rows: both ends have the same, errors are fed back, and few bits do not diverge."""

from itertools import pairwise

import pytest
import torch

from siafu.errors import PlanError
from siafu.ops import DrawKey, WireLayout, decode_changes, encode_changes, kernels, row_bytes
from siafu.ops.wire import CHANGE_WIDTHS

COUNT = 21


def key_of(epoch: int) -> DrawKey:
    return DrawKey(seed=5, epoch=epoch, purpose=9)


def layout_of(bits: torch.Tensor | int, width: int, dtype: torch.dtype = torch.float32):
    codes = torch.full((COUNT,), bits) if isinstance(bits, int) else bits
    return WireLayout.build(codes.byte(), width, dtype, changes=True)


def mixed_bits() -> torch.Tensor:
    return torch.tensor(CHANGE_WIDTHS).repeat(COUNT)[:COUNT]


def course(width: int, dtype: torch.dtype, epochs: int = 4) -> list[torch.Tensor]:
    """Return rows of some epochs that drift, of which one shrinks and one stands still."""
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(COUNT + 3, width, generator=generator, dtype=dtype)
    found = []
    for _ in range(epochs):
        step = 0.1 * torch.randn(x.shape, generator=generator, dtype=dtype)
        step[7] = 0
        x = x + step
        x[9] *= 0.01
        found.append(x)
    return found


def run_course(rows: list[torch.Tensor], layout: WireLayout, picked: torch.Tensor) -> list:
    """Return payload, ranges and what both ends keep in each epoch."""
    sent = torch.zeros(COUNT, layout.width, dtype=layout.dtype)
    received, seen = sent.clone(), []
    for epoch, x in enumerate(rows):
        got = encode_changes(x, picked, layout, key_of(epoch), picked, sent)
        decode_changes(got.payload, layout, received)
        assert torch.equal(sent, received), "both ends keep the same"
        seen.append((got.payload, got.range_S, sent.clone()))
    return seen


@pytest.mark.parametrize("width", [1, 41, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_equal_the_reference(monkeypatch, width: int, dtype: torch.dtype) -> None:
    rows, picked = course(width, dtype), torch.randperm(COUNT + 3)[:COUNT]
    layout = layout_of(mixed_bits(), width, dtype)
    fast = run_course(rows, layout, picked)
    monkeypatch.setitem(kernels.fast, "cpu", kernels.PLAIN)
    for got, want in zip(fast, run_course(rows, layout, picked), strict=True):
        for one, other in zip(got, want, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize(("bits", "shrinks_to"), [(1, 0.51), (2, 0.67), (4, 0.14), (8, 0.01)])
def test_what_rounding_left_over_is_sent_next(bits: int, shrinks_to: float) -> None:
    x, ids = torch.randn(COUNT, 64), torch.arange(COUNT)
    kept, layout = torch.zeros_like(x), layout_of(bits, 64)
    spans = [
        encode_changes(x, None, layout, key_of(epoch), ids, kept).range_S for epoch in range(4)
    ]
    for before, after in pairwise(spans):
        assert (after <= shrinks_to * before + 1e-6).all()


def test_a_row_is_right_on_average_whatever_was_kept() -> None:
    draws, width = 3000, 12
    torch.manual_seed(0)
    x, start = torch.randn(1, width), 0.5 * torch.randn(1, width)
    many = WireLayout.build(torch.full((draws,), 2).byte(), width, changes=True)
    kept = start.repeat(draws, 1)
    rows = torch.zeros(draws, dtype=torch.int64)
    encode_changes(x, rows, many, key_of(1), torch.arange(draws), kept)
    error = (kept - x).mean(0) / (kept.std(0) / draws**0.5).clamp(min=1e-6)
    assert (error.abs() < 5).all()


def test_a_row_that_spans_less_than_its_change_travels_itself() -> None:
    x, ids = torch.full((COUNT, 32), 3.0), torch.arange(COUNT)
    kept = 100 * torch.randn(COUNT, 32)
    encode_changes(x, None, layout_of(1, 32), key_of(1), ids, kept)
    assert torch.equal(kept, x), "a constant row has no error at any width"


def test_no_bits_leave_what_was_there() -> None:
    assert row_bytes(0, 300) == 0
    x, ids, layout = torch.randn(COUNT, 8), torch.arange(COUNT), layout_of(0, 8)
    kept = torch.randn(COUNT, 8)
    before = kept.clone()
    got = encode_changes(x, None, layout, key_of(1), ids, kept)
    decode_changes(got.payload, layout, kept)
    assert len(got.payload) == 0
    assert torch.equal(kept, before)
    assert (got.range_S > 0).all(), "what it would take is traced"


@pytest.mark.parametrize("bits", CHANGE_WIDTHS[1:-1])
def test_a_row_that_is_not_finite_changes_nothing_and_is_told(bits: int) -> None:
    x, ids = torch.randn(COUNT, 20), torch.arange(COUNT)
    x[4, 3] = torch.nan
    kept = torch.zeros_like(x)
    got = encode_changes(x, None, layout_of(bits, 20), key_of(1), ids, kept)
    assert got.first_bad() == 4
    assert not kept[4].any()


@pytest.mark.parametrize("bits", [0, 1])
def test_so_few_bits_are_of_changes_alone(bits: int) -> None:
    with pytest.raises(PlanError, match="Unknown wire width"):
        WireLayout.build(torch.full((3,), bits).byte(), 8)
