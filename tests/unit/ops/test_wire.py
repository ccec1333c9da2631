"""Encoded rows: one format in every implementation, each row on its own, bad rows by name."""

import pytest
import torch

from siafu.errors import DataError, PlanError
from siafu.ops import DrawKey, kernels, set_threads
from siafu.ops.wire import numba as wire_numba
from siafu.ops.wire.rows import (
    WIDTHS,
    WireLayout,
    decode,
    decode_into,
    encode,
    row_bytes,
    row_range,
    warm_up_wire,
    wire_bytes,
)
from tests.unit.ops.interpreter import INTERPRETED

KEY = DrawKey(seed=5, epoch=2, purpose=9)

KINDS = {
    "plain": lambda x: x,
    "offset": lambda x: x + 1e6,
    "huge": lambda x: x * 1e37,
    "denormal": lambda x: x * 1e-42,
    "mixed": lambda x: x * torch.logspace(-38, 0, x.size(1)),
    "constant": lambda x: x[:, :1].expand_as(x).contiguous(),
    "zero": lambda x: x * 0,
}


def rows_of(kind: str, count: int, width: int, dtype: torch.dtype = torch.float32):
    x = torch.randn(count, width, generator=torch.Generator().manual_seed(3)).clamp(-8, 8)
    return KINDS[kind](x).to(dtype)


def mixed_bits(count: int) -> torch.Tensor:
    return torch.tensor(WIDTHS, dtype=torch.uint8).repeat(count)[:count]


