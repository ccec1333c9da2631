"""Training steps that a rank of the pool runs, and the same in one process."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from siafu.comm import World, reduce_gradients
from siafu.engine.scores import training_loss
from siafu.nn import (
    GNN,
    Draws,
    LocalNeighbours,
    ModelSpec,
    Neighbours,
    Reduce,
    cache_input,
)
from siafu.shard import Shard, open_shard
from siafu.strategy import Offload, Strategy, leaving, message_flow, neighbours_of
from siafu.strategy.offload import HostCopier
from tests.parity.message_models import MessageNet, MessagePlan

STEPS = 3

Plan = ModelSpec | Reduce | MessagePlan
"""A built-in model, or how the messages of a user's one are joined."""


def make_model(plan: Plan) -> nn.Module:
    """Return the model of the steps, always with the same weights."""
    torch.manual_seed(0)
    plan = MessagePlan(plan) if isinstance(plan, str) else plan
    return (MessageNet(plan) if isinstance(plan, MessagePlan) else GNN(plan)).double()


class LateCopier(HostCopier):
    """Copies that happen when they are waited for, and not before, in the order they were begun."""

    def __init__(self) -> None:
        self._hosts: set[int] = set()
        self._begun: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._count = 0

    def room(self, nbytes: int) -> Tensor:
        """Return memory that counts as the host's."""
        found = super().room(nbytes)
        self._hosts.add(found.untyped_storage().data_ptr())
        return found

    def copy(self, pairs: list[tuple[Tensor, Tensor]]) -> Any:
        """Note them; what a device is going to have is no number until then."""
        for _, target in pairs:
            if target.untyped_storage().data_ptr() not in self._hosts:
                target.fill_(255)
        self._count += 1
        self._begun[self._count] = pairs
        return self._count

    def wait(self, ticket: Any) -> None:
        """Copy up to what is waited for."""
        for number in [number for number in self._begun if number <= ticket]:
            for source, target in self._begun.pop(number):
                target.copy_(source)


def offload_of(strategy: Strategy, stays: list[Tensor]) -> Offload | None:
    """Return what has small rows leave too, to a device's host that is the host itself."""
    if not strategy.offload:
        return None
    more: dict[str, Any] = {"copier": LateCopier(), "least_bytes": 64, "chunk_bytes": 48}
    return Offload(strategy.offload, torch.device("cpu"), stays, **more)


def run_steps(
    shard: Shard,
    neighbours: Neighbours,
    draws: Draws,
    plan: Plan,
    strategy: Strategy,
    first_epoch: int = 0,
    steps: int = STEPS,
) -> dict[str, Any]:
    """Return losses, gradients of the first step, weights after the last, and the rows' ids."""
    model = make_model(plan)
    assert isinstance(shard.x, Tensor)
    x = shard.x.double().requires_grad_()
    # A bias before batch norm has gradient 0; with Adam's usual eps, rounding noise of 1e-18 over
    # itself would become a step of full size.
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05, eps=1e-3)
    flow = []
    if strategy.prune:
        layers = plan.layers if isinstance(plan, ModelSpec) else 2
        views = message_flow(shard, shard.train, layers)
        flow = [neighbours_of(shard, draws, strategy, view=view) for view in views]
    away = offload_of(strategy, [*model.parameters(), x])
    losses: list[float] = []
    grads: dict[str, Tensor] = {}
    for step in range(steps):
        draws.epoch = first_epoch + step
        optimiser.zero_grad()
        with leaving(away):
            if flow:
                picked = model(x[flow[0].view.read_rows_N], flow, draws)
            elif strategy.input_cache:
                picked = model(cache_input(x.detach(), neighbours, plan), neighbours, draws)
                picked = picked[shard.train]
            else:
                picked = model(x, neighbours, draws)[shard.train]
        loss = training_loss(picked, shard)
        loss.backward()
        reduce_gradients(list(model.parameters()), shard.world)
        if step == 0:
            grads = {
                name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
                for name, p in model.named_parameters()
            }
            grads["input"] = torch.zeros_like(x) if x.grad is None else x.grad.clone()
        optimiser.step()
        losses.append(sum(row[0] for row in shard.world.gather_numbers([float(loss.detach())])))
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    left = 0 if away is None else away.step_bytes
    found = {"losses": losses, "grads": grads, "weights": weights, "rows": shard.row_ids}
    return found | ({"left": left} if left else {})


def distributed_steps(
    world: World, parts: Path, plan: Plan, strategy: Strategy | None = None, hosts: str = ""
) -> dict[str, Any]:
    """Return what one rank sees of the steps; `hosts` has a letter for the host of each rank."""
    strategy, world.hosts = strategy or Strategy(), tuple(hosts)
    torch.set_default_dtype(torch.float64)
    try:
        shard, draws = open_shard(parts, world), Draws(seed=3)
        neighbours = neighbours_of(shard, draws, strategy)
        return run_steps(shard, neighbours, draws, plan, strategy)
    finally:
        torch.set_default_dtype(torch.float32)


@cache
def single_steps(parts: Path, plan: Plan, first_epoch: int = 0) -> dict[str, Any]:
    """Return the truth: one process that holds the whole graph and exchanges nothing."""
    torch.set_default_dtype(torch.float64)
    try:
        shard, draws = open_shard(parts, World()), Draws(seed=3)
        edges = {"edge_attr": shard.edge_attr, "edge_type": shard.edge_type}
        neighbours = LocalNeighbours(shard.csr, shard.row_ids, draws, **edges)
        return run_steps(shard, neighbours, draws, plan, Strategy(), first_epoch)
    finally:
        torch.set_default_dtype(torch.float32)


def assert_same(got: list[dict[str, Any]], want: dict[str, Any], **tolerance: float) -> None:
    """Raise unless all ranks together have what one process has."""
    input_grad = torch.zeros_like(want["grads"]["input"])
    for rank, part in enumerate(got):
        torch.testing.assert_close(part["losses"], want["losses"], **tolerance)
        input_grad[part["rows"]] = part["grads"].pop("input")
        for name, grad in part["grads"].items():
            _close(grad, want["grads"][name], f"rank {rank}, gradient of {name}", tolerance)
        for name, weight in part["weights"].items():
            _close(weight, want["weights"][name], f"rank {rank}, weight {name}", tolerance)
    if bool(input_grad.any()):
        _close(input_grad, want["grads"]["input"], "gradient of the input", tolerance)


def _close(got: Tensor, want: Tensor, what: str, tolerance: dict[str, float]) -> None:
    torch.testing.assert_close(got, want, **tolerance, msg=lambda text: f"{what}: {text}")
