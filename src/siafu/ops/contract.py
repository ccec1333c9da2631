"""What an implementation of the kernels must offer; Numba, Triton and plain torch each do.

Shapes: M destination rows, C source columns, E edges, D width, N drawn rows, W drawn columns,
H attention heads (then D is the width of one).
Tensors arrive checked and contiguous, on one device, so implementations hold arithmetic only.
"""

from enum import StrEnum
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


def sum_type(dtype: torch.dtype) -> torch.dtype:
    """Return the type that rows of `dtype` are summed in, and that factors of such a sum have."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


class Edges(NamedTuple):
    """A sparse matrix and its factors, flat: an op's schema knows tensors, not our classes."""

    indptr: Tensor
    index: Tensor  # type: ignore[assignment] # hides tuple.index, which nobody calls
    weight_E: Tensor | None = None
    row_scale_M: Tensor | None = None
    col_scale_C: Tensor | None = None

    def contiguous(self) -> "Edges":
        """Return the same edges in tensors without gaps."""
        factors = (None if t is None else t.contiguous() for t in self[2:])
        return Edges(self.indptr.contiguous(), self.index.contiguous(), *factors)


class LongRows(NamedTuple):
    """Rows of so many edges that they are summed in pieces: H rows, P pieces, or none at all."""

    row_H: Tensor | None = None
    first_H: Tensor | None = None
    """[H + 1]: the first piece of each, and P."""
    bounds_P2: Tensor | None = None
    """Where the edges of a piece begin and end."""


NO_LONG_ROWS = LongRows()


class Draw(NamedTuple):
    """Which random words to draw: two key words, and one or two 48-bit ids for each row."""

    key: tuple[int, int]
    first_N: Tensor
    second_N: Tensor | None = None
    held: Tensor | None = None
    """int64 [1]: both words of a key that lies on the device, in place of `key`."""


