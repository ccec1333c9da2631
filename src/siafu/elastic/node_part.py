"""A model's tensor work, cut where its layers ask for their in-neighbours.

    part 0      x_0                        -> what layer 0 asks for
    part k      x_{k-1}, answer_{k-1}      -> x_k and what layer k asks for
    part L      x_{L-1}, answer_{L-1}      -> logits

Layers stay as they are. A part runs a layer with `NodePart` for neighbours: asked with an answer
at hand it gives that, asked without one it stops there. What a layer computes from x for its
question alone is not needed once the answer is there; a part that reads x for nothing else is given
no rows of it.

Shapes: N rows of an interval, D columns of a row, H heads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor

from siafu.errors import ConfigError
from siafu.nn import GNN, Draws, Dropout, EdgeRows, ModelSpec, Reduce, Summing, mapped
from siafu.nn.cards import layer_widths
from siafu.ops import Attention, dropout_rows

Operation = Literal["sum", "mean", "normalised_sum", "attend"]


@dataclass(frozen=True, eq=False, slots=True)
class Question:
    """What a layer asks of its in-neighbours, for some rows."""

    operation: Operation
    sources: tuple[Tensor, ...]
    """A row for each node that others may ask about."""
    rows: tuple[Tensor, ...] = ()
    """A row for each node that asks."""
    attention: Attention | None = None
    dropout: Dropout | None = None
    loops: bool = False


class _AskedError(Exception):
    """Ends a part where the layer's question is known."""

    def __init__(self, question: Question) -> None:
        super().__init__(question.operation)
        self.question = question


class NodePart:
    """Neighbours for one part of a model: they know the answer, or stop at the question.

    A layer may ask once, for a sum, a mean, GCN's sum or an attention.
    """

    num_nodes = 0

    def __init__(
        self, ids_N: Tensor, draws: Draws, answer: Tensor | None, *, aggregates_first: bool
    ) -> None:
        self._ids_N, self._draws, self._answer = ids_N, draws, answer
        self._aggregates_first = aggregates_first

    def _ask(self, question: Question) -> Tensor:
        if self._answer is None:
            raise _AskedError(question)
        return self._answer

    @property
    def edge_attr(self) -> Tensor | None:
        """Refuse."""
        _refuse("features of edges (--edge-features)")

    @property
    def edge_type(self) -> Tensor | None:
        """Refuse."""
        _refuse("typed edges")

    def maps_first(self, in_width: int, out_width: int) -> bool:
        """Return True where narrower rows are gathered so, and they change in every epoch."""
        return out_width < in_width and not self._aggregates_first

    def depart(self, x_ND: Tensor, weight_OD: Tensor | None, how: Summing) -> Tensor:
        """Return x W^T, or x: nothing travels ahead here."""
        return mapped(x_ND, weight_OD)

    def own(self, x_ND: Tensor) -> Tensor:
        """Return x: the rows of an interval are those it writes."""
        return x_ND

    def sum(self, x_ND: Tensor) -> Tensor:
        """Return the answer, or stop."""
        return self._ask(Question("sum", (x_ND,)))

    def mean(self, x_ND: Tensor) -> Tensor:
        """Return the answer, or stop."""
        return self._ask(Question("mean", (x_ND,)))

    def normalised_sum(self, x_ND: Tensor) -> Tensor:
        """Return the answer, or stop."""
        return self._ask(Question("normalised_sum", (x_ND,)))

    def attend(
        self,
        attention: Attention,
        sources: tuple[Tensor, ...],
        rows: tuple[Tensor, ...],
        shared: tuple[Tensor, ...] = (),
        *,
        dropout: Dropout,
        edges: EdgeRows | None = None,
        loops: bool = True,
    ) -> Tensor:
        """Return the answer, or stop."""
        if shared or edges is not None:
            _refuse("attention whose scores need more than the rows at both ends (gatv2, edges)")
        return self._ask(Question("attend", sources, rows, attention, dropout, loops))

    def dropout(self, x_ND: Tensor, dropout: Dropout) -> Tensor:
        """Return x with entries dropped while training."""
        if not self._draws.training or dropout.p == 0.0:
            return torch.relu(x_ND) if dropout.relu else x_ND
        ids_N, key = self._ids_N[: len(x_ND)], self._draws.key(dropout.site)
        return dropout_rows(x_ND, ids_N, key, dropout.p, relu=dropout.relu)

    def max(self, x_ND: Tensor) -> Tensor:
        """Refuse."""
        _refuse("a maximum over neighbours")

    def reduce(
        self,
        message: Callable[..., Any],
        x_src: Tensor | tuple[Tensor, ...],
        x_dst: Tensor | tuple[Tensor, ...] = (),
        edge_attr: Tensor | tuple[Tensor, ...] = (),
        *,
        reduce: Reduce = "sum",
    ) -> Tensor:
        """Refuse."""
        _refuse("a message function of the layer's own")

    def relations(self, x_ND: Tensor, map_TDO: Tensor) -> Tensor:
        """Refuse."""
        _refuse("typed edges")

    def total(self, x_ND: Tensor) -> Tensor:
        """Refuse."""
        _refuse("batch norm, whose statistics wait for all intervals")


