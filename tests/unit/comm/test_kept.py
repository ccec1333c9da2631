"""Rows that both ends keep in bfloat16: alike, to the bit, in however many pieces."""

import pytest
import torch

from siafu.comm import Keeping, KeptRows, kept
from siafu.ops import DrawKey, WireLayout, encode_changes

COUNT, WIDTH = 23, 12


@pytest.mark.parametrize("at_once", [5, 8, 100])
@pytest.mark.parametrize("picks", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_narrow_rows_are_those_of_whole_messages_rounded(
    monkeypatch: pytest.MonkeyPatch, at_once: int, picks: bool, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(kept, "ROWS_AT_ONCE", at_once)
    bits = torch.tensor([0, 1, 2, 4, 8, 16, 32], dtype=torch.uint8).repeat(COUNT)[:COUNT]
    layout = WireLayout.build(bits, WIDTH, dtype, changes=True)
    rows = torch.randperm(COUNT, generator=torch.Generator().manual_seed(1)) if picks else None
    ids, ends = torch.arange(COUNT), KeptRows(Keeping(changes=True, narrow=True))
    whole = torch.zeros(COUNT, WIDTH, dtype=dtype)
    for epoch in range(4):
        x = torch.randn(COUNT, WIDTH, generator=torch.Generator().manual_seed(epoch), dtype=dtype)
        key = DrawKey(seed=2, epoch=epoch, purpose=3)
        want = encode_changes(x, rows, layout, key, ids, whole)
        whole.copy_(whole.bfloat16())
        got = ends.encode(x, rows, layout, key, ids)
        ends.take(got.payload, layout)
        assert torch.equal(got.payload, want.payload)
        assert torch.equal(got.range_S, want.range_S)
        for end in ends.held():
            assert end.dtype == torch.bfloat16
            assert torch.equal(end.to(dtype), whole)


def test_what_rounding_left_over_is_part_of_the_next_change() -> None:
    ends = KeptRows(Keeping(changes=True, narrow=True))
    layout = WireLayout.build(torch.full((3,), 8, dtype=torch.uint8), WIDTH, changes=True)
    x = 1 + torch.rand(3, WIDTH, generator=torch.Generator().manual_seed(0))
    for epoch in range(6):  # of rows that stand still
        ends.encode(x, None, layout, DrawKey(seed=0, epoch=epoch, purpose=1), torch.arange(3))
    assert ends.sent_SD is not None
    # Within an ulp of bfloat16, and a step of changes that are within an ulp.
    assert (ends.sent_SD.float() - x).abs().max() <= 2**-7 * (0.5 + 2 / 255)


def test_no_rows_are_no_pieces() -> None:
    ends = KeptRows(Keeping(changes=True, narrow=True))
    layout = WireLayout.build(torch.empty(0, dtype=torch.uint8), WIDTH, changes=True)
    none = torch.empty(0, dtype=torch.int64)
    encoded = ends.encode(torch.ones(4, WIDTH), none, layout, DrawKey(0, 0, 0), none)
    ends.take(encoded.payload, layout)
    assert [tuple(end.shape) for end in ends.held()] == [(0, WIDTH)] * 2
