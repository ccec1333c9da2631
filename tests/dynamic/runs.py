"""A whole run on a dynamic graph, for ranks of the pool."""

from pathlib import Path
from typing import Any

from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin_dynamic
from siafu.graph import load_dynamic_store
from siafu.record import RunFolder


def run_engine(world: World, store: Path, folder: Path, resume: bool, settings: dict) -> dict:
    """Return the summary of a run, and its weights."""
    config = make_config(data="awkward", **settings).resolved()
    run = RunFolder(folder)
    graph = load_dynamic_store(store)
    training = begin_dynamic(config, graph, world, run.checkpoints if resume else None)
    folder.mkdir(exist_ok=True)
    result: dict[str, Any] = training.train(run, lambda row: None).to_json()
    weights = {name: value.clone() for name, value in training.workload.module.state_dict().items()}
    return {"result": result, "weights": weights}
