"""GATConv, GATv2Conv and TransformerConv as attention over blocks.

Only what these layers do on edges is replaced: scores, softmax, dropout, weighted sum. Everything
before and after (loops, maps, heads, residuals, biases) is PyG's own code.

Shapes: N owned rows, E edges, S edges at a time, H heads, D width of a head, F edge features.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from siafu.nn import EdgeFunction, EdgeRows
from siafu.ops import Attention, DotProduct, DrawKey, Gat, GatV2
from siafu.strategy.attention import EdgeOperand
from siafu.strategy.neighbours import BlockNeighbours
from siafu.strategy.pyg.edges import EdgeSet
from siafu.strategy.pyg.refusal import refusal

_KINDS = {"GATConv": "gat_conv", "GATv2Conv": "gatv2_conv", "TransformerConv": "transformer_conv"}
_STEPS = ("message", "edge_update", "aggregate", "update")


@dataclass(frozen=True, eq=False)
class Deferred:
    """What `edge_updater` was given; `propagate` works it off together with its own."""

    given: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Operands:
    """One attention of a layer: its kind and what it reads."""

    kind: Attention
    sources: tuple[Tensor, ...]
    rows: tuple[Tensor, ...]
    shared: tuple[Tensor, ...] = ()
    edge_attr: Tensor | None = None
    make: Callable[[Tensor], Tensor] | None = None
    """Maps edge features of S edges to what they bring to the attention."""


def attention_kind(layer: nn.Module) -> str | None:
    """Return the name of the attention layer this is; subclasses count if edges work the same."""
    for kind in type(layer).__mro__:
        if _KINDS.get(kind.__name__) == kind.__module__.rpartition(".")[2]:
            same = all(getattr(type(layer), s) is getattr(kind, s) for s in _STEPS)
            return kind.__name__ if same else None
    return None


def check_call(layer: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    """Raise if a forward pass asks for what attention over blocks does not give."""
    given = inspect.signature(layer.forward).bind_partial(*args, **kwargs).arguments
    if isinstance(given.get("x"), tuple | list):
        raise refusal(
            layer, "its input is bipartite, a pair of tensors", instead="give it one tensor"
        )
    if given.get("return_attention_weights") is not None:
        raise refusal(
            layer,
            "return_attention_weights needs a weight for every edge at once",
            instead="leave return_attention_weights out",
        )


def operands_of(layer: Any, kind: str, kwargs: dict[str, Any]) -> Operands:
    """Return what a layer's `propagate` and `edge_updater` were given, as an attention takes it."""
    heads, width = layer.heads, layer.out_channels
    if layer.aggr not in ("add", "sum"):
        raise refusal(layer, f"aggr={layer.aggr!r} of weighted messages", instead="aggr='sum'")

    def mapped(data_SF: Tensor) -> Tensor:
        vectors: Tensor = layer.lin_edge(data_SF).unflatten(1, (heads, width))
        return vectors

    if kind == "TransformerConv":
        edge_attr = kwargs["edge_attr"]
        if edge_attr is not None and layer.lin_edge is None:
            raise refusal(
                layer, "it adds edge features to messages unmapped", instead="set edge_dim"
            )
        return Operands(
            DotProduct(scale=1 / math.sqrt(width)),
            (kwargs["key"], kwargs["value"]),
            (kwargs["query"],),
            edge_attr=edge_attr,
            make=mapped,
        )
    scores = kwargs["alpha"].given
    edge_attr = None if layer.lin_edge is None else scores["edge_attr"]
    if edge_attr is not None and edge_attr.dim() == 1:
        edge_attr = edge_attr.view(-1, 1)
    source, target = kwargs["x"]
    if kind == "GATv2Conv":
        rows, shared = (target,), (layer.att.squeeze(0),)
        return Operands(
            GatV2(slope=layer.negative_slope), (source,), rows, shared, edge_attr, mapped
        )
    left, right = scores["alpha"]
    return Operands(
        Gat(slope=layer.negative_slope),
        (source, left),
        (right,),
        edge_attr=edge_attr,
        make=lambda data_SF: (mapped(data_SF) * layer.att_edge).sum(dim=-1),
    )


def attend(
    operands: Operands,
    edges: EdgeSet,
    neighbours: BlockNeighbours,
    drop: tuple[DrawKey, float] | None,
) -> Tensor:
    """Return out_NHD over these edges; `drop` tells which weights to drop."""
    operand = None
    if operands.edge_attr is not None and operands.make is not None:
        operand = _edge_operand(operands.edge_attr, operands.make, edges, neighbours)
    tensors = operands.sources, operands.rows, operands.shared
    return neighbours.attend_over(edges.reach, operands.kind, tensors, drop=drop, edges=operand)


def _edge_operand(
    edge_attr: Tensor,
    make: Callable[[Tensor], Tensor],
    edges: EdgeSet,
    neighbours: BlockNeighbours,
) -> EdgeOperand:
    data_E = edges.sorted(edge_attr)
    if data_E.requires_grad:
        # The features are learnt: as something captured they get their gradient.
        learnt = data_E if len(data_E) else data_E.new_zeros(1, *data_E.shape[1:])
        data_E = torch.arange(edges.num_edges, device=data_E.device)
        rows = EdgeRows(lambda number_S: make(learnt.index_select(0, number_S)), data_E)
    else:
        rows = EdgeRows(make, data_E)
    function = EdgeFunction.watch(rows.make, (rows.data_E,), neighbours.draws)
    none = data_E.new_zeros(1, *data_E.shape[1:])  # loops are edges like others here
    return EdgeOperand(function, rows, none)
