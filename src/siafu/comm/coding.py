"""How rows are written for the wire: the formats there are, and the coding of one exchange.

Both ends know the format of each row. Which rows are rounded, and to which format, is decided by
`strategy.rounding`; here is only what every exchange needs, and what others round with.

Shapes: S rows sent, R rows received.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from siafu.comm.bad_rows import looks_later
from siafu.comm.kept import KeptRows
from siafu.errors import PlanError
from siafu.ops import DrawKey, Encoded, WireLayout, bad_row, decode, encode, row_bytes

FormatKind = Literal["float", "rounded", "kept"]

_CODES: dict[tuple[FormatKind, int], int] = {
    ("kept", 0): 0,
    ("rounded", 1): 1,
    ("rounded", 2): 2,
    ("rounded", 4): 4,
    ("float", 8): 9,
    ("rounded", 8): 8,
    ("float", 16): 17,
    ("rounded", 16): 16,
    ("float", 32): 32,
}
"""The byte that stands for each (kind, bits): in tensors of rows, in kernels, among ranks and in
checkpoints, so none may change. A new format has a row here and its way through `ops`."""

_WORDS: dict[tuple[FormatKind, int], str] = {("float", 8): "fp8", ("float", 16): "bf16"}


@dataclass(frozen=True, slots=True)
class Format:
    """How the entries of a row are written."""

    kind: FormatKind
    """`float` is the nearest float of so many bits: FP8 with a scale for the row, bfloat16, or the
    row unchanged, float64 too. `rounded` is right on average, between two scales, but for one bit,
    which is the nearer value; `kept` sends nothing. The latter two are of changes."""
    bits: int
    """Of an entry."""

    def __post_init__(self) -> None:
        if (self.kind, self.bits) not in _CODES:
            known = ", ".join(f"{kind} {bits}" for kind, bits in _CODES)
            raise PlanError(
                "Unknown format of rows.",
                seen=f"{self.kind} {self.bits}",
                fix=f"use one of {known}",
            )

    def __str__(self) -> str:
        """Return what settings and summaries call it."""
        return _WORDS.get((self.kind, self.bits), str(self.bits))

    @classmethod
    def of_wire(cls, wire: int | str) -> "Format":
        """Return what a format is in the settings: bits, or the name of a float."""
        return next((each for each in FORMATS if str(each) == str(wire)), UNCHANGED)

    @classmethod
    def of_bits(cls, bits: int) -> "Format":
        """Return what bits in the settings mean: 32 are unchanged, fewer are rounded."""
        kind: FormatKind = "rounded" if bits else "kept"
        return UNCHANGED if bits == UNCHANGED.bits else cls(kind, bits)

    @classmethod
    def of_code(cls, code: int) -> "Format":
        """Return the format that a byte stands for."""
        return next(each for each in FORMATS if each.code == code)

    @property
    def code(self) -> int:
        """The byte that stands for the format."""
        return _CODES[self.kind, self.bits]

    @property
    def is_cast(self) -> bool:
        """Whether entries are floats of fewer bits."""
        return self.kind == "float" and self.bits < UNCHANGED.bits

    @property
    def variance(self) -> float:
        """Of an entry, relative to rounding it to the ends of its row's range."""
        if self.bits < 2:
            # Errors within a quarter of the range; a change that is as far from 0 as it is wide.
            return 1 / 8 if self.bits else 2.0
        if self.kind == "float":
            return 0.0 if self.bits == UNCHANGED.bits else 2.0**-self.bits
        return (2.0**self.bits - 1) ** -2

    def row_bytes(self, width: int, element_size: int = 4) -> int:
        """Return the bytes of a row; `element_size` is that of its entries before."""
        return row_bytes(self.code, width, element_size)

    def codes(self, count: int, device: torch.device | str = "cpu") -> Tensor:
        """Return the code of each of so many rows, uint8."""
        return torch.full((count,), self.code, dtype=torch.uint8, device=device)


FORMATS = tuple(Format(kind, bits) for kind, bits in _CODES)
UNCHANGED = Format("float", 32)


