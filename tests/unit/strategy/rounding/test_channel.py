"""Rows lie where `WireLayout.build` puts them, whether their formats are shared or their own."""

from typing import Any

import pytest
import torch

from siafu.comm import Format
from siafu.ops import WireLayout
from siafu.strategy.rounding import RowForm, RowFormats

ROWS = {0: 5, 2: 4}
GROUPS = {0: torch.tensor([2, 2, 1]), 2: torch.tensor([4])}
WIDTH = 21


def form_of(*, assigned: bool) -> RowForm:
    return RowForm(
        width=WIDTH,
        dtype=torch.float64,
        device=torch.device("cpu"),
        format=Format("rounded", 8),
        assigned=assigned,
    )


def check(formats: RowFormats, codes_S: torch.Tensor) -> None:
    want, found = WireLayout.build(codes_S, WIDTH, torch.float64), formats.layout()()
    assert torch.equal(found.bits_S, want.bits_S)
    assert torch.equal(found.start_S, want.start_S)
    assert (found.num_bytes, found.dtype) == (want.num_bytes, want.dtype)
    assert list(formats.bytes) == list(ROWS)
    assert list(formats.bytes.values()) == want.split_bytes(list(ROWS.values()))


@pytest.mark.parametrize("groups", [None, GROUPS])
@pytest.mark.parametrize("assigned", [False, True])
def test_rows_begin_alike(groups: Any, assigned: bool) -> None:
    check(RowFormats(ROWS, form_of(assigned=assigned), groups), Format("rounded", 8).codes(9))


def test_each_row_has_its_format() -> None:
    formats = RowFormats(ROWS, form_of(assigned=True))
    assert formats.counts == ROWS
    codes_S = torch.tensor([2, 8, 4, 4, 2, 8, 8, 2, 4], dtype=torch.uint8)
    formats.set_codes(codes_S)
    before = formats.layout()
    check(formats, codes_S)
    formats.set_codes(Format("rounded", 2).codes(9))
    assert torch.equal(before().bits_S, codes_S), "a message goes on with the formats it began with"


def test_groups_share_a_format() -> None:
    formats = RowFormats(ROWS, form_of(assigned=True), GROUPS)
    assert formats.counts == {0: 3, 2: 1}
    formats.set_codes(torch.tensor([2, 8, 4, 2], dtype=torch.uint8))
    check(formats, torch.tensor([2, 2, 8, 8, 4, 2, 2, 2, 2], dtype=torch.uint8))