class CsrKernels(Protocol):
    """Kernels over compressed rows."""

    DTYPES: frozenset[torch.dtype]
    """Types of x that the implementation takes. Sums, and their factors, are of `sum_type`; what
    is written may be of x's type or of that."""

    @property
    def LONG_ROW(self) -> int | None:
        """Edges above which a row should be summed in pieces; None: never."""

    def sum_into(
        self,
        edges: Edges,
        x_CD: Tensor,
        out_MD: Tensor,
        *,
        accumulate: bool,
        long_rows: LongRows | None = None,
        own_K: Tensor | None = None,
    ) -> None:
        """Write, or add, row_scale[i] * sum of weight[e] * col_scale[j] * x[j] over row i.

        `long_rows` are what `cut_rows` found, where it was asked. With `own_K` own[i] * x[i] is
        part of the first K rows.
        """

    def cut_rows(self, indptr: Tensor) -> LongRows:
        """Return the rows to sum in pieces, which takes a look at all."""

    def max_into(self, edges: Edges, x_CD: Tensor, out_MD: Tensor, edge_MD: Tensor) -> None:
        """Write each row's maximum and the first edge that holds it; 0 and -1 for empty rows."""

    def max_fold_into(
        self,
        edges: Edges,
        number_E: Tensor,
        rows_M: Tensor | None,
        x_CD: Tensor,
        value_MD: Tensor,
        edge_MD: Tensor,
    ) -> None:
        """Fold edges into the largest values so far; see `fold_max`."""

    def max_grad_into(
        self,
        index: Tensor,
        edge_MD: Tensor,
        grad_MD: Tensor,
        grad_CD: Tensor,
        *,
        first: int = 0,
        rows_M: Tensor | None = None,
        indptr: Tensor | None = None,
    ) -> None:
        """Add each grad_MD entry to the source its edge reads; grad_CD arrives zeroed.

        Of the edges from number `first` on, as many as `index` has, and of the rows in `rows_M`;
        `indptr` tells where the edges of each begin, where that is known.
        """

    def transpose(
        self, indptr: Tensor, index: Tensor, num_cols: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return indptr and index of the transpose, rows of an entry in rising order."""

    def transpose_order(
        self, indptr: Tensor, index: Tensor, num_cols: int, dtype: torch.dtype
    ) -> Tensor:
        """Return the original edge number of each edge of the transpose."""


class RandomKernels(Protocol):
    """Kernels that draw from Philox4x32-10."""

    DTYPES: frozenset[torch.dtype]
    """Types of drawn numbers and of x that the implementation takes."""

    def uniform_into(self, draw: Draw, out_NW: Tensor) -> None:
        """Write numbers in [0, 1): the top 24 bits of each word in float32, all 32 in float64."""

    def dropout_into(
        self,
        draw: Draw,
        x_NW: Tensor,
        out_NW: Tensor,
        *,
        threshold: int,
        scale: float,
        relu: bool = False,
    ) -> None:
        """Write x * scale where the word is at least `threshold`, else 0; with `relu` max(x, 0)."""

    def relu_grad_into(
        self, dropped_NW: Tensor, grad_NW: Tensor, out_NW: Tensor, *, scale: float
    ) -> None:
        """Write grad * scale where `dropout_into` with `relu` has left more than 0, else 0."""


class ActivationKernels(Protocol):
    """Bias, ReLU and dropout in one pass, and back; a mask has a bit for each entry.

    It is int32, W / 32 words rounded up for a row, column c in bit c % 32 of word c // 32.
    """

    DTYPES: frozenset[torch.dtype]
    """Types of rows that the implementation takes."""

    def activate_into(
        self,
        draw: Draw,
        z_NW: Tensor,
        bias_W: Tensor,
        out_NW: Tensor,
        mask_NB: Tensor,
        *,
        threshold: int,
        scale: float,
    ) -> None:
        """Write (z + bias) * scale where that is above 0 and drawn to be kept, else 0.

        A word keeps an entry if it is at least `threshold`; `out_NW` may be z. NaN counts as above.
        """

    def grad_into(self, mask_NB: Tensor, grad_NW: Tensor, bias_W: Tensor, *, scale: float) -> None:
        """Multiply the gradient by `scale` where the mask is set, else make it 0; sum its columns.

        Sums are the same for any number of threads.
        """

    def sum_grad_into(
        self,
        edges: Edges,
        x_CW: Tensor,
        own_MW: Tensor | None,
        mask_NB: Tensor,
        grad_NW: Tensor,
        bias_W: Tensor,
        *,
        scale: float,
    ) -> None:
        """Write `CsrKernels.sum_into` of x, its first rows plus `own_MW`; then `grad_into`."""


class Wire(NamedTuple):
    """Encoded rows: uint8 payload; for each row bits per entry, and first byte (multiple of 4)."""

    payload: Tensor
    bits_S: Tensor
    start_S: Tensor


class WireKernels(Protocol):
    """Encoding rows of float32 or float64 for the way to another rank; `wire` has the format."""

    def encode_into(
        self, x_ND: Tensor, rows_S: Tensor | None, draw: Draw, wire: Wire, range_S: Tensor
    ) -> None:
        """Write rows x[rows_S] to the payload, and their max - min; NaN for those not finite."""

    def decode_into(self, wire: Wire, out_SD: Tensor) -> None:
        """Write the rows that the payload holds."""

    def encode_changes(
        self,
        x_ND: Tensor,
        rows_S: Tensor | None,
        kept_SD: Tensor,
        draw: Draw,
        wire: Wire,
        range_S: Tensor,
    ) -> None:
        """Write what leads from the kept rows to x[rows_S], and make them what receivers have."""

    def decode_changes(self, wire: Wire, kept_SD: Tensor) -> None:
        """Make the kept rows what the payload leads to."""


class Requests(NamedTuple):
    """Rows to sample, each by the key of its minibatch and the id of its node."""

    rows_Q: Tensor
    ids_Q: Tensor
    batch_Q: Tensor
    keys_B2: Tensor
    """The two key words of each minibatch, in int64."""


class SampleKernels(Protocol):
    """Drawing some edges of each requested row; `sample.reference` has the definition."""

    def sample(
        self,
        indptr: Tensor,
        requests: Requests,
        fanout: int,
        weight_E: Tensor | None,
        *,
        replace: bool,
        sums_E: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return how many edges each request got, and their numbers.

        `sums_E`: what `sample.running` makes of the weights, for those who look draws up in it.
        """

    def share(
        self, indptr: Tensor, ids_E: Tensor, batch_Q: Tensor, keys_B2: Tensor, fanout: int
    ) -> tuple[Tensor, Tensor]:
        """Return how many edges each row keeps, and their numbers, rising.

        An edge's draw is that of its id, which is its source's: rows of one key that have the same
        source draw alike for it. The `fanout` edges of the smallest draws are kept.
        """


class RowKernels(Protocol):
    """Gathering rows by number."""

    def gather_into(
        self,
        table_NW: Tensor,
        rows_R: Tensor,
        slot_N: Tensor | None,
        copies_KW: Tensor | None,
        out_RW: Tensor,
    ) -> None:
        """Write table[rows_R], whose table may be pinned host memory; `copies[slot]` where kept."""


class EdgeDrop(NamedTuple):
    """Which attention weights to drop: draws by (source id, destination id), a column per head."""

    key: tuple[int, int]
    threshold: int
    """A weight is kept where its word is at least this, and then multiplied by `scale`."""
    scale: float
    ids_C: Tensor
    ids_M: Tensor
    first_head: int = 0
    """Which column of draws is the first head's, where the heads are a slice of all."""
    held: Tensor | None = None
    """int64 [1]: both words of a key that lies on the device, in place of `key`."""


class Softmax(NamedTuple):
    """What rows have gathered so far: largest score, sum of exp(score - top), weighted sum."""

    top_MH: Tensor
    weight_MH: Tensor
    total_MHD: Tensor


class Transposed(NamedTuple):
    """The transpose of a block's edges; `order` (edge numbers) is there when an edge has data."""

    indptr: Tensor
    index: Tensor  # type: ignore[assignment] # as in Edges
    order: Tensor | None


class RowGrads(NamedTuple):
    """What backward knows of a row: log-sum-exp, gradient, and delta = sum over D of grad * out."""

    lse_MH: Tensor
    grad_MHD: Tensor
    delta_MH: Tensor


class Kind(StrEnum):
    """The kinds of attention; `attention.kinds` defines them."""

    GAT = "gat"
    GATV2 = "gatv2"
    DOT = "dot"


class AttentionBlock(NamedTuple):
    """Edges and what attention reads for them; which tensors these are is up to its kind."""

    kind: Kind
    indptr: Tensor
    index: Tensor  # type: ignore[assignment] # as in Edges
    sources: tuple[Tensor, ...]
    """A row for each source column; the first is [C, H, D]."""
    rows: tuple[Tensor, ...]
    """A row for each destination."""
    shared: tuple[Tensor, ...]
    edge: Tensor | None
    factor: float
    """What the kind is set by: a slope or a scale."""
    drop: EdgeDrop | None


class AttentionGrads(NamedTuple):
    """Where gradients go, shaped as in the block: the edges' are written, all others added to."""

    sources: tuple[Tensor, ...]
    rows: tuple[Tensor, ...]
    shared: tuple[Tensor, ...]
    edge: Tensor | None


class AttentionKernels(Protocol):
    """Attention of every kind, a block of edges at a time."""

    DTYPES: frozenset[torch.dtype]
    """Types of rows that the implementation takes. What softmaxes are made of, and shared tensors,
    are of `sum_type`; gradients may be of either."""

    def fold_into(self, block: AttentionBlock, state: Softmax) -> None:
        """Fold a block into the state, in place."""

    def grad_into(
        self, block: AttentionBlock, back: Transposed, rows: RowGrads, grads: AttentionGrads
    ) -> None:
        """Add a block's gradients; weights are computed, and dropped, once more."""
