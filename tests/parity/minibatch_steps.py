"""Epochs of sampled minibatches that a rank of the pool runs, and the whole graph's beside."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.ops import CSR
from siafu.shard import open_shard

EPOCHS = 2


def run_epochs(
    world: World,
    parts: Path,
    settings: dict[str, Any],
    *,
    place: str = "host",
    double: bool = False,
) -> dict[str, Any]:
    """Return losses, weights, logits by node and bytes sent, after some epochs."""
    dtype = torch.float64 if double else torch.float32
    torch.set_default_dtype(dtype)
    try:
        shard = open_shard(parts, world, place=place)
        if double and isinstance(shard.x, CSR):
            shard = replace(shard, x=shard.x.with_weight(shard.x.weight.double()))
        elif double:
            shard = replace(shard, x=shard.x.double())
        if double and shard.csr.weight is not None:
            csr = shard.csr.with_weight(shard.csr.weight.double())
            shard = replace(shard, csr=csr, edge_attr=shard.edge_attr.double())
        training = begin(make_config(data="awkward", **settings).resolved(), shard)
        for _ in range(EPOCHS):
            training.progress.losses.append(training.step())
            training.progress.epochs += 1
        grads = {
            name: parameter.grad.clone()
            for name, parameter in training.workload.network.module.named_parameters()
            if parameter.grad is not None
        }
        network = training.workload.network
        network.module.eval()
        training.workload.draws.training = False
        result = {
            "losses": training.progress.losses,
            "grads": grads,
            "weights": {n: t.clone() for n, t in network.module.state_dict().items()},
            "logits": dict(zip(shard.row_ids.tolist(), network.logits().detach(), strict=True)),
            "bytes": dict(world.meter.bytes_sent),
            "choices": network.strategy.choices(world.size),
        }
        training.close()
        return result
    finally:
        torch.set_default_dtype(torch.float32)


def joined_logits(results: list[dict[str, Any]]) -> Tensor:
    """Return the logits of all nodes, in the order of the whole graph."""
    rows = {node: row for result in results for node, row in result["logits"].items()}
    return torch.stack([rows[node] for node in sorted(rows)])
