"""The graph tasks of an interval: gathering from in-neighbours, and gradients from out-neighbours.

Both pull: an interval reads rows that others have written, and writes nothing but its own. So the
gradient of a sum is a sum over out-edges. That of an attention takes two passes, over in-edges for
the rows that asked and over out-edges for the sources; for the latter, nodes send along what
their softmax was: log-sum-exp, delta, and their side of the scores.

Shapes: N owned rows, C columns in, B columns back, I rows of an interval, H heads, D width.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from siafu.comm import World
from siafu.elastic import Question
from siafu.nn import Draws
from siafu.nn.normalisation import (
    added_loop,
    inverse_count,
    inverse_root,
    owned_degree,
    with_self_loops,
)
from siafu.ops import (
    CSR,
    EdgeDraw,
    SoftmaxState,
    delta_of,
    finish,
    fold_backward,
    fold_into,
    sum_into,
    sum_type,
)
from siafu.pipeline.rows import Side, build_side, transpose_side
from siafu.shard import Shard

Rows = tuple[Tensor, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Asked:
    """An interval's own side of a question, and what its answer left for backward."""

    sources: Rows
    rows: Rows
    kept: Rows = ()


class Gather(Protocol):
    """The graph work that a model's layers ask for."""

    @property
    def there(self) -> Side:
        """In-edges."""
        ...

    @property
    def back(self) -> Side:
        """Out-edges."""
        ...

    def answer(
        self, question: Question, interval: int, seen: Rows, asked: Asked, epoch: int
    ) -> tuple[Tensor, Rows]:
        """Return the answer for an interval, and what backward needs of it."""
        ...

    def back_widths(self, question: Question) -> list[int]:
        """Return the widths of what nodes send back."""
        ...

    def send_back(self, grad: Tensor, asked: Asked) -> Rows:
        """Return what an interval's nodes send back, given their answer's gradient."""
        ...

    def gradients(
        self, question: Question, interval: int, asked: Asked, sent: Rows, views: "Views"
    ) -> tuple[Rows, Rows]:
        """Return the gradients of an interval's sources and rows."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class Views:
    """What a gather of gradients reads."""

    there: Rows
    """Rows of the in-neighbours, as forward read them."""
    back: Rows
    """What out-neighbours sent back."""
    epoch: int
    lags: bool = False
    """Whether what they sent may be of an attention to older rows than these."""


class SumGather:
    """A sum with factors for rows and columns: plain, mean, or GCN's."""

    def __init__(
        self, operation: str, shard: Shard, bounds: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        csr, wide = shard.csr, sum_type(dtype)
        if csr.weight is not None:
            csr = csr.with_weight(csr.weight.to(wide))
        self.there = build_side(csr, shard.plan, bounds, shard.world)
        self.back = transpose_side(self.there, shard.world)
        self._own_N1: Tensor | None = None
        self._row_C = self._row_B = self._col_C = self._col_B = None
        if operation == "mean":
            self._row_C, self._row_B = self._both(inverse_count(csr), shard.world, wide)
        elif operation == "normalised_sum":
            root_N = inverse_root(owned_degree(csr))
            self._own_N1 = (root_N.square() * added_loop(csr)).unsqueeze(1).to(dtype)
            self._row_C, self._row_B = self._both(root_N, shard.world, wide)
            self._col_C, self._col_B = self._row_C, self._row_B
        self._edges = [self.there.edges(i) for i in range(len(bounds) - 1)]
        self._edges_back = [self.back.edges(i) for i in range(len(bounds) - 1)]

    def _both(self, values_N: Tensor, world: World, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        column = values_N.unsqueeze(1)
        there, back = (side.extended(column, world) for side in (self.there, self.back))
        return there.squeeze(1).to(dtype), back.squeeze(1).to(dtype)

    def answer(
        self, question: Question, interval: int, seen: Rows, asked: Asked, epoch: int
    ) -> tuple[Tensor, Rows]:
        """Return the sum."""
        span = self.there.rows(interval)
        return self._sum(self._edges[interval], seen[0], span, self._row_C, self._col_C), ()

    def _sum(
        self, edges: CSR, x: Tensor, span: slice, rows: Tensor | None, columns: Tensor | None
    ) -> Tensor:
        out = x.new_empty(edges.num_rows, x.size(1))
        own = None if rows is None else rows[span]
        sum_into(edges, x, out, row_scale_M=own, col_scale_C=columns)
        if self._own_N1 is not None:
            out.addcmul_(self._own_N1[span], x[span])
        return out

    def back_widths(self, question: Question) -> list[int]:
        """Return the width of the answer's gradient."""
        return [question.sources[0].size(1)]

    def send_back(self, grad: Tensor, asked: Asked) -> Rows:
        """Return the gradient itself."""
        return (grad,)

    def gradients(
        self, question: Question, interval: int, asked: Asked, sent: Rows, views: Views
    ) -> tuple[Rows, Rows]:
        """Return the sum of gradients over out-edges."""
        edges, span = self._edges_back[interval], self.back.rows(interval)
        # Factors change sides: what scaled the row that summed scales the column that sends back.
        grad = self._sum(edges, views.back[0], span, self._col_B, self._row_B)
        return (grad,), ()


class AttentionGather:
    """A softmax over in-edges, a node itself among them."""

    def __init__(
        self, question: Question, shard: Shard, bounds: tuple[int, ...], draws: Draws
    ) -> None:
        csr = with_self_loops(shard.csr)[0] if question.loops else shard.csr
        plain = CSR(csr.indptr, csr.index, csr.num_cols)
        self.there = build_side(plain, shard.plan, bounds, shard.world)
        self.back = transpose_side(self.there, shard.world)
        self._draws = draws
        ids = shard.row_ids.unsqueeze(1)
        self._ids_C = self.there.extended(ids, shard.world).squeeze(1)
        self._ids_B = self.back.extended(ids, shard.world).squeeze(1)
        self._edges = [self.there.edges(i) for i in range(len(bounds) - 1)]
        transposed = [self.back.edges(i) for i in range(len(bounds) - 1)]
        self._edges_back = [edges.transpose().with_transpose(edges) for edges in transposed]

    def _drop(
        self, question: Question, epoch: int, ids_C: Tensor, ids_M: Tensor
    ) -> EdgeDraw | None:
        assert question.dropout is not None
        if question.dropout.p == 0.0:
            return None
        key = Draws(self._draws.seed, epoch).key(question.dropout.site)
        return EdgeDraw(key, question.dropout.p, ids_C, ids_M)

    def answer(
        self, question: Question, interval: int, seen: Rows, asked: Asked, epoch: int
    ) -> tuple[Tensor, Rows]:
        """Return the weighted sum; kept are it and the log-sum-exp of each row and head."""
        assert question.attention is not None
        edges, first = self._edges[interval], question.sources[0]
        sources = _shaped(seen, question.sources)
        state = SoftmaxState.empty(edges.num_rows, first.size(1), first.size(2), seen[0])
        drop = self._drop(question, epoch, self._ids_C, self._ids_C[self.there.rows(interval)])
        fold_into(question.attention, edges, sources, asked.rows, (), state, drop=drop)
        out_IHD, lse_IH = finish(state)
        out_IHD = out_IHD.to(seen[0].dtype)
        return out_IHD, (out_IHD, lse_IH)

    def back_widths(self, question: Question) -> list[int]:
        """Return widths of the gradient, log-sum-exp, delta and the rows' side of the scores."""
        heads = question.sources[0].size(1)
        return [_width(question.sources[0]), heads, heads, *(_width(t) for t in question.rows)]

    def send_back(self, grad: Tensor, asked: Asked) -> Rows:
        """Return gradient, log-sum-exp, delta and the rows' side of the scores."""
        out_IHD, lse_IH = asked.kept
        return (grad.contiguous(), lse_IH, delta_of(grad, out_IHD), *asked.rows)

    def gradients(
        self, question: Question, interval: int, asked: Asked, sent: Rows, views: Views
    ) -> tuple[Rows, Rows]:
        """Return gradients of the rows by a pass over in-edges, of the sources over out-edges."""
        assert question.attention is not None
        span = self.there.rows(interval)
        grad_IHD, lse_IH, delta_IH, *_ = sent
        into_rows = tuple(torch.zeros_like(t) for t in asked.rows)
        fold_backward(
            question.attention,
            self._edges[interval],
            _shaped(views.there, question.sources),
            asked.rows,
            (),
            lse_IH,
            grad_IHD,
            delta_IH,
            drop=self._drop(question, views.epoch, self._ids_C, self._ids_C[span]),
            into_rows=into_rows,
            into_shared=(),
        )
        grad_B, lse_BH, delta_BH, *rows_B = views.back
        kind = asked.sources[0].dtype  # which they had before they stood beside wider ones
        ends = _shaped(tuple(rows.to(kind) for rows in rows_B), question.rows)
        grad_BHD = _shaped((grad_B.to(kind),), question.sources[:1])[0]
        drop = self._drop(question, views.epoch, self._ids_B[span], self._ids_B)
        if views.lags:
            lse_BH = self._bounded(question, interval, asked, ends, lse_BH)
        into_sources, _ = fold_backward(
            question.attention,
            self._edges_back[interval],
            asked.sources,
            ends,
            (),
            lse_BH,
            grad_BHD,
            delta_BH,
            drop=drop,
            into_rows=tuple(torch.zeros_like(t) for t in ends),
            into_shared=(),
        )
        return into_sources, into_rows

    def _bounded(
        self, question: Question, interval: int, asked: Asked, ends: Rows, lse_BH: Tensor
    ) -> Tensor:
        """Return log-sum-exps no less than those over this interval's sources alone.

        What an end sent may be of older sources, whose scores were lower; weights that go by it
        would add up to more than 1, without bound.
        """
        assert question.attention is not None
        edges, first = self._edges_back[interval], question.sources[0]
        state = SoftmaxState.empty(edges.num_rows, first.size(1), first.size(2), lse_BH)
        fold_into(question.attention, edges, asked.sources, ends, (), state)
        has_edges_B1 = (edges.degree() > 0).unsqueeze(1)
        least_BH = torch.where(has_edges_B1, finish(state)[1], lse_BH)
        return torch.maximum(lse_BH, least_BH)


def _shaped(rows: Rows, like: Rows) -> Rows:
    """Return flat rows in the shapes of the question's tensors."""
    return tuple(t.view(-1, *shape.shape[1:]) for t, shape in zip(rows, like, strict=True))


def _width(tensor: Tensor) -> int:
    return tensor[0].numel()


def build_gather(
    question: Question,
    shard: Shard,
    bounds: tuple[int, ...],
    draws: Draws,
    dtype: torch.dtype,
) -> Gather:
    """Return the graph work for what a model's layers ask. Every rank calls this together."""
    if question.operation == "attend":
        return AttentionGather(question, shard, bounds, draws)
    return SumGather(question.operation, shard, bounds, dtype)
