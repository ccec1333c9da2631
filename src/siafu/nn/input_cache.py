"""Aggregating the constant input of the first layer once, where that changes nothing."""

import torch
from torch import Tensor

from siafu.errors import ConfigError
from siafu.nn.cards import ModelSpec, cards_that
from siafu.nn.neighbours import Neighbours
from siafu.nn.sparse import CachedRows, Rows, SparseRows, dense


def check_input_cache(spec: ModelSpec) -> None:
    """Raise unless the first layer of the model asks for the same sum in every epoch."""
    if spec.card.input_aggregation is None:
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
    assert spec.card.input_aggregation is not None, "just checked"
    aggregate_MD: Tensor = getattr(neighbours, spec.card.input_aggregation)(rows_ND)
    return CachedRows(rows_ND, aggregate_MD)


def _refused(seen: str, fix: str) -> ConfigError:
    return ConfigError("The first layer's input can't be aggregated once.", seen=seen, fix=fix)
