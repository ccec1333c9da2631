"""Ways to join messages over blocks and pieces of rows, and what each keeps for its gradient.

Kept are the edges of a maximum, the factors of a product, the log-sum-exp of a softmax; sums and
means keep nothing.

Shapes: M rows written, K columns of a block, S edges of a piece, H heads, W width of a message.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from siafu.errors import PlanError
from siafu.nn import EdgeFunction, Reduce
from siafu.ops import (
    CSR,
    Gat,
    SoftmaxState,
    delta_of,
    finish,
    fold_backward,
    fold_into,
    fold_max,
    sum_into,
    sum_type,
)
from siafu.strategy.blocks import Block, Reach
from siafu.strategy.sums import Best
from siafu.strategy.walk import Rows

Joining = Reduce | Literal["logsumexp"]
"""What layers may ask for, and what a softmax inside a message is made of."""
_PLAIN = Gat(slope=1.0)
"""A softmax over given scores: GAT's with a bend that bends nothing."""


@dataclass(frozen=True, eq=False)
class ReductionCall:
    """One reduction: the function, over which edges, and how results are joined."""

    function: EdgeFunction
    reduce: Joining
    reach: Reach
    counts: tuple[int, int, int]
    """How many tensors have a row a source, a row a destination, a row per edge."""
    keep: bool
    """Whether there is a backward, for which rows stay as `reach` says."""
    column_ids: Tensor
    row_ids: Tensor

    def __post_init__(self) -> None:
        if self.reduce not in REDUCTIONS:
            raise PlanError(
                "Messages can't be joined in this way.",
                seen=f"reduce={self.reduce!r}",
                fix=f"use one of: {', '.join(get_args(Reduce))}",
            )
        shapes, wanted = self.function.shapes, 2 if self.reduce == "softmax" else 1
        if len(shapes) != wanted or (wanted == 2 and self.width % max(1, self.heads)):
            raise PlanError(
                f"A message for {self.reduce!r} is "
                + ("(scores, values), as many values a score." if wanted == 2 else "one tensor."),
                seen=f"results of shape {list(shapes)} an edge",
                fix="return (scores [S, H], values [S, H, D])" if wanted == 2 else "return one",
            )

    def split(self, tensors: Rows) -> tuple[Rows, Rows, Rows]:
        """Return the tensors by sort, without those the function captures."""
        a, b, c = self.counts
        return tensors[:a], tensors[a : a + b], tensors[a + b : a + b + c]

    @property
    def heads(self) -> int:
        """Scores of an edge, for a softmax."""
        return math.prod(self.function.shapes[0])

    @property
    def width(self) -> int:
        """Numbers of the result in a row."""
        return math.prod(self.function.shapes[-1])


@dataclass(frozen=True, eq=False)
class Piece:
    """Some rows of a block with their edges."""

    block: Block
    span: slice
    csr: CSR
    numbers_S: Tensor
    row_S: Tensor
    messages: CSR
    """rows x S: which messages a row takes."""

    def pick(self, rows_M: Tensor) -> Tensor:
        """Return what belongs to these rows, to be changed and `put` back."""
        return self.block.pick(rows_M, self.span)

    def put(self, rows_M: Tensor, changed: Tensor) -> None:
        """Write back what `pick` gave."""
        self.block.put(rows_M, self.span, changed)

    def gather(self, arrived: Rows, dst: Rows, edge: Rows) -> Rows:
        """Return the rows of the two ends and of the edges."""
        return (
            *(tensor.index_select(0, self.csr.index) for tensor in arrived),
            *(self.pick(tensor).index_select(0, self.row_S) for tensor in dst),
            *(tensor.index_select(0, self.numbers_S) for tensor in edge),
        )

    def ends(self, call: ReductionCall) -> tuple[Tensor, Tensor]:
        """Return the numbers of the two ends in the whole graph."""
        ids_K = call.column_ids.index_select(0, self.block.columns_K)
        return ids_K.index_select(0, self.csr.index), self.pick(call.row_ids)[self.row_S]