@dataclass(frozen=True, slots=True, eq=False)
class Lot:
    """Which rows travel, where only some do; others are 0 for who reads them."""

    sent: Tensor
    """int64: their places among the rows sent."""
    received: Tensor
    num_received: int
    """R, those that do not travel included."""
    scale: float
    """Of rows that have come."""


@dataclass(frozen=True, slots=True, eq=False)
class Coding:
    """Formats of what is sent and received, and the draws that round it."""

    sent: Callable[[], WireLayout]
    """Where rows lie in the message, made when it is written."""
    received: Callable[[], WireLayout]
    sent_bytes: dict[int, int]
    """Of the rows for each peer that gets any."""
    received_bytes: dict[int, int]
    ids: Callable[[], Tensor]
    """Returns int64 [S]: numbers in the whole graph of the rows sent."""
    key: DrawKey
    name_row: Callable[[int], str]
    """What to call a row that can't be sent, by its place in the message."""
    trace: Callable[[Tensor], None] | None = None
    """Given the range of each row sent."""
    kept: KeptRows | None = None
    """What both ends keep of these rows from exchange to exchange."""
    before: Tensor | None = None
    """Rows that travel in place of those given, which `after` makes of them."""
    after: Callable[[Tensor], Tensor] | None = None
    """Done to rows once they are here, such as dropping entries."""
    is_silent: bool = False
    """Whether nothing travels, and what was kept is read."""
    lot: Lot | None = None
    """Which rows travel; None: all. Layouts and bytes are of these."""
    dtype: torch.dtype = torch.float32
    """Of rows as they are used."""

    def encode(self, x_ND: Tensor, rows_S: Tensor | None) -> Encoded:
        """Return rows x[rows_S] as a message."""
        x_ND, ids_S = (x_ND if self.before is None else self.before).flatten(1), self.ids()
        if self.lot is not None:
            some, ids_S = self.lot.sent, ids_S[self.lot.sent]
            rows_S = some if rows_S is None else rows_S[some]
        if self.kept is not None and self.kept.keeping.changes:
            encoded = self.kept.encode(x_ND, rows_S, self.sent(), self.key, ids_S)
        else:
            encoded = encode(x_ND, rows_S, self.sent(), self.key, ids_S, check=False)
        if self.trace is not None:
            self.trace(encoded.range_S)
        return encoded

    def decode(self, payload: Tensor, encoded: Encoded, shape: torch.Size) -> Tensor:
        """Return the rows received; on a CPU, once it is sure that those sent were finite."""
        if self.kept is not None:
            self.take(payload, encoded)
            return self.read(shape)
        self._check_sent(encoded)
        rows_RD = decode(payload, self.received())
        if (lot := self.lot) is not None:
            whole_RD = rows_RD.new_zeros(lot.num_received, rows_RD.size(1))
            rows_RD = whole_RD.index_copy_(0, lot.received, rows_RD.mul_(lot.scale))
        return self.finished(rows_RD, shape)

    def take(self, payload: Tensor, encoded: Encoded) -> Tensor:
        """Keep the rows received."""
        assert self.kept is not None
        self._check_sent(encoded)
        self.kept.take(payload, self.received())
        return self.kept.rows

    def name_sent(self, place: int) -> str:
        """Return what an error says of the row that stands there among those that were sent."""
        return self.name_row(place if self.lot is None else int(self.lot.sent[place]))

    def _check_sent(self, encoded: Encoded) -> None:
        if looks_later(encoded):
            return  # noted when it was encoded
        if (bad := encoded.first_bad()) is not None:
            raise bad_row(self.name_sent(bad))

    def read(self, shape: torch.Size) -> Tensor:
        """Return the rows that are kept here."""
        assert self.kept is not None
        return self.finished(self.kept.rows.to(self.dtype), shape)

    def finished(self, rows_RD: Tensor, shape: torch.Size) -> Tensor:
        """Return rows as they are used."""
        return (rows_RD if self.after is None else self.after(rows_RD)).view(-1, *shape)