def _refuse(what: str) -> NoReturn:
    raise ConfigError(
        "The model can't be cut into tasks on intervals.",
        seen=what,
        fix="use gcn, sage, gin, gat or transformer, with --norm none or layer and --jk none, "
        "without --edge-features",
    )


def run_part(
    model: GNN, number: int, node: tuple[Tensor, Tensor | None, Tensor], draws: Draws
) -> tuple[Tensor, Question | None]:
    """Return x of layer `number` and what that layer asks; no question after the last.

    `node` is x before (no rows where they are not read), the answer to the layer before, and the
    nodes' ids.
    """
    x_ND, answer, ids_N = node

    def neighbours(layer: int, known: Tensor | None) -> NodePart:
        first = layer == 0 and not draws_on_input(model.spec)
        return NodePart(ids_N, draws, known, aggregates_first=first)

    if number > 0:
        assert answer is not None, "the layer before has been answered"
        x_ND = model.run_layer(number - 1, x_ND, neighbours(number - 1, answer), draws)
    if number == model.spec.layers:
        return x_ND, None
    try:
        model.run_layer(number, x_ND, neighbours(number, None), draws)
    except _AskedError as asked:
        return x_ND, asked.question
    _refuse(f"a layer that asks nothing of its neighbours ({model.spec.name})")


def draws_on_input(spec: ModelSpec) -> bool:
    """True where entries of the constant input are dropped, so that its sum changes."""
    return (spec.dropout if spec.input_dropout is None else spec.input_dropout) > 0


@dataclass(frozen=True, slots=True)
class PartFacts:
    """What is known of a part beforehand."""

    reads_x: bool
    """Whether its results depend on x otherwise than through the answer."""
    parameters: tuple[str, ...]
    """Names of the weights it uses."""
    asks_for_learnt: bool
    """Whether its question depends on weights, so that gradients go back through it."""
    question: Question | None
    """With tensors of two rows, for their shapes."""


def inspect_parts(spec: ModelSpec) -> list[PartFacts]:
    """Return the facts of each part, found by running them on two rows."""
    if spec.jk != "none":
        _refuse(f"--jk {spec.jk}, which reads the rows of all layers at the end")
    model = GNN(spec)
    draws, ids = Draws(training=True), torch.arange(2)
    facts: list[PartFacts] = []
    answer: Tensor | None = None
    learnt = False
    for number in range(spec.layers + 1):
        width = layer_widths(spec, max(0, number - 1)).into
        x = torch.rand(2, width, requires_grad=True)
        out, question = run_part(model, number, (x, answer, ids), draws)
        asked = () if question is None else (*question.sources, *question.rows)
        results = [t.sum() for t in (*asked, *((out,) if number else ())) if t.requires_grad]
        found = dict(model.named_parameters())
        wanted = [x, *found.values()]
        grads = torch.autograd.grad(sum(results, x.new_zeros(())), wanted, allow_unused=True)
        used = tuple(n for n, grad in zip(found, grads[1:], strict=True) if grad is not None)
        learnt = learnt or bool(used)
        facts.append(PartFacts(grads[0] is not None, used, learnt, question))
        if question is not None:
            answer = torch.rand(answer_shape(question, 2), requires_grad=True)
    return facts


def answer_shape(question: Question, num_rows: int) -> tuple[int, ...]:
    """Return the shape of the answer for so many rows."""
    return num_rows, *question.sources[0].shape[1:]
