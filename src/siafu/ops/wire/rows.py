"""Rows as they travel: each at a width of its own, 2 to 16 bits per entry or unchanged, unbiased.

A quantised row is float32 zero point, float32 step, then one field an entry in column order, least
significant bits first, filled up to 4 bytes. With u drawn by (key, node, column),

    q = floor((h - zero) / step + u)        decoded = q * step + zero        E[decoded] = h

Zero point and step are multiples of one power of two, coarse enough that `q * step + zero` is exact
in float32; so the only error left is rounding `h - zero`, below 2^-24 of the row's range, and the
15 bits of u, below 2^-16 steps. Step is (max - min) / (2^bits - 1) rounded up to that multiple: by
at most 1.6 % at 16 bits, 2^-14 at 8, where the range is as large as the numbers. A constant row has
step 0 and decodes exactly. One bit is left out: for D / 8 bytes less it has 9 times the variance of
2 bits; a byte saved so costs 17 times what it costs from 4 to 2, so a budget must be below 2 first.

float64 rows are quantised from their float32 values; at 32 bits they travel as all 8 bytes.
Floats of fewer bits are in `floats`.

Of changes (`encode_changes`) both ends keep each row as the receiver last had it, and what is
encoded is the difference to it, or the row itself where that has the smaller range: then the sign
of the step is set. What rounding left over is part of the next difference. There 0 bits are no
bytes and leave the row as it is, and one bit is the nearer of the middles of two halves, not drawn:
a draw between the ends of a range has errors of up to the range, which then would grow.

Shapes: N rows of x, S rows in the message, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from siafu.errors import DataError, PlanError
from siafu.ops.contract import Draw, Wire
from siafu.ops.kernels import wire_kernels
from siafu.ops.random.draws import DrawKey
from siafu.ops.wire.floats import FLOATS, decode_floats, encode_floats, float_bytes
from siafu.ops.wire.reference import CHANGE_WIDTHS, DTYPES, RAW, WIDTHS

HEADER_BYTES = 8
_ALL = (*CHANGE_WIDTHS, *FLOATS)


def row_bytes(bits: int, width: int, element_size: int = 4) -> int:
    """Return the bytes of one encoded row; `element_size` is that of its entries before."""
    _check_widths({bits}, _ALL)
    if bits in FLOATS:
        return float_bytes(bits, width)
    if bits in (0, RAW):
        return width * element_size if bits else 0
    return HEADER_BYTES + 4 * -(-width * bits // 32)


def wire_bytes(bits_S: Tensor, width: int, element_size: int = 4) -> int:
    """Return the bytes of a message whose rows have these widths in bits."""
    counts = torch.bincount(bits_S.long(), minlength=RAW + 1).tolist()
    _check_widths({bits for bits, count in enumerate(counts) if count}, _ALL)
    return sum(counts[bits] * row_bytes(bits, width, element_size) for bits in _ALL)


@dataclass(frozen=True, slots=True, eq=False)
class WireLayout:
    """Where each row of a message lies; sender and receiver build it from the same widths."""

    bits_S: Tensor
    """uint8, one of `WIDTHS` a row; of changes, of `CHANGE_WIDTHS`."""

    start_S: Tensor
    """int64 [S + 1]: the first byte of each row, then the end."""

    width: int
    """D."""

    dtype: torch.dtype
    """Of the rows on both sides, float32 or float64."""

    num_bytes: int
    """Of the whole payload."""

    floats: int | None = None
    """One of `FLOATS`, where that is the format of all rows."""

    @classmethod
    def build(
        cls,
        bits_S: Tensor,
        width: int,
        dtype: torch.dtype = torch.float32,
        *,
        changes: bool = False,
    ) -> "WireLayout":
        """Return the layout; once an assignment, since the device waits for the total."""
        if dtype not in DTYPES or bits_S.dtype != torch.uint8 or bits_S.dim() != 1:
            raise PlanError(
                "A message needs float rows and a row of widths.",
                seen=f"rows of {dtype}, widths {bits_S.dtype} {tuple(bits_S.shape)}",
                fix="use float32 or float64 rows and uint8 [S] widths",
            )
        seen = set(bits_S.unique().tolist())
        floats = seen.pop() if len(seen) == 1 and seen <= set(FLOATS) else None
        _check_widths(seen, CHANGE_WIDTHS if changes else WIDTHS)
        sizes = torch.zeros(RAW + 1, dtype=torch.int64)
        for bits in _ALL:
            sizes[bits] = row_bytes(bits, width, dtype.itemsize)
        start_S = torch.zeros(len(bits_S) + 1, dtype=torch.int64, device=bits_S.device)
        torch.cumsum(sizes.to(bits_S.device)[bits_S.long()], 0, out=start_S[1:])
        return cls(bits_S.contiguous(), start_S, width, dtype, int(start_S[-1]), floats)

    @property
    def num_rows(self) -> int:
        """S."""
        return len(self.bits_S)

    def split_bytes(self, counts: Sequence[int]) -> list[int]:
        """Return the bytes of consecutive groups of rows, such as the rows for each peer."""
        bounds = [0, *accumulate(counts)]
        if bounds[-1] != self.num_rows:
            raise PlanError(
                "The groups do not cover the message.",
                seen=f"groups of {bounds[-1]} rows, a message of {self.num_rows}",
                fix="give one count for each peer, in the order of the rows",
            )
        where = torch.tensor(bounds, device=self.start_S.device)
        return self.start_S[where].diff().tolist()

    def to(self, device: torch.device | str) -> "WireLayout":
        """Return the same layout on another device."""
        return replace(self, bits_S=self.bits_S.to(device), start_S=self.start_S.to(device))


class Encoded(NamedTuple):
    """A message, and the range of each row that went into it."""

    payload: Tensor
    """uint8 [layout.num_bytes]."""

    range_S: Tensor
    """float32, max - min of each row; NaN where a row cannot be sent."""

    def first_bad(self) -> int | None:
        """Return the first row of the message that cannot be sent; the device waits for this."""
        if not len(self.range_S):
            return None
        place = int(self.first_bad_place())
        return place if place >= 0 else None

    def first_bad_place(self) -> Tensor:
        """Return the same as a number on the device, -1 for none; there is a row at least."""
        bad_S = self.range_S.isnan()
        return (bad_S.int().argmax() + 1) * bad_S.any().long() - 1


def encode(
    x_ND: Tensor,
    rows_S: Tensor | None,
    layout: WireLayout,
    key: DrawKey,
    ids_S: Tensor,
    *,
    out: Tensor | None = None,
    check: bool = True,
) -> Encoded:
    """Return rows x[rows_S] (all of x for None) as a message; `ids_S` are their global ids.

    A row's bytes depend on (key, id, width in bits, the row) alone. `out` receives the payload.
    A row with NaN, infinity or, below 32 bits, a number of 2^126 or more is an error that names its
    id; without `check` the device need not wait, and `Encoded.first_bad` tells later.
    """
    _check_rows(x_ND, rows_S, layout, ids_S)
    payload = x_ND.new_empty(layout.num_bytes, dtype=torch.uint8) if out is None else out
    _check_payload(payload, layout)
    range_S = torch.empty(layout.num_rows, dtype=torch.float32, device=x_ND.device)
    if layout.floats is not None:
        encode_floats(x_ND.detach(), rows_S, layout.floats, payload, range_S)
    else:
        wire_kernels(x_ND.device).encode_into(
            x_ND.detach().contiguous(),
            None if rows_S is None else rows_S.contiguous(),
            Draw(key.row_words(), ids_S.contiguous()),
            Wire(payload, layout.bits_S, layout.start_S),
            range_S,
        )
    encoded = Encoded(payload, range_S)
    if check and (bad := encoded.first_bad()) is not None:
        raise bad_row(f"row of node {int(ids_S[bad])}")
    return encoded


def decode(payload: Tensor, layout: WireLayout) -> Tensor:
    """Return rows_SD of a message."""
    out_SD = torch.empty(layout.num_rows, layout.width, dtype=layout.dtype, device=payload.device)
    decode_into(payload, layout, out_SD)
    return out_SD


def decode_into(payload: Tensor, layout: WireLayout, out_SD: Tensor) -> None:
    """Write the rows of a message to `out_SD`, which may be consecutive rows of a larger tensor."""
    _check_payload(payload, layout)
    _check_kept(out_SD, layout)
    if layout.floats is not None:
        decode_floats(payload, layout.floats, out_SD.detach())
        return
    wire = Wire(payload, layout.bits_S, layout.start_S)
    wire_kernels(payload.device).decode_into(wire, out_SD.detach())


def encode_changes(
    x_ND: Tensor,
    rows_S: Tensor | None,
    layout: WireLayout,
    key: DrawKey,
    ids_S: Tensor,
    kept_SD: Tensor,
) -> Encoded:
    """Return what leads from `kept_SD` to rows x[rows_S] as a message, as `encode` does of rows.

    `kept_SD` becomes what the receiver will have; ranges are those of what was rounded.
    """
    _check_rows(x_ND, rows_S, layout, ids_S)
    _check_kept(kept_SD, layout)
    if layout.floats is not None:
        raise PlanError(
            "Changes are not written as floats of fewer bits.",
            seen=f"format {layout.floats}",
            fix=f"use one of {', '.join(map(str, CHANGE_WIDTHS))} bits",
        )
    payload = x_ND.new_empty(layout.num_bytes, dtype=torch.uint8)
    range_S = torch.empty(layout.num_rows, dtype=torch.float32, device=x_ND.device)
    wire_kernels(x_ND.device).encode_changes(
        x_ND.detach().contiguous(),
        None if rows_S is None else rows_S.contiguous(),
        kept_SD,
        Draw(key.row_words(), ids_S.contiguous()),
        Wire(payload, layout.bits_S, layout.start_S),
        range_S,
    )
    return Encoded(payload, range_S)


def decode_changes(payload: Tensor, layout: WireLayout, kept_SD: Tensor) -> None:
    """Make `kept_SD` the rows that a message of `encode_changes` leads to, in place."""
    _check_payload(payload, layout)
    _check_kept(kept_SD, layout)
    wire = Wire(payload, layout.bits_S, layout.start_S)
    wire_kernels(payload.device).decode_changes(wire, kept_SD)


def row_range(x_ND: Tensor, rows_S: Tensor | None = None) -> Tensor:
    """Return range_S, max - min of each row; `encode` gives the same without another pass."""
    chosen_SD = (x_ND if rows_S is None else x_ND.index_select(0, rows_S)).detach().float()
    if not chosen_SD.size(1):
        return chosen_SD.new_zeros(len(chosen_SD))
    low_S, high_S = torch.aminmax(chosen_SD, dim=1)
    return high_S - low_S


def warm_up_wire(width: int = 128) -> None:
    """Compile the float32 CPU kernels, or load them from disk, before ranks start and race to."""
    x_ND, rows_S = torch.ones(2, width), torch.arange(2)
    layout = WireLayout.build(torch.full((2,), 8, dtype=torch.uint8), width)
    key = DrawKey(seed=0, epoch=0, purpose=0)
    for rows in (None, rows_S):
        decode(encode(x_ND, rows, layout, key, rows_S).payload, layout)
        kept = torch.zeros_like(x_ND)
        changes = encode_changes(x_ND, rows, layout, key, rows_S, kept)
        decode_changes(changes.payload, layout, kept)


def bad_row(what: str) -> DataError:
    """Return the error for a row that cannot be sent, once the caller knows whose it is."""
    return DataError(
        "A row to be sent is not finite.",
        seen=f"NaN, infinity or a number near 1e38 in the {what}",
        fix="look for NaN in its features; else training diverged: lower the learning rate",
    )


def _check_widths(seen: set[int], known: Sequence[int] = CHANGE_WIDTHS) -> None:
    if not seen <= set(known):
        raise PlanError(
            "Unknown wire width.",
            seen=f"{sorted(seen - set(known))} bits",
            fix=f"use one of {', '.join(map(str, known))}",
        )


def _check_rows(x_ND: Tensor, rows_S: Tensor | None, layout: WireLayout, ids_S: Tensor) -> None:
    count = x_ND.size(0) if rows_S is None else len(rows_S)
    is_whole = x_ND.dim() == 2 and x_ND.size(1) == layout.width and x_ND.dtype == layout.dtype
    indices = [ids_S] if rows_S is None else [ids_S, rows_S]
    if (
        not is_whole
        or count != layout.num_rows
        or any(len(t) != count or t.dtype != torch.int64 for t in indices)
        or any(t.device != x_ND.device for t in [*indices, layout.bits_S])
    ):
        raise PlanError(
            "The rows do not fit the layout of the message.",
            seen=f"x {tuple(x_ND.shape)} {x_ND.dtype} on {x_ND.device}, {count} rows, "
            f"{len(ids_S)} ids {ids_S.dtype}",
            fix=f"pass {layout.num_rows} rows and int64 ids of width {layout.width}, "
            f"{layout.dtype} on {layout.bits_S.device}",
        )


def _check_kept(out_SD: Tensor, layout: WireLayout) -> None:
    if (
        out_SD.shape != (layout.num_rows, layout.width)
        or out_SD.dtype != layout.dtype
        or not out_SD.is_contiguous()
    ):
        raise PlanError(
            "The output does not fit the message.",
            seen=f"out {tuple(out_SD.shape)} {out_SD.dtype}",
            fix=f"pass whole rows, {(layout.num_rows, layout.width)} of {layout.dtype}",
        )


def _check_payload(payload: Tensor, layout: WireLayout) -> None:
    if (
        payload.dtype != torch.uint8
        or payload.shape != (layout.num_bytes,)
        or not payload.is_contiguous()
        or payload.data_ptr() % 4
        or payload.device != layout.bits_S.device
    ):
        raise PlanError(
            "The payload does not fit the layout of the message.",
            seen=f"{payload.dtype} {tuple(payload.shape)} on {payload.device}",
            fix=f"pass uint8 [{layout.num_bytes}] that starts at a multiple of 4 bytes",
        )
