"""Steps of foreign models on a rank of the pool, and the same by PyG alone."""

import inspect
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from siafu.comm import World
from siafu.shard import Shard, open_shard
from siafu.strategy import Strategy, parallelize
from tests.parity import pyg_models
from tests.parity.pyg_models import CONVS, EDGE_CONVS, WHOLE

EXACT = {"rtol": 1e-10, "atol": 1e-12}

OWN = {
    "chebyshev": pyg_models.Chebyshev,
    "graph-norm": pyg_models.WithGraphNorm,
    "attention": pyg_models.AttentionDropout,
    "edge-data": pyg_models.WithEdgeData,
    "adds-noise": pyg_models.AddsNoise,
    "drops-edges": pyg_models.DropsEdges,
    "drops-both-ways": pyg_models.DropsBothWays,
    "out-degrees": pyg_models.OutDegrees,
    "two-dropouts": pyg_models.TwoDropouts,
    "message-dropout": pyg_models.MessageDropout,
    "turned": pyg_models.Turned,
    "reversed": pyg_models.Reversed,
}


def make(kind: str) -> nn.Module:
    """Return a model by name, always with the same weights."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG compiles its templates; not ours to judge
        if kind in CONVS:
            return pyg_models.TwoLayers(kind, 6, 3).double()
        if kind in EDGE_CONVS:
            return pyg_models.TwoEdgeLayers(kind, 6, 3).double()
        if kind in pyg_models.AGGREGATIONS:
            return pyg_models.aggregating(kind).double()
        layers = WHOLE | pyg_models.SOFTMAXES
        return (layers[kind]() if kind in layers else OWN[kind](6, 3)).double()


def edge_inputs(model: nn.Module, shard: Shard) -> dict[str, Tensor]:
    """Return what a model takes of the edges' data."""
    have = {
        "edge_weight": None if shard.csr.weight is None else shard.csr.weight.double(),
        "edge_attr": None if shard.edge_attr is None else shard.edge_attr.double(),
        "edge_type": None if shard.edge_type is None else shard.edge_type.long(),
    }
    accepted = inspect.signature(model.forward).parameters
    return {name: data for name, data in have.items() if data is not None and name in accepted}


def spread_step(
    world: World, folder: Path, kind: str, strategy: Strategy | None = None
) -> dict[str, Any]:
    """Return what one rank sees of a step."""
    shard, module = open_shard(folder, world), make(kind)
    model = parallelize(module, shard, strategy or Strategy())
    x = shard.x.double().requires_grad_()
    out = model(x, **edge_inputs(module, shard))
    picked = functional.cross_entropy(out[shard.train], shard.y[shard.train], reduction="none")
    loss = shard.mean(picked)
    loss.backward()
    return _outcome(module, loss, out, x) | {"ids": shard.row_ids}


@cache
def plain_step(folder: Path, kind: str) -> dict[str, Any]:
    """PyG alone, on the whole graph."""
    shard, model = open_shard(folder, World()), make(kind)
    x = shard.x.double().requires_grad_()
    out = model(x, shard.edge_index, **edge_inputs(model, shard))
    loss = functional.cross_entropy(out[shard.train], shard.y[shard.train])
    loss.backward()
    return _outcome(model, loss, out, x)


def _outcome(model: nn.Module, loss: Tensor, out: Tensor, x: Tensor) -> dict[str, Any]:
    return {
        "loss": float(loss.detach()),
        "grads": {name: p.grad for name, p in model.named_parameters()},
        "buffers": dict(model.named_buffers()),
        "rows": {"out": out.detach(), "input": x.grad},
    }


def check(got: list[dict[str, Any]], want: dict[str, Any]) -> None:
    """Raise unless all ranks together have what PyG alone has."""
    joined = {name: torch.zeros_like(rows) for name, rows in want["rows"].items()}
    for part in got:
        assert part["loss"] == pytest.approx(want["loss"], rel=1e-10)
        for group in ("grads", "buffers"):
            for name, tensor in part[group].items():
                close(tensor, want[group][name], name)
        for name, rows in part["rows"].items():
            joined[name][part["ids"]] = rows
    for name, rows in joined.items():
        close(rows, want["rows"][name], name)


def close(got: Tensor | None, want: Tensor | None, name: str) -> None:
    """Raise unless two tensors are equal but for rounding."""
    if want is None:
        assert got is None or not got.abs().sum(), name
    else:
        torch.testing.assert_close(got, want, **EXACT, msg=lambda text: f"{name}: {text}")


def refused(world: World, folder: Path, kind: str, strategy: Strategy | None = None) -> str:
    """Return the error that a model ends in."""
    shard, module = open_shard(folder, world), make(kind)
    try:
        model = parallelize(module, shard, strategy or Strategy())
        model(shard.x.double(), **edge_inputs(module, shard))
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return f"{type(error).__name__}: {error}"
    return "nothing"
