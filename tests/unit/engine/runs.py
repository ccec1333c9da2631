"""Runs of the engine on a rank of the pool, or in this process as a world of one."""

from pathlib import Path
from typing import Any

import torch

from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.record import RunFolder
from siafu.shard import open_shard


def run_engine(
    world: World, parts: Path, folder: Path, resume: bool, settings: dict[str, Any]
) -> dict[str, Any]:
    """Train as `siafu train` does and return losses, weights (best and last) and the summary."""
    torch.set_num_threads(1)
    config = make_config(data="planted", ranks=world.size, **settings).resolved()
    run = RunFolder(folder)
    if world.rank == 0:
        folder.mkdir(exist_ok=True)
    shard = open_shard(parts, world)
    training = begin(config, shard, run.checkpoints if resume else None)
    if resume and world.rank == 0:
        run.keep_metrics(training.progress.epochs)
    last: dict[str, torch.Tensor] = {}

    def keep(row: dict[str, Any]) -> None:
        state = training.workload.module.state_dict()
        last.update({name: tensor.clone() for name, tensor in state.items()})

    summary = training.train(run, keep).to_json()
    training.close()
    best = {name: tensor.clone() for name, tensor in training.workload.module.state_dict().items()}
    return {"losses": summary["losses"], "last": last, "best": best, "summary": summary}
