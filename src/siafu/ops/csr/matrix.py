"""A sparse matrix of edges: which source rows each destination row reads.

Shapes: M destination rows, C source columns, E edges.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from siafu.errors import PlanError
from siafu.ops.contract import NO_LONG_ROWS, LongRows
from siafu.ops.kernels import csr_kernels

INT32_MAX = 2**31 - 1
_EDGES_AT_ONCE = 1 << 22
"""So few that what is made of each is small beside a large graph's edges."""


@dataclass(frozen=True, eq=False)
class CSR:
    """M x C matrix in compressed rows: row i holds edges indptr[i] to indptr[i + 1].

    Making one checks shapes, types and devices only; `CSR.checked` reads the numbers too. The
    kernels trust the numbers: a column outside the matrix reads foreign memory.
    """

    indptr: Tensor
    """int64 [M + 1], from 0 to E, never falling."""

    index: Tensor
    """int32 or int64 [E]: the source column of each edge, in any order within a row."""

    num_cols: int
    """C, the number of source rows there are to read."""

    weight: Tensor | None = None
    """[E] factor of each edge; None means 1."""

    longest: int | None = field(default=None, kw_only=True)
    """Edges that no row has more of, where that is known without a look at them."""

    _shape_cache: dict[str, Any] = field(default_factory=dict, repr=False)
    """What was derived from indptr and index alone; shared by matrices of other weights."""

    _transpose: list["CSR"] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        _require(
            self.indptr.dtype == torch.int64 and self.indptr.dim() == 1 and len(self.indptr) > 0,
            "indptr must be int64 with M + 1 entries.",
            seen=f"{self.indptr.dtype}, shape {tuple(self.indptr.shape)}",
        )
        _require(
            self.index.dtype in (torch.int32, torch.int64) and self.index.dim() == 1,
            "index must be int32 or int64 with one entry per edge.",
            seen=f"{self.index.dtype}, shape {tuple(self.index.shape)}",
        )
        _require(self.num_cols >= 0, "num_cols is negative.", seen=str(self.num_cols))
        _require(
            self.indptr.device == self.index.device,
            "indptr and index lie on different devices.",
            seen=f"{self.indptr.device} and {self.index.device}",
        )
        if self.weight is not None:
            _require(
                self.weight.shape == self.index.shape and self.weight.device == self.index.device,
                "weight must have one entry per edge, on the device of index.",
                seen=f"shape {tuple(self.weight.shape)} on {self.weight.device}, "
                f"{self.num_edges} edges on {self.device}",
            )

    @classmethod
    def checked(
        cls, indptr: Tensor, index: Tensor, num_cols: int, weight: Tensor | None = None
    ) -> "CSR":
        """Return the matrix after reading every number once: the way in for foreign data."""
        csr = cls(indptr, index, num_cols, weight)
        first, last = int(indptr[0]), int(indptr[-1])
        _require(
            first == 0 and last == csr.num_edges,
            "indptr must run from 0 to the number of edges.",
            seen=f"{first} to {last}, {csr.num_edges} edges",
        )
        _require(bool((indptr.diff() >= 0).all()), "indptr falls.", seen="a row of negative length")
        if csr.num_edges:
            low, high = (int(v) for v in torch.aminmax(index))
            _require(
                low >= 0 and high < num_cols,
                "An edge reads a column outside the matrix.",
                seen=f"columns {low} to {high}, num_cols={num_cols}",
            )
        return csr

    @property
    def num_rows(self) -> int:
        """M, the number of destination rows."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """E, the number of edges."""
        return len(self.index)

    @property
    def device(self) -> torch.device:
        """Where every tensor of the matrix lies."""
        return self.index.device

    @property
    def nbytes(self) -> int:
        """What its tensors take."""
        weight = 0 if self.weight is None else self.weight.nbytes
        return self.indptr.nbytes + self.index.nbytes + weight

    def degree(self) -> Tensor:
        """Return int64 [M], the number of edges of each row."""
        return self.indptr.diff()

    def long_rows(self) -> LongRows | None:
        """Return the rows that kernels sum in pieces; None while nobody knows, or where none are.

        Finding them makes the host wait for the device, so a matrix must be used twice for that.
        """
        kernels = csr_kernels(self.device)
        if kernels.LONG_ROW is None or torch.compiler.is_compiling():
            return None
        if self.longest is not None:
            return NO_LONG_ROWS if self.longest <= kernels.LONG_ROW else None
        found: LongRows | None = self._shape_cache.get("long_rows")
        if found is None and "is_used" in self._shape_cache:
            if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                return None
            found = self._shape_cache["long_rows"] = kernels.cut_rows(self.indptr)
        self._shape_cache["is_used"] = True
        return found

    def rows(self) -> Tensor:
        """Return int64 [E], the destination row of each edge; made once, on request."""
        if "rows" not in self._shape_cache:
            numbers = torch.arange(self.num_rows, device=self.device)
            self._shape_cache["rows"] = numbers.repeat_interleave(
                self.degree(), output_size=self.num_edges
            )
        return self._shape_cache["rows"]

    def row_spans(self, most_edges: int | None = None) -> list[tuple[int, int]]:
        """Return spans of rows, each of at most `most_edges` edges unless one row has more.

        Without a number, of so few that something made of each takes little memory.
        """
        most_edges = most_edges or _EDGES_AT_ONCE
        bounds = self.indptr.cpu()
        spans, lo = [], 0
        while lo < self.num_rows:
            hi = int(torch.searchsorted(bounds, bounds[lo] + most_edges, right=True)) - 1
            spans.append((lo, min(max(hi, lo + 1), self.num_rows)))
            lo = spans[-1][1]
        return spans

    def slice_rows(self, lo: int, hi: int) -> "CSR":
        """Return the rows from `lo` to `hi`, all columns kept."""
        start, end = int(self.indptr[lo]), int(self.indptr[hi])
        weight = None if self.weight is None else self.weight[start:end]
        return CSR(self.indptr[lo : hi + 1] - start, self.index[start:end], self.num_cols, weight)

    def select_rows(self, rows_M: Tensor) -> tuple["CSR", Tensor]:
        """Return some rows in this order, all columns kept, and the numbers of their edges."""
        starts_M = self.indptr.index_select(0, rows_M)
        degree_M = self.indptr.index_select(0, rows_M + 1) - starts_M
        indptr = torch.zeros(len(rows_M) + 1, dtype=torch.int64, device=self.device)
        indptr[1:] = degree_M.cumsum(0)
        number_E = torch.arange(int(indptr[-1]), device=self.device)
        edges_E = number_E + (starts_M - indptr[:-1]).repeat_interleave(degree_M)
        # index_select: picking by an index tensor in brackets takes many times as long on CPU.
        weight = None if self.weight is None else self.weight.index_select(0, edges_E)
        return CSR(indptr, self.index.index_select(0, edges_E), self.num_cols, weight), edges_E

    def transpose(self) -> "CSR":
        """Return the C x M transpose, made once; edges of a row are in rising original order."""
        if not self._transpose:
            if "turned_indptr" not in self._shape_cache:
                indptr, index = csr_kernels(self.device).transpose(
                    self.indptr, self.index, self.num_cols, edge_dtype(self.num_rows)
                )
                self._shape_cache.update(turned_indptr=indptr, turned_index=index)
            indptr, index = (self._shape_cache[k] for k in ("turned_indptr", "turned_index"))
            weight = None if self.weight is None else self.weight[self.transpose_order()]
            self._transpose.append(CSR(indptr, index, self.num_rows, weight))
        return self._transpose[0]

    def transpose_order(self) -> Tensor:
        """Return [E]: the edge here that became each edge of `transpose()`; made once, on request.

        int32 while edge numbers fit, since at 100 M edges the difference is 400 MB.
        """
        if "order" not in self._shape_cache:
            self._shape_cache["order"] = csr_kernels(self.device).transpose_order(
                self.indptr, self.index, self.num_cols, edge_dtype(self.num_edges)
            )
        return self._shape_cache["order"]

    def with_weight(self, weight: Tensor) -> "CSR":
        """Return the same edges with other weights; work done for their shape is shared."""
        return replace(self, weight=weight)

    def with_transpose(self, turned: "CSR") -> "CSR":
        """Return the same matrix with the transpose that a caller has at hand already."""
        known = {"turned_indptr": turned.indptr, "turned_index": turned.index}
        matrix = replace(self, _shape_cache=self._shape_cache | known)
        matrix._transpose.append(turned)
        return matrix

    def to(self, device: torch.device | str) -> "CSR":
        """Return the matrix on `device`, itself when there already; the cache stays behind."""
        weight = None if self.weight is None else self.weight.to(device)
        indptr, index = self.indptr.to(device), self.index.to(device)
        if indptr is self.indptr and index is self.index and weight is self.weight:
            return self
        return CSR(indptr, index, self.num_cols, weight, longest=self.longest)


def edge_dtype(count: int) -> torch.dtype:
    """Return the narrowest of int32 and int64 that can number `count` things."""
    return torch.int32 if count <= INT32_MAX else torch.int64


def _require(condition: bool, problem: str, *, seen: str) -> None:
    if not condition:
        raise PlanError(problem, seen=seen, fix="see the fields of siafu.ops.CSR")