def pieces_of(call: ReductionCall, block: Block, tensors: Rows) -> Iterator[Piece]:
    """Yield a block's rows with their edges, as many at a time as these tensors allow."""
    width = call.function.width + sum(math.prod(tensor.shape[1:]) for tensor in tensors)
    for span, csr, numbers_S in block.pieces(width):
        if not csr.num_edges:  # nothing to add, and functions may not cope with no edges
            continue
        order = torch.arange(csr.num_edges, dtype=torch.int32, device=csr.device)
        messages = CSR(csr.indptr, order, csr.num_edges)
        row_S = torch.arange(csr.num_rows, device=csr.device).repeat_interleave(csr.degree())
        yield Piece(block, span, csr, numbers_S, row_S, messages)


class _Sum:
    """Sums and means: nothing is kept."""

    def __init__(self, call: ReductionCall, like: Tensor) -> None:
        self._scale_M = None
        if call.reduce == "mean":
            count_M = call.reach.own.whole.degree()
            self._scale_M = 1.0 / count_M.clamp(min=1).to(like.dtype)
        self._out_MW = like.new_zeros(call.reach.own.csr.num_rows, call.width)

    def fold(self, piece: Piece, results: Rows) -> None:
        scale = None if self._scale_M is None else piece.pick(self._scale_M)
        out, message_SW = piece.pick(self._out_MW), _flat(results[0])
        sum_into(piece.messages, message_SW, out, accumulate=True, row_scale_M=scale)
        piece.put(self._out_MW, out)

    def finish(self) -> Tensor:
        return self._out_MW

    def prepare(self, out_MW: Tensor, grad_MW: Tensor) -> None:
        self._grad_MW = grad_MW if self._scale_M is None else grad_MW * self._scale_M[:, None]

    def grads(self, piece: Piece, results: Rows) -> Rows:
        return (piece.pick(self._grad_MW).index_select(0, piece.row_S),)


class _Extreme:
    """Maxima and minima: the edge that held each entry is kept."""

    def __init__(self, call: ReductionCall, like: Tensor) -> None:
        self._sign = 1 if call.reduce == "max" else -1
        self._best = Best(call.reach.own.whole, call.width, like)

    def fold(self, piece: Piece, results: Rows) -> None:
        message_SW = self._sign * _flat(results[0])
        value_MW, edge_MW = piece.pick(self._best.value_MD), piece.pick(self._best.edge_MD)
        fold_max(piece.messages, message_SW, piece.numbers_S, value_MW, edge_MW)
        piece.put(self._best.value_MD, value_MW)
        piece.put(self._best.edge_MD, edge_MW)

    def finish(self) -> Tensor:
        return self._sign * self._best.finish()

    def prepare(self, out_MW: Tensor, grad_MW: Tensor) -> None:
        self._grad_MW = grad_MW

    def grads(self, piece: Piece, results: Rows) -> Rows:
        held_SW = piece.pick(self._best.edge_MD).index_select(0, piece.row_S)
        grad_SW = piece.pick(self._grad_MW).index_select(0, piece.row_S)
        return (torch.where(held_SW == piece.numbers_S[:, None], grad_SW, 0),)


class _Product:
    """Products: that of the factors other than 0 is kept, and how many are 0."""

    def __init__(self, call: ReductionCall, like: Tensor) -> None:
        shape = call.reach.own.csr.num_rows, call.width
        self._product_MW, self._zeros_MW = like.new_ones(shape), like.new_zeros(shape)

    def fold(self, piece: Piece, results: Rows) -> None:
        message_SW = _flat(results[0])
        is_zero_SW = message_SW == 0
        product, zeros = piece.pick(self._product_MW), piece.pick(self._zeros_MW)
        row_SW = piece.row_S[:, None].expand_as(message_SW)
        product.scatter_reduce_(0, row_SW, message_SW.masked_fill(is_zero_SW, 1), "prod")
        sum_into(piece.messages, is_zero_SW.to(zeros.dtype), zeros, accumulate=True)
        piece.put(self._product_MW, product)
        piece.put(self._zeros_MW, zeros)

    def finish(self) -> Tensor:
        return self._product_MW.masked_fill(self._zeros_MW > 0, 0)

    def prepare(self, out_MW: Tensor, grad_MW: Tensor) -> None:
        self._grad_MW = grad_MW * self._product_MW

    def grads(self, piece: Piece, results: Rows) -> Rows:
        message_SW = _flat(results[0].detach())
        is_zero_SW = message_SW == 0
        grad_SW = piece.pick(self._grad_MW).index_select(0, piece.row_S)
        zeros_SW = piece.pick(self._zeros_MW).index_select(0, piece.row_S)
        # The product of the others: without a factor that is not 0, or where it is the only 0.
        others_SW = grad_SW / message_SW.masked_fill(is_zero_SW, 1)
        return (others_SW.masked_fill(zeros_SW != is_zero_SW, 0),)


