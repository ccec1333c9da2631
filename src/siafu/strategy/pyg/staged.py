"""PyG layers carried out block by block: what `propagate` does, in stages.

While a model runs, `propagate` (and `edge_updater` of attention layers) of each of its layers is
ours: the layer's own `message` is called on the edges of one block after another, its aggregation
is joined over the blocks, and its own `update` follows. All else is the layer's own code.

Shapes: N owned rows, E edges, S edges of a call.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from siafu.errors import PlanError
from siafu.nn import EdgeFunction, Reduce
from siafu.nn.precision import as_rows
from siafu.ops import sum_type
from siafu.strategy.neighbours import BlockNeighbours
from siafu.strategy.pyg.attention import Deferred, attend, attention_kind, check_call, operands_of
from siafu.strategy.pyg.edges import EdgeSet, EdgeSets
from siafu.strategy.pyg.intercept import RankMode
from siafu.strategy.pyg.messages import PlainMessage, aggregate, plain_message
from siafu.strategy.pyg.refusal import (
    WholeOnly,
    check_splits,
    message_passing_class,
    refusal,
    softmax_refusal,
)
from siafu.strategy.pyg.softmax import (
    Answer,
    FoundScoresError,
    InEdges,
    as_they_are,
    leave,
    watch_softmax,
    weights_of,
)
from siafu.strategy.sums import Departure, Scales, staged_max, staged_sum
from siafu.strategy.walk import Rows


@dataclass(frozen=True, eq=False)
class _Inputs:
    """What a message takes, by argument; tensors have their rows first."""

    in_edges: InEdges
    src: dict[str, Tensor] = field(default_factory=dict)
    dst: dict[str, Tensor] = field(default_factory=dict)
    edge: dict[str, Tensor] = field(default_factory=dict)
    rest: dict[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[Rows, Rows, Rows]:
        """Sources, destinations, edges."""
        return tuple(self.src.values()), tuple(self.dst.values()), tuple(self.edge.values())


class StagedLayers:
    """The layers of a foreign model, and the edges they work on."""

    def __init__(self, module: nn.Module, neighbours: BlockNeighbours) -> None:
        self._neighbours = neighbours
        self._layers = [layer for layer in module.modules() if message_passing_class(layer)]
        for layer in self._layers:
            watch_softmax(layer)
        self._edges = EdgeSets(neighbours)
        self._of_edges: dict[tuple[nn.Module, tuple[str, ...]], set[str]] = {}
        _ = neighbours.view.column_ids  # fetched now, by every rank together

    @contextmanager
    def installed(self, mode: RankMode) -> Iterator[None]:
        """Take over what layers do on edges; afterwards the model is as it was."""
        with ExitStack() as stack:
            for layer in self._layers:
                stack.enter_context(_method(layer, "propagate", partial(self._run, mode, layer)))
                hooks = [
                    layer.register_forward_pre_hook(partial(_begin, mode), with_kwargs=True),
                    layer.register_forward_hook(partial(_end, mode)),
                ]
                for hook in hooks:
                    stack.callback(hook.remove)
                if attention_kind(layer) is not None:
                    stack.enter_context(_method(layer, "edge_updater", _defer))
            yield

    def _run(
        self, mode: RankMode, layer: Any, edge_index: Tensor, size: Any = None, **kwargs: Any
    ) -> Tensor:
        """Do what `propagate` does."""
        for hook in layer._propagate_forward_pre_hooks.values():
            changed = hook(layer, (edge_index, size, kwargs))
            edge_index, size, kwargs = (
                changed if changed is not None else (edge_index, size, kwargs)
            )
        check_splits(layer, edge_index)
        mode.note_edges(edge_index)
        with mode.paused():
            edges = self._edges.of(edge_index)
            kind = attention_kind(layer)
            if kind is None:
                out = self._aggregated(mode, layer, edges, kwargs)
            else:
                dropped = mode.next_draw() if layer.training and layer.dropout > 0 else None
                drop = None if dropped is None else (dropped, layer.dropout)
                out = attend(operands_of(layer, kind, kwargs), edges, self._neighbours, drop)
        out = layer.update(out, **_update_arguments(layer, kwargs))
        for hook in layer._propagate_forward_hooks.values():
            changed = hook(layer, (edge_index, size, kwargs), out)
            out = out if changed is None else changed
        return out

    def _aggregated(
        self, mode: RankMode, layer: Any, edges: EdgeSet, kwargs: dict[str, Any]
    ) -> Tensor:
        inputs = self._inputs(layer, edges, kwargs)
        joined = _Joined(layer, inputs, edges, self._neighbours, mode)
        out = aggregate(layer.aggr_module, joined, layer, edges.reach.own.whole.degree())
        return out.movedim(0, layer.node_dim)

    def _inputs(self, layer: Any, edges: EdgeSet, kwargs: dict[str, Any]) -> _Inputs:
        inputs = _Inputs(InEdges(layer))
        names = layer.inspector.get_param_names("message")
        of_edges = self._edge_arguments(layer, names, edges.num_edges, kwargs)
        for name in names:
            if name in ("ptr", "adj_t"):
                inputs.rest[name] = None  # as PyG gives them with edges in a [2, E] tensor
            elif name in ("index", "edge_index_i"):
                inputs.rest[name] = inputs.in_edges
            elif name in layer.special_args:
                inputs.rest[name] = WholeOnly(layer)
            elif name[-2:] in ("_i", "_j") and name[:-2] in kwargs:
                self._take_end(layer, inputs, name, kwargs[name[:-2]])
            elif name in of_edges:
                inputs.edge[name] = edges.sorted(kwargs[name])
            elif name in kwargs:
                inputs.rest[name] = kwargs[name]
        return inputs

    def _take_end(self, layer: Any, inputs: _Inputs, name: str, data: Any) -> None:
        if isinstance(data, tuple | list):
            data = data[0 if name.endswith("_j") else 1]
        if not isinstance(data, Tensor):
            inputs.rest[name] = data
            return
        rows = data.movedim(layer.node_dim, 0)
        rows = as_rows(rows) if name.endswith("_j") and rows.dim() > 1 else rows
        if len(rows) != self._neighbours.shard.num_owned:
            raise refusal(
                layer,
                f"`{name[:-2]}` has {len(rows)} rows, not one for each node",
                instead="give it the rows of all nodes",
            )
        (inputs.src if name.endswith("_j") else inputs.dst)[name] = rows

    def _edge_arguments(
        self, layer: nn.Module, names: list[str], num_edges: int, kwargs: dict[str, Any]
    ) -> set[str]:
        """Return which arguments have a row per edge: those that have so on every rank."""
        tensors = {name: kwargs[name] for name in names if isinstance(kwargs.get(name), Tensor)}
        key = layer, tuple(tensors)
        if tensors and key not in self._of_edges:
            fits = [float(t.dim() > 0 and len(t) == num_edges) for t in tensors.values()]
            table = self._neighbours.shard.world.gather_numbers(fits)
            columns = zip(tensors, zip(*table, strict=True), strict=True)
            self._of_edges[key] = {name for name, answers in columns if all(answers)}
        return self._of_edges.get(key, set())


class _Joined:
    """A layer's messages, ready to be joined in one way or another."""

    def __init__(
        self,
        layer: Any,
        inputs: _Inputs,
        edges: EdgeSet,
        neighbours: BlockNeighbours,
        mode: RankMode,
    ) -> None:
        self._layer, self._inputs, self._edges = layer, inputs, edges
        self._neighbours, self._mode = neighbours, mode
        self._site: int | None = None
        self._lse: Tensor | None = None
        """The log-sum-exp of scores that a softmax in the message needs, once it is there."""

    def __call__(self, change: Callable[[Tensor], Any] | None, reduce: Reduce) -> Tensor:
        """Return the joined messages, rows first."""
        plain = self._plain() if change is None and reduce != "mul" else None
        if plain is not None and (reduce in ("sum", "mean") or plain.weight_S is None):
            return self._without_refetch(plain, reduce)
        message = self._message if change is None else lambda *rows: change(self._message(*rows))
        function = self._function(message)
        if self._lse is None and self._inputs.in_edges.num_asked:
            self._lse = self._log_sum_exp()
            function = self._function(message)
        return self._neighbours.reduce_over(self._edges.reach, function, self._rows, reduce)

    @property
    def _rows(self) -> tuple[Rows, Rows, Rows]:
        src, dst, edge = self._inputs.rows
        return src, dst if self._lse is None else (*dst, self._lse), edge

    def _log_sum_exp(self) -> Tensor:
        """Return that of the message's scores, a row per node."""
        reach = self._edges.reach
        if reach.rounding is not None:
            raise refusal(
                self._layer,
                "its message takes a softmax, whose two walks would read rows rounded differently",
                instead="--wire 32",
            )
        return self._neighbours.reduce_over(
            reach, self._function(self._scores), self._rows, "logsumexp"
        )

    def _function(self, message: Callable[..., Any]) -> EdgeFunction:
        draws = self._neighbours.draws
        try:
            function = EdgeFunction.watch(message, tuple(chain(*self._rows)), draws)
        except TypeError as error:
            if not any(kind.__name__ in str(error) for kind in (WholeOnly, InEdges)):
                raise
            raise softmax_refusal(self._layer) from error
        except PlanError as error:
            if type(self._layer).__name__ in str(error):
                raise
            problem, seen, *_ = str(error).splitlines()
            found = seen.strip().removeprefix("seen: ")
            raise refusal(self._layer, f"{problem} ({found})") from error
        # The streams a foreign model draws from, so that stages change no draw; one set of them
        # however often messages are made.
        if self._site is None:
            self._site = self._mode.take_sites(draws.take_sites(0) - function.first_site)
        return replace(function, first_site=self._site)

    def _scores(self, *rows: Tensor) -> Tensor:
        """Return what the message takes a softmax of."""
        try:
            self._called(rows, leave)
        except FoundScoresError as found:
            return found.scores.to(sum_type(found.scores.dtype))
        raise refusal(self._layer, "its message takes a softmax on some calls only")

    def _message(self, *rows: Tensor) -> Tensor:
        """Return the layer's message; rows come and go with the edges first."""
        if self._lse is None:
            return self._called(rows, as_they_are)
        at = len(self._inputs.src) + len(self._inputs.dst)
        return self._called((*rows[:at], *rows[at + 1 :]), weights_of(rows[at]))

    def _called(self, rows: Rows, softmax: Answer) -> Tensor:
        node_dim = self._layer.node_dim
        ends = [*self._inputs.src, *self._inputs.dst]
        given = {
            name: tensor.movedim(0, node_dim)
            for name, tensor in zip(ends, rows[: len(ends)], strict=True)
        }
        given |= zip(self._inputs.edge, rows[len(ends) :], strict=True)
        with self._inputs.in_edges.answering(softmax):
            out: Tensor = self._layer.message(**given, **self._inputs.rest)
        return out.movedim(node_dim, 0)

    def _plain(self) -> PlainMessage | None:
        """Return the messages as rows times numbers, where they are that."""
        if len(self._inputs.src) != 1 or self._inputs.dst:
            return None
        ((name, rows),) = self._inputs.src.items()
        if not rows.is_floating_point():
            return None
        edge, rest = self._inputs.edge, self._inputs.rest
        num_edges, node_dim = self._edges.num_edges, self._layer.node_dim
        shape = (num_edges, *(1,) * (rows.dim() - 1))
        kind = sum_type(rows.dtype)
        ones = torch.ones(shape, dtype=kind, device=rows.device).movedim(0, node_dim)
        return plain_message(lambda row: self._layer.message(**{name: row}, **edge, **rest), ones)

    def _without_refetch(self, plain: PlainMessage, reduce: Reduce) -> Tensor:
        (rows,) = self._inputs.src.values()
        x_ND = rows.reshape(len(rows), math.prod(rows.shape[1:]))
        reach = self._edges.reach
        if reduce == "max":
            out = staged_max(x_ND, reach)
        elif reduce == "min":
            out = -staged_max(-x_ND, reach)
        else:
            scales = Scales()
            if reduce == "mean":
                degree_M = reach.own.whole.degree().clamp(min=1)
                scales = Scales(1.0 / degree_M.to(sum_type(x_ND.dtype)))
            if plain.weight_S is not None:
                reach = reach.with_weights(plain.weight_S)
            out = staged_sum(x_ND, Departure(reach, scales, x_ND))
        return out.view(len(out), *rows.shape[1:])


@contextmanager
def _method(layer: nn.Module, name: str, ours: Callable[..., Any]) -> Iterator[None]:
    """Let one object's method be ours for a while; PyG itself replaces `propagate` like this."""
    before = vars(layer).get(name)
    setattr(layer, name, ours)
    try:
        yield
    finally:
        delattr(layer, name)
        if before is not None:
            setattr(layer, name, before)


def _begin(mode: RankMode, layer: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    mode.at_work.append(type(layer).__name__)
    if attention_kind(layer) is not None:
        check_call(layer, args, kwargs)


def _end(mode: RankMode, *_: Any) -> None:
    mode.at_work.pop()


def _defer(edge_index: Tensor, size: Any = None, **given: Any) -> Deferred:
    return Deferred(given)


def _update_arguments(layer: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    names = layer.inspector.get_param_names("update")
    for name in names:
        if name in layer.special_args or (name[-2:] in ("_i", "_j") and name not in kwargs):
            raise refusal(layer, f"its `update` takes `{name}`, something of all edges")
    return {name: kwargs[name] for name in names if name in kwargs}
