"""What ranks send in an epoch, by layer and purpose, told before it runs.

Rows that travel unchanged are counted exactly, from the halo rows of the cut: what `comm`'s meter
will count. Rounded rows of mixed widths, samples and intervals are estimated.

P ranks, R halo rows of all ranks.
"""

import math
from dataclasses import dataclass, replace
from functools import cache

import torch

from siafu.comm import UNCHANGED, Format
from siafu.nn import GNN, ModelSpec, layer_widths
from siafu.nn.precision import Precision
from siafu.strategy import Strategy
from siafu.strategy.rounding import FIRST_FORMAT, LEAST_WIDTH

_HEADER_BYTES = 8
"""Of a rounded row: its range."""
_ROUNDED_FROM = 1 << 14
"""Gradients of weights fewer than this are summed unrounded."""
_ROUNDED_ROW = 256


@dataclass(frozen=True, slots=True)
class LayerTraffic:
    """Bytes that all ranks send for one layer in one epoch of training."""

    forward: int
    again: int
    """Rows fetched a second time."""
    backward: int

    @property
    def total(self) -> int:
        """All three."""
        return self.forward + self.again + self.backward


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochTraffic:
    """Bytes that all ranks send in one epoch of training, and in one evaluation."""

    layers: tuple[LayerTraffic, ...]
    gradients: int
    """Of weights."""
    norms: int
    evaluation: int
    """Rows of one pass forward, none rounded."""
    once: int
    """When training begins: degrees, a cached input."""
    other: int = 0
    """Samples and features of minibatches."""

    @property
    def rows(self) -> int:
        """Rows of nodes and their gradients."""
        return sum(layer.total for layer in self.layers) + self.other

    @property
    def training(self) -> int:
        """All of one epoch, without its evaluation."""
        return self.rows + self.gradients + self.norms


@cache
def parameter_counts(spec: ModelSpec) -> tuple[int, int]:
    """Return the numbers that a model learns, and in how many tensors."""
    with torch.device("meta"):
        tensors = list(GNN(spec).parameters())
    return sum(tensor.numel() for tensor in tensors), len(tensors)


def weight_bytes(spec: ModelSpec) -> int:
    """Return what a model's weights take in training: with gradients and Adam's two averages."""
    return 16 * parameter_counts(spec)[0]


def row_parts(spec: ModelSpec, number: int) -> tuple[int, ...]:
    """Return the columns of each tensor that travels for a layer."""
    width = layer_widths(spec, number)
    sends = spec.card.sends(width)
    if spec.card.attends and sends > width.out:
        return width.out, sends - width.out
    return (sends,)


def returns_gradients(spec: ModelSpec, number: int, *, sparse: bool = False) -> bool:
    """Return whether gradients of a layer's rows go home.

    A first layer that aggregates its constant input before it maps it has none.
    """
    if number > 0 or spec.card.attends or spec.card.aggregation == "max":
        return True
    width = layer_widths(spec, number)
    if spec.card.aggregation == "relations":
        return spec.card.sends(width) < width.into
    return sparse or width.out <= width.into


def column_traffic(spec: ModelSpec, nodes: int, ranks: int, strategy: Strategy) -> EpochTraffic:
    """Return the bytes of an epoch by columns, whatever the cut: rows are turned there and back."""
    whole = full_graph_traffic(spec, 0, ranks, strategy)
    turned = nodes * (ranks - 1) / ranks * strategy.item_bytes
    layers, evaluation = [], 0
    for number in range(spec.layers):
        sent = round(turned * (columns_taken(spec, number) + _columns_given(spec, number)))
        if number == 0 and strategy.input_cache:
            layers.append(LayerTraffic(0, 0, 0))
            continue
        maps_first = spec.card.aggregation == "relations" or returns_gradients(spec, number)
        layers.append(LayerTraffic(sent, 0, sent if maps_first else 0))
        evaluation += sent
    return replace(whole, layers=tuple(layers), evaluation=evaluation, once=0)


def columns_taken(spec: ModelSpec, number: int) -> int:
    """Return the columns of a row that an aggregation by columns takes in, all operands counted."""
    card, width = spec.card, layer_widths(spec, number)
    sends = card.sends(width)
    if card.aggregation == "relations":
        return spec.num_types * width.out
    if not card.attends:
        return sends
    # Beside what travels: a score per head, or a row, of the nodes that attend.
    return sends + (sends - width.out if width.out < sends < 2 * width.out else width.out)


def _columns_given(spec: ModelSpec, number: int) -> int:
    card, width = spec.card, layer_widths(spec, number)
    is_wide = card.attends or card.aggregation in ("max", "relations")
    return width.out if is_wide else card.sends(width)