class _Softmax:
    """Sums weighted by a softmax of scores: one log-sum-exp a row and head is kept."""

    def __init__(self, call: ReductionCall, like: Tensor) -> None:
        rows, self._heads = call.reach.own.csr.num_rows, call.heads
        width = call.width // max(1, self._heads)
        self._state: SoftmaxState | None = SoftmaxState.empty(rows, self._heads, width, like)

    def _operands(self, piece: Piece, results: Rows) -> tuple[Rows, Rows]:
        score_SH = results[0].reshape(len(results[0]), self._heads)
        value_SHD = results[1].reshape(len(score_SH), self._heads, -1)
        return (value_SHD, score_SH), (score_SH.new_zeros(piece.csr.num_rows, self._heads),)

    def fold(self, piece: Piece, results: Rows) -> None:
        assert self._state is not None
        sources, rows = self._operands(piece, results)
        part = SoftmaxState(*(piece.pick(tensor) for tensor in self._state.flat()))
        fold_into(_PLAIN, piece.messages, sources, rows, (), part)
        for tensor, changed in zip(self._state.flat(), part.flat(), strict=True):
            piece.put(tensor, changed)

    def finish(self) -> Tensor:
        assert self._state is not None
        out_MHD, self._lse_MH = finish(self._state)
        self._state = None
        return out_MHD.flatten(1)

    def prepare(self, out_MW: Tensor, grad_MW: Tensor) -> None:
        self._grad_MHD = grad_MW.unflatten(1, (self._heads, -1))
        out_MHD = out_MW.unflatten(1, (self._heads, -1))
        self._delta_MH = delta_of(self._grad_MHD, out_MHD)

    def grads(self, piece: Piece, results: Rows) -> Rows:
        sources, rows = self._operands(piece, tuple(result.detach() for result in results))
        known = (self._lse_MH, self._grad_MHD, self._delta_MH)
        (value, score), _ = fold_backward(
            _PLAIN,
            piece.messages,
            sources,
            rows,
            (),
            *(piece.pick(tensor) for tensor in known),
            into_rows=rows,
            into_shared=(),
        )
        return score, value


class _LogSumExp(_Softmax):
    """What a softmax of scores divides by, as a logarithm: its gradient needs itself alone."""

    def _operands(self, piece: Piece, results: Rows) -> tuple[Rows, Rows]:
        return super()._operands(piece, (results[0], results[0]))  # what is weighed is not read

    def finish(self) -> Tensor:
        super().finish()
        return self._lse_MH

    def prepare(self, out_MW: Tensor, grad_MW: Tensor) -> None:
        self._lse_MH, self._grad_MH = out_MW, grad_MW

    def grads(self, piece: Piece, results: Rows) -> Rows:
        score_SH = _flat(results[0].detach())
        lse_SH, grad_SH = (
            piece.pick(rows).index_select(0, piece.row_S) for rows in (self._lse_MH, self._grad_MH)
        )
        return ((score_SH - lse_SH).exp() * grad_SH,)


def wide(tensors: Rows) -> Rows:
    """Return tensors in the type that they are joined in."""
    return tuple(tensor.to(sum_type(tensor.dtype)) for tensor in tensors)


def _flat(message: Tensor) -> Tensor:
    return message.reshape(len(message), math.prod(message.shape[1:]))


Reduction = _Sum | _Extreme | _Product | _Softmax
REDUCTIONS: dict[str, type[Reduction]] = {
    "sum": _Sum,
    "mean": _Sum,
    "max": _Extreme,
    "min": _Extreme,
    "mul": _Product,
    "softmax": _Softmax,
    "logsumexp": _LogSumExp,
}
