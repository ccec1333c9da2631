"""One pass of a user's own model over a few rows, before anything is trained."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from siafu.config import RunConfig
from siafu.engine.networks.own_model import OutputShape
from siafu.errors import ConfigError
from siafu.nn import Rows, SparseRows, rows_to_sum_one
from siafu.nn.sparse import dense, held_as
from siafu.ops import sum_type
from siafu.shard import Shard
from siafu.strategy import as_given, edge_arguments

_FEW = 8
_SAME = 1e-4
"""Of the largest number: what rounding leaves of a difference."""


def first_rows(x: Rows, config: RunConfig, count: int = _FEW) -> Rows:
    """Return a few rows of features as a model reads them, where the others stay as they are."""
    assert isinstance(x, Tensor | SparseRows), "features as they are read"
    if isinstance(x, SparseRows):
        few: Rows = x.select(torch.arange(min(count, x.shape[0]), device=x.ids_N.device))
    else:
        few = x[:count]
    return held_as(rows_to_sum_one(few) if config.normalize_features else few, config.precision)


def try_forward(module: nn.Module, x: Rows, shard: Shard, wanted: OutputShape) -> None:
    """Raise what the model does with a few nodes in a ring: its own error, or what is not fit.

    On a copy: layers may keep what they have seen. A model with a row of its own for each node is
    left to the first epoch, and so is a rank without enough nodes.
    """
    every = [*module.parameters(), *module.buffers()]
    is_small = min(shard.num_owned, shard.csr.num_edges) < _FEW
    if is_small or any(shard.num_owned in tensor.shape for tensor in every):
        return
    try:
        trial = copy.deepcopy(module)
    except Exception:  # noqa: BLE001 - a module that can't be copied is not wrong for that
        return
    device = shard.world.device
    few_rows = torch.arange(_FEW, device=shard.row_ids.device)
    rows = dense(x.select(few_rows) if isinstance(x, SparseRows) else x)[:_FEW].to(device)
    ring = few_rows.to(device)
    few = _first_edges(module, shard, _FEW)
    rows = rows.to(sum_type(rows.dtype))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        out = trial.eval()(rows, torch.stack([ring, ring.roll(1)]), **as_given(trial, few))
    found = wanted.checked(out, _FEW, trial)
    if found.device != rows.device:
        raise ConfigError(
            "The model's output is on another device than its input.",
            seen=f"{type(module).__name__} gives {found.device} for rows on {rows.device}",
            fix="make tensors in forward with device=x.device",
        )
    if not bool(found.isfinite().all()):
        raise ConfigError(
            "The model gives numbers that are NaN or infinite before it is trained.",
            seen=f"{type(module).__name__} on the first {_FEW} nodes",
            fix="look for divisions and logarithms in its forward, or scale the features",
        )


def _first_edges(module: nn.Module, shard: Shard, count: int) -> dict[Any, Tensor | None]:
    """Return what a model is given of so many edges: the first, over again where there are less."""
    columns: Any = {
        name: getattr(shard, name, None) if name != "edge_weight" else shard.csr.weight
        for name in edge_arguments(module, shard)
    }
    edges = torch.arange(count, device=shard.row_ids.device) % max(1, shard.csr.num_edges)
    return {
        name: None if column is None else column[edges].to(shard.world.device)
        for name, column in columns.items()
    }


@torch.no_grad()
def reads_beyond(module: nn.Module, x: Rows, shard: Shard, hops: int) -> bool:
    """Return whether a node's answer changes with what is further away than so many hops.

    Tried on a ring in which each node has two in-edges: all of it, and what one node reaches.
    False where the model can't be tried so.
    """
    count = 4 * hops + 8
    rows = dense(x)
    if not len(rows) or not shard.csr.num_edges:
        return False
    rows = rows[torch.arange(count, device=rows.device) % len(rows)].to(shard.world.device)
    source, target = torch.arange(1, 3).repeat(count), torch.arange(count).repeat_interleave(2)
    ring = torch.stack([(source + target) % count, target]).to(rows.device)
    edges = _first_edges(module, shard, 2 * count)
    reached = (count, 2 * count), (2 * hops + 1, 4 * hops - 2)
    answers = []
    with torch.random.fork_rng(devices=[]):
        try:
            trial = copy.deepcopy(module).eval()
            for n, e in reached:
                few = {
                    name: None if rows_E is None else rows_E[:e] for name, rows_E in edges.items()
                }
                out = trial(rows[:n].to(sum_type(rows.dtype)), ring[:, :e], **as_given(trial, few))
                answers.append(out[0].double())
        except Exception:  # noqa: BLE001 - it may have a row of its own for each node
            return False
    error = float((answers[0] - answers[1]).abs().max())
    return error > _SAME * float(answers[0].abs().max())