def interval_traffic(
    spec: ModelSpec, halo_rows: int, ranks: int, precision: Precision = "float32"
) -> EpochTraffic:
    """Return the bytes of an epoch in a pipeline of intervals, on a graph whose edges go both ways.

    Gradients are read from the ends of out-edges, which are as many rows there.
    """
    whole = full_graph_traffic(spec, halo_rows, ranks, Strategy(precision=precision))
    first = layer_widths(spec, 0)
    layers = list(whole.layers)
    if not spec.card.attends and first.out >= first.into:
        layers[0] = LayerTraffic(layers[0].forward, 0, 0)  # mapped first only where it is narrower
    return replace(whole, layers=tuple(layers), once=16 * halo_rows)


def full_graph_traffic(
    spec: ModelSpec, halo_rows: int, ranks: int, strategy: Strategy, *, sparse: bool = False
) -> EpochTraffic:
    """Return the bytes of one epoch over the whole graph."""
    refetches = spec.card.refetches and not strategy.staleness
    share = _share_again(strategy, ranks) if refetches else 0.0
    layers, evaluation, once = [], 0, 0
    for number in range(spec.layers):
        parts = _sent_parts(spec, number, sparse)
        plain = halo_rows * strategy.item_bytes * sum(parts)
        sent = round(halo_rows * sum(row_bytes_sent(width, strategy) for width in parts))
        again = sent
        if strategy.changes:  # what is kept from the first time is not fetched a second time
            narrow = sum(width for width in parts if width < LEAST_WIDTH)
            again = halo_rows * strategy.item_bytes * narrow
        if number == 0 and strategy.input_cache:
            layers.append(LayerTraffic(0, 0, 0))
            once += halo_rows * strategy.item_bytes * spec.cached_width
            continue
        home = sent if returns_gradients(spec, number, sparse=sparse) else 0
        layers.append(LayerTraffic(sent, round(again * share), home))
        evaluation += plain
    if spec.card.aggregation == "normalised_sum":
        once += halo_rows * 8  # degrees
    if spec.card.attends and spec.dropout > 0:
        once += halo_rows * 8  # ids, which drop edges
    return EpochTraffic(
        layers=tuple(layers),
        gradients=_gradient_bytes(spec, ranks, strategy),
        norms=_norm_bytes(spec, ranks, strategy),
        evaluation=evaluation,
        once=once,
    )


def _share_again(strategy: Strategy, ranks: int) -> float:
    """Return the share of rows that are fetched a second time, stages being alike."""
    stages = max(1, min(strategy.stages_of(ranks), ranks - 1))
    return 1 - strategy.kept_stages(stages) / stages


def _sent_parts(spec: ModelSpec, number: int, sparse: bool) -> tuple[int, ...]:
    width = layer_widths(spec, number)
    if number == 0 and sparse and spec.card.input_aggregation is not None:
        return (width.out,)  # sparse rows are mapped before they travel
    return row_parts(spec, number)


def row_bytes_sent(width: int, strategy: Strategy) -> float:
    """Return the bytes of a row on its way, on average where widths differ."""
    if strategy.wire == 32 or width < LEAST_WIDTH:
        return strategy.boundary * strategy.item_bytes * width
    if strategy.wire == 0:
        return FIRST_FORMAT.row_bytes(width) / strategy.wire_period
    if not strategy.assigns_widths:
        return strategy.boundary * Format.of_wire(strategy.wire).row_bytes(width)
    return _HEADER_BYTES + width * strategy.wire_bits / 8


def ring_bytes(num_bytes: int, ranks: int) -> int:
    """Return what all ranks send to sum so many bytes, as the meter counts a ring."""
    return ranks * (2 * (ranks - 1) * num_bytes // ranks)


def _gradient_bytes(spec: ModelSpec, ranks: int, strategy: Strategy) -> int:
    if ranks == 1:
        return 0
    numbers, tensors = parameter_counts(spec)
    if strategy.wire == UNCHANGED.bits:
        return ring_bytes(strategy.weight_bytes * (numbers + tensors), ranks)
    length = numbers + math.ceil(tensors / _ROUNDED_ROW) * _ROUNDED_ROW
    if length < _ROUNDED_FROM:
        return ring_bytes(strategy.weight_bytes * length, ranks)
    rows = math.ceil(length / (ranks * _ROUNDED_ROW))
    each = Format.of_bits(strategy.gradient_bits).row_bytes(_ROUNDED_ROW)
    return 2 * ranks * (ranks - 1) * rows * each


def _norm_bytes(spec: ModelSpec, ranks: int, strategy: Strategy) -> int:
    """Return the sums of batch norm: mean and variance, forward and backward."""
    if spec.norm != "batch" or ranks == 1:
        return 0
    layers = spec.layers if spec.jk != "none" else spec.layers - 1
    return layers * 4 * ring_bytes(strategy.weight_bytes * spec.hidden, ranks)
