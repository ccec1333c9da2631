"""Aggregating the constant input of the first layer once, where that changes nothing."""

import torch
from torch import Tensor

from siafu.errors import ConfigError
from siafu.nn.cards import ModelSpec, cards_that
from siafu.nn.neighbours import Neighbours
from siafu.nn.sparse import CachedRows, Rows, SparseRows, dense

_MOST_TYPES = 8
"""Means by type are kept where they are as many columns as so many copies of the input."""


def check_input_cache(spec: ModelSpec, *, sampled: bool = False) -> None:
    """Raise unless the first layer of the model asks for the same sum in every epoch.

    `sampled`: on minibatches, which do not have means by type.
    """
    if spec.card.aggregation == "relations":
        _check_types(spec, sampled=sampled)
    elif spec.card.input_aggregation is None:
        known = cards_that(lambda card: card.input_aggregation is not None)
        raise _refused(
            f"--model {spec.name}: weights take part in what its first layer aggregates",
            f"use it with {', '.join(known)}, or leave --input-cache out",
        )
    p = spec.dropout if spec.input_dropout is None else spec.input_dropout
    if p > 0:
        raise _refused(
            f"dropout of {p:g} on the input, which is drawn anew in every epoch",
            "add --input-dropout 0, or leave --input-cache out",
        )


def _check_types(spec: ModelSpec, *, sampled: bool) -> None:
    if sampled:
        raise _refused(
            f"--model {spec.name} on minibatches, whose first layer has a mean for each type",
            "use --strategy halo or sar, or leave --input-cache out",
        )
    if spec.num_types > _MOST_TYPES:
        raise _refused(
            f"--model {spec.name} with {spec.num_types} types of edges: {4 * spec.cached_width:,} "
            f"bytes of means per node, beside {4 * spec.in_width:,} of its features",
            f"leave --input-cache out; up to {_MOST_TYPES} types are kept",
        )


@torch.no_grad()
def cache_input(x: Rows, neighbours: Neighbours, spec: ModelSpec) -> CachedRows:
    """Return the input with its aggregate; every rank calls this together."""
    check_input_cache(spec)
    if isinstance(x, Tensor) and x.requires_grad:
        raise _refused(
            "an input that is trained, so that its sum changes in every step",
            "detach the input, or leave the cache out",
        )
    if isinstance(x, SparseRows) and spec.residual and spec.in_width == spec.hidden:
        raise _refused(
            "sparse features with --residual, which would be added to the first layer's output",
            "leave --residual or --input-cache out",
        )
    rows_ND = dense(x)
    if spec.card.input_aggregation is None:
        return CachedRows(rows_ND, _means_by_type(rows_ND, neighbours, spec.num_types))
    aggregate_MD: Tensor = getattr(neighbours, spec.card.input_aggregation)(rows_ND)
    return CachedRows(rows_ND, aggregate_MD)


def _means_by_type(x_ND: Tensor, neighbours: Neighbours, num_types: int) -> Tensor:
    """Return the means over in-edges of each type, side by side: relations that map one type."""
    width = x_ND.size(1)
    means = []
    for number in range(num_types):
        map_TDD = x_ND.new_zeros(num_types, width, width)
        map_TDD[number].fill_diagonal_(1)
        means.append(neighbours.relations(x_ND, map_TDD))
    return torch.cat(means, dim=1)


def _refused(seen: str, fix: str) -> ConfigError:
    return ConfigError("The first layer's input can't be aggregated once.", seen=seen, fix=fix)
