"""Rows as minibatches fetch them: coded at 8 bits, packed where mostly zero, kept where often used.

Shapes: N rows, R rows read, F features.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from siafu.comm import Format, World
from siafu.minibatch.schedule import ORDER_PURPOSE
from siafu.nn import SparseRows, rows_to_sum_one
from siafu.ops import CSR, DrawKey, WireLayout, decode, encode
from siafu.shard import HeldRows, RowReader

_FORMAT = Format("rounded", 8)
_CODING_PURPOSE = ORDER_PURPOSE - 1
_ROWS_AT_ONCE = 1 << 16
_MOST_COLUMNS = 1 << 24
"""A column's number travels as a float32, exact up to here."""
_SHORTER = 4
"""Times shorter than a row written out, without which a dense product is quicker."""
_FADING = 0.9
"""What a use counts for one macrobatch later."""
_COMING = 1e6
"""What it counts for to be read by the next macrobatch: more than any number of uses."""
FetchRows = Callable[[Tensor], dict[str, Tensor]]


class CodedRows:
    """Features at 8 bits: rounded once, right on average, a quarter of the bytes everywhere.

    Held ones are coded once, those of a file whenever they are read. Draws are keyed by node alone,
    so both give the same bytes in every epoch and on any rank. B bytes of a coded row.
    """

    def __init__(self, x: RowReader, ids_N: Tensor, seed: int) -> None:
        self._x, self._ids_N, self._key = x, ids_N, DrawKey(seed, 0, _CODING_PURPOSE)
        self.dtype = torch.uint8
        self.shape = (x.shape[0], _layout(1, x.shape[1]).num_bytes)
        self._held = self._coded() if isinstance(x, HeldRows) else None

    def read(self, rows_R: Tensor) -> Tensor:
        """Return the bytes of these rows."""
        return self._code(rows_R) if self._held is None else self._held.read(rows_R)

    @property
    def nbytes(self) -> int:
        """What they take."""
        return math.prod(self.shape)

    def to(self, device: torch.device) -> HeldRows:
        """Return the bytes on a device."""
        return (self._held or self._coded()).to(device)

    def _coded(self) -> HeldRows:
        pieces = torch.arange(self.shape[0]).split(_ROWS_AT_ONCE)
        return HeldRows(torch.cat([self._code(rows) for rows in pieces]))

    def _code(self, rows_R: Tensor) -> Tensor:
        x_RF = self._x.read(rows_R)
        layout = _layout(len(rows_R), x_RF.size(1))
        coded = encode(x_RF, None, layout, self._key, self._ids_N[rows_R])
        return coded.payload.view(len(rows_R), self.shape[1])

    def error(self) -> float:
        """Return the root mean square of rounding over that of the features, of a sample."""
        count = min(self.shape[0], 10_000)
        rows = torch.arange(count) * (self.shape[0] // max(1, count))
        x_RF = self._x.read(rows)
        wrong = (decode_coded_rows(self.read(rows), x_RF.size(1)) - x_RF).square().sum()
        return float((wrong / x_RF.square().sum().clamp(min=1e-30)).sqrt())


def decode_coded_rows(bytes_RB: Tensor, width: int) -> Tensor:
    """Return x_RF of coded rows."""
    return decode(bytes_RB.contiguous().view(-1), _layout(len(bytes_RB), width))


def _layout(num_rows: int, width: int) -> WireLayout:
    return WireLayout.build(_FORMAT.codes(num_rows), width)


class PackedRows:
    """Sparse rows as [R, 2 K]: numbers of columns from 1 on, 0 where there is none, then values.

    So they travel, and are picked and kept, like any other rows. K values of the fullest row of any
    rank, Z values not zero.
    """

    def __init__(self, csr: CSR, most_values: int, *, normalise: bool) -> None:
        """`normalise` has each row sum to 1."""
        assert csr.weight is not None
        self._csr, self._most, self._normalise = csr, most_values, normalise
        self.shape, self.dtype = (csr.num_rows, 2 * most_values), csr.weight.dtype

    def read(self, rows_R: Tensor) -> Tensor:
        """Return these rows, packed."""
        picked, _ = self._csr.select_rows(rows_R)
        if self._normalise:
            scaled = rows_to_sum_one(SparseRows(picked, rows_R))
            assert isinstance(scaled, SparseRows)
            picked = scaled.csr
        assert picked.weight is not None
        out = picked.weight.new_zeros(len(rows_R), 2 * self._most)
        number_z = torch.arange(picked.num_edges, device=out.device)
        place_z = number_z - picked.indptr[:-1].repeat_interleave(
            picked.degree(), output_size=picked.num_edges
        )
        place_z += picked.rows() * (2 * self._most)
        flat = out.view(-1)
        flat[place_z] = picked.index.to(self.dtype) + 1
        flat[place_z + self._most] = picked.weight
        return out

    @property
    def nbytes(self) -> int:
        """What they take."""
        return self._csr.nbytes

    def to(self, device: torch.device) -> "PackedRows":
        """Return the same rows, packed on a device when they are read."""
        return PackedRows(self._csr.to(device), self._most, normalise=self._normalise)


def packed_rows(csr: CSR, world: World, *, normalise: bool = False) -> PackedRows | None:
    """Return the reader, or None where rows written out are not much longer; all ranks call."""
    mine = [float(csr.degree().max()) if csr.num_rows else 0.0]
    most = max(1, int(max(row[0] for row in world.gather_numbers(mine))))
    return PackedRows(csr, most, normalise=normalise) if packs(most, csr.num_cols) else None


def packs(most_values: int, width: int) -> bool:
    """Return whether rows of no more values than that are packed, not written out."""
    return _SHORTER * 2 * most_values <= width <= _MOST_COLUMNS


def unpack_rows(packed_R2K: Tensor, ids_R: Tensor, width: int) -> SparseRows:
    """Return the rows as a first layer reads them."""
    columns_RK, values_RK = packed_R2K.chunk(2, dim=1)
    is_value_RK = columns_RK > 0
    indptr = torch.zeros(len(packed_R2K) + 1, dtype=torch.int64, device=packed_R2K.device)
    indptr[1:] = is_value_RK.sum(dim=1).cumsum(0)
    index_z = (columns_RK[is_value_RK] - 1).to(torch.int32)
    return SparseRows(CSR(indptr, index_z, width, values_RK[is_value_RK]), ids_R)


class HotRows:
    """A cache of rows of other ranks by address; `get` asks the others for what it has not.

    The start has the halo rows that most edges here read; after that a row's score is the number of
    macrobatches that used it, old ones counting less, and the lowest scores make room for higher
    ones; what the next macrobatch reads, where that is known, comes before all of these. What is
    kept changes how many bytes travel, never what is computed.
    Shapes: U distinct nodes asked for, K nodes kept.
    """

    def __init__(self, capacity: int, first: Tensor, fetch: FetchRows) -> None:
        """`first` are the addresses to start with, the best first; all ranks call together."""
        self.capacity = capacity
        self.hits = self.misses = 0
        self._kept_K = first[:capacity].sort().values
        fetched = fetch(self._kept_K)
        # All the room at once: pages of it that stay empty cost nothing.
        self._rows = {
            name: rows.new_empty(capacity, *rows.shape[1:]) for name, rows in fetched.items()
        }
        for name, rows in fetched.items():
            self._rows[name][: self.num_kept] = rows
        self._score_K = torch.ones(self.num_kept)
        self._sorted_K, self._slots_K = self._kept_K.sort()

    @property
    def num_kept(self) -> int:
        """K."""
        return len(self._kept_K)

    @property
    def free_bytes(self) -> int:
        """What rows that are kept later will take."""
        rows = (kept[: self.capacity - self.num_kept] for kept in self._rows.values())
        return sum(part.nbytes for part in rows)

    def get(
        self, addresses_U: Tensor, fetch: FetchRows, coming: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return the rows of these addresses, which rise; every rank calls this together.

        `coming` are those that will be asked for next.
        """
        known, slots = self._known(addresses_U)
        is_missing_U = torch.ones(len(addresses_U), dtype=torch.bool)
        is_missing_U[known] = False
        missing = is_missing_U.nonzero().squeeze(1)
        fetched = fetch(addresses_U[missing])
        self.hits += len(slots)
        self.misses += len(missing)
        found = {}
        for name, rows in fetched.items():
            out = rows.new_empty(len(addresses_U), *rows.shape[1:])
            out.index_copy_(0, known, self._rows[name].index_select(0, slots))
            found[name] = out.index_copy_(0, missing, rows)
        self._score_K *= _FADING
        self._score_K[slots] += 1
        self._learn(addresses_U[missing], fetched, addresses_U[:0] if coming is None else coming)
        return found

    def _known(self, addresses_U: Tensor) -> tuple[Tensor, Tensor]:
        """Return which of the addresses are kept, and where."""
        if not self.num_kept:
            nothing = addresses_U[:0]
            return nothing, nothing
        place_U = torch.searchsorted(self._sorted_K, addresses_U).clamp_(max=self.num_kept - 1)
        known = (self._sorted_K[place_U] == addresses_U).nonzero().squeeze(1)
        return known, self._slots_K[place_U[known]]

    def _learn(self, addresses: Tensor, rows: dict[str, Tensor], coming: Tensor) -> None:
        """Keep new rows in free places, then in those that are worth less than they are."""
        free = min(self.capacity - self.num_kept, len(addresses))
        worth = 1 + _COMING * torch.isin(addresses, coming)
        order = worth.argsort(descending=True, stable=True)
        worth_K = self._score_K + _COMING * torch.isin(self._kept_K, coming)
        weak = worth_K.argsort(stable=True)[: len(addresses) - free]
        # The ones fall and the others rise, so those that give way come first.
        weak = weak[worth_K[weak] < worth[order[free : free + len(weak)]]]
        slots = torch.cat([torch.arange(self.num_kept, self.num_kept + free), weak])
        if not len(slots):
            return
        taken = order[: len(slots)]
        for name, kept in self._rows.items():
            kept.index_copy_(0, slots, rows[name].index_select(0, taken))
        self._score_K = torch.cat([self._score_K, torch.ones(free)])
        self._kept_K = torch.cat([self._kept_K, addresses[taken[:free]]])
        self._score_K[weak], self._kept_K[weak] = 1.0, addresses[taken[free:]]
        self._sorted_K, self._slots_K = self._kept_K.sort()