def ids_of(count: int) -> torch.Tensor:
    """Ids that use all of their 48 bits."""
    return torch.randint(0, 2**48, (count,), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("width", [1, 41, 1100])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_bytes_equal_the_reference(device, monkeypatch, width, kind):
    _compare(device, monkeypatch, rows_of(kind, 15, width))


@pytest.mark.parametrize("width", [16, 41])
@pytest.mark.parametrize("kind", ["constant", "mixed", "plain"])
def test_bytes_of_double_rows_equal_the_reference(device, monkeypatch, width, kind):
    _compare(device, monkeypatch, rows_of(kind, 15, width, torch.float64))


def _compare(device, monkeypatch, x):
    bits, ids = mixed_bits(10), ids_of(10)
    rows = torch.tensor([3, 14, 3, 0, 1, 9, 8, 7, 6, 5])
    layout = WireLayout.build(bits.to(device), x.size(1), x.dtype)
    got = encode(x.to(device), rows.to(device), layout, KEY, ids.to(device))
    decoded = decode(got.payload, layout)
    monkeypatch.setitem(kernels.fast, "cpu", kernels.PLAIN)
    want = encode(x, rows, layout.to("cpu"), KEY, ids)
    assert torch.equal(got.payload.cpu(), want.payload)
    assert torch.equal(got.range_S.cpu(), want.range_S)
    assert torch.equal(decoded.cpu(), decode(want.payload, layout.to("cpu")))
    assert torch.equal(want.range_S, row_range(x, rows))
    assert torch.equal(decoded.cpu()[bits == 32], x[rows][bits == 32])


@pytest.mark.parametrize("bits", WIDTHS[:-1])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_error_stays_below_a_step(device, bits, kind):
    x = rows_of(kind, 6, 33).to(device)
    layout = WireLayout.build(torch.full((6,), bits, dtype=torch.uint8, device=device), 33)
    ids = torch.arange(6, device=device)
    got = encode(x, None, layout, KEY, ids)
    header = got.payload.view(6, -1)[:, :8].contiguous().view(torch.float32).double()
    error = (decode(got.payload, layout).double() - x.double()).abs()
    assert (error <= header[:, 1:]).all()
    if kind in ("constant", "zero"):
        assert not error.any()


def test_a_row_has_the_same_bytes_in_any_message(device, threads):
    count = 8 if INTERPRETED else 60
    x, bits, ids = rows_of("plain", count, 600), mixed_bits(count), ids_of(count)
    x, bits = x.to(device), bits.to(device)
    whole = WireLayout.build(bits, 600)
    set_threads(1)
    sent = encode(x, None, whole, KEY, ids.to(device)).payload
    set_threads(3)
    again = encode(x, None, whole, KEY, ids.to(device), out=torch.empty_like(sent))
    assert torch.equal(again.payload, sent)
    some = torch.tensor([5, 3, count - 1, 3, count // 2], device=device)
    part = WireLayout.build(bits[some], 600)
    payload = encode(x, some, part, KEY, ids.to(device)[some]).payload
    rows = [sent[whole.start_S[n] : whole.start_S[n + 1]] for n in some.tolist()]
    assert torch.equal(payload, torch.cat(rows))
    other = encode(x, None, whole, DrawKey(seed=5, epoch=3, purpose=9), ids.to(device))
    assert not torch.equal(other.payload, sent)


@pytest.mark.parametrize(
    ("bits", "value"),
    [(bits, float("nan")) for bits in WIDTHS]
    + [(4, float("inf")), (16, float("-inf")), (8, -float("nan")), (32, float("inf"))],
)
def test_a_row_that_is_not_finite_is_named(device, bits, value):
    x = torch.ones(5, 20, device=device)
    x[2, 19] = value
    ids = torch.tensor([9, 8, 70123, 6, 5], device=device)
    layout = WireLayout.build(torch.full((5,), bits, dtype=torch.uint8, device=device), 20)
    with pytest.raises(DataError, match="node 70123"):
        encode(x, None, layout, KEY, ids)
    unchecked = encode(x, None, layout, KEY, ids, check=False)
    assert unchecked.first_bad() == 2
    good = torch.tensor([0, 1, 3, 4], device=device)
    assert torch.equal(decode(unchecked.payload, layout)[good], x[good])


def test_awkward_differences_that_overflow_are_refused_unless_raw(device):
    """Not run by Triton's interpreter, where an overflow is a warning."""
    x = torch.tensor([[-3e38, 3e38], [-8e37, 8e37]], device=device)
    ids = torch.arange(2, device=device)
    for bits, bad in ((8, 0), (32, None)):
        layout = WireLayout.build(torch.full((2,), bits, dtype=torch.uint8, device=device), 2)
        got = encode(x, None, layout, KEY, ids, check=False)
        assert got.first_bad() == bad
        assert decode(got.payload, layout).isfinite().all()


def test_rows_are_decoded_into_a_part_of_a_buffer(device):
    x = rows_of("plain", 4, 24).to(device)
    layout = WireLayout.build(mixed_bits(4).to(device), 24)
    payload = encode(x, None, layout, KEY, torch.arange(4, device=device)).payload
    buffer = torch.full((9, 24), torch.nan, device=device)
    decode_into(payload, layout, buffer[3:7])
    assert torch.equal(buffer[3:7], decode(payload, layout))
    assert buffer[[0, 1, 2, 7, 8]].isnan().all()


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_nothing_to_send_is_no_error(device, shape):
    bits = torch.full(shape[:1], 4, dtype=torch.uint8, device=device)
    layout = WireLayout.build(bits, shape[1])
    got = encode(
        torch.ones(shape, device=device), None, layout, KEY, torch.arange(shape[0], device=device)
    )
    assert decode(got.payload, layout).shape == shape
    assert not got.range_S.any()


@pytest.mark.parametrize("width", [1, 16, 41, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_size_is_a_formula_of_widths(width, dtype):
    bits = mixed_bits(7)
    layout = WireLayout.build(bits, width, dtype)
    each = [row_bytes(b, width, dtype.itemsize) for b in bits.tolist()]
    assert layout.num_bytes == wire_bytes(bits, width, dtype.itemsize) == sum(each)
    assert layout.split_bytes([3, 0, 4]) == [sum(each[:3]), 0, sum(each[3:])]
    assert row_bytes(2, 256) == 8 + 64
    assert row_bytes(8, 41) == 8 + 44
    assert row_bytes(32, 41, 8) == 328


def test_foreseeable_misuse_is_refused():
    x, ids, bits = torch.ones(3, 8), torch.arange(3), torch.full((3,), 8, dtype=torch.uint8)
    layout = WireLayout.build(bits, 8)
    payload = encode(x, None, layout, KEY, ids).payload
    with pytest.raises(PlanError, match="Unknown wire width"):
        WireLayout.build(bits - 5, 8)
    with pytest.raises(PlanError, match="Unknown wire width"):
        row_bytes(3, 8)
    with pytest.raises(PlanError, match="uint8"):
        WireLayout.build(bits.int(), 8)
    with pytest.raises(PlanError, match="do not fit the layout"):
        encode(x[:, :4], None, layout, KEY, ids)
    with pytest.raises(PlanError, match="do not fit the layout"):
        encode(x, ids[:2], layout, KEY, ids)
    with pytest.raises(PlanError, match="payload does not fit"):
        decode(payload[4:], layout)
    with pytest.raises(PlanError, match="multiple of 4"):
        decode(torch.zeros(len(payload) + 1, dtype=torch.uint8)[1:], layout)
    with pytest.raises(PlanError, match="output does not fit"):
        decode_into(payload, layout, torch.empty(3, 8, dtype=torch.float64))
    with pytest.raises(PlanError, match="cover the message"):
        layout.split_bytes([1, 1])


def test_warming_up_covers_every_width():
    """One compiled kernel serves all widths, with and without row numbers."""
    warm_up_wire(16)
    compiled = [len(f.signatures) for f in (wire_numba._encode_rows, wire_numba._decode_rows)]
    x, ids = torch.ones(5, 40), torch.arange(5)
    layout = WireLayout.build(mixed_bits(5), 40)
    for rows in (None, ids):
        decode(encode(x, rows, layout, KEY, ids).payload, layout)
    after = [len(f.signatures) for f in (wire_numba._encode_rows, wire_numba._decode_rows)]
    assert after == compiled
