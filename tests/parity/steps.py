"""Training steps that a rank of the pool runs, and the same in one process."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from siafu.comm import World, reduce_gradients
from siafu.engine.score import training_loss
from siafu.nn import GNN, Draws, LocalNeighbours, ModelSpec, Neighbours
from siafu.ops import CSR
from siafu.shard import Shard, open_shard
from siafu.strategy import HaloNeighbours

STEPS = 3


def run_steps(
    shard: Shard, neighbours: Neighbours, draws: Draws, spec: ModelSpec
) -> dict[str, Any]:
    """Return losses, gradients of the first step, weights after the last, and the rows' ids."""
    torch.manual_seed(0)
    model = GNN(spec).double()
    assert isinstance(shard.x, Tensor)
    x = shard.x.double().requires_grad_()
    # A bias before batch norm has gradient 0; with Adam's usual eps, rounding noise of 1e-18 over
    # itself would become a step of full size.
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05, eps=1e-3)
    losses: list[float] = []
    grads: dict[str, Tensor] = {}
    for step in range(STEPS):
        draws.epoch = step
        optimiser.zero_grad()
        loss = training_loss(model(x, neighbours, draws), shard)
        loss.backward()
        reduce_gradients(list(model.parameters()), shard.world)
        if step == 0:
            grads = {name: p.grad.clone() for name, p in model.named_parameters()}
            grads["input"] = x.grad.clone()
        optimiser.step()
        losses.append(sum(row[0] for row in shard.world.gather_numbers([float(loss.detach())])))
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return {"losses": losses, "grads": grads, "weights": weights, "rows": shard.row_ids}


def distributed_steps(world: World, parts: Path, spec: ModelSpec) -> dict[str, Any]:
    """Return what one rank sees of the steps."""
    torch.set_default_dtype(torch.float64)
    try:
        shard, draws = open_shard(parts, world), Draws(seed=3)
        return run_steps(shard, HaloNeighbours(shard, draws), draws, spec)
    finally:
        torch.set_default_dtype(torch.float32)


def single_steps(parts: Path, spec: ModelSpec) -> dict[str, Any]:
    """Return the truth: one process that holds the whole graph and exchanges nothing."""
    torch.set_default_dtype(torch.float64)
    try:
        shard, draws = open_shard(parts, World()), Draws(seed=3)
        csr: CSR = shard.csr
        return run_steps(shard, LocalNeighbours(csr, shard.row_ids, draws), draws, spec)
    finally:
        torch.set_default_dtype(torch.float32)
