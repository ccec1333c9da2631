"""Predictions on a dynamic graph by the user's own ids, and the weights they come from."""

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pydantic import Field, Json, field_validator

from siafu.config import ResolvedConfig
from siafu.engine.dynamic.network import TASKS, DynamicNetwork, Made, make_network, make_runner
from siafu.engine.dynamic.step_shards import Grid
from siafu.engine.infer import as_lists
from siafu.engine.tasks.task import DynamicTask, time_column
from siafu.engine.weights import WeightFacts, Weights, check_names, write_weights
from siafu.errors import StoreError
from siafu.files import replacing
from siafu.graph import DynamicGraph, writing
from siafu.nn import DYNAMIC_CARDS, Draws
from siafu.nn.precision import usable
from siafu.strategy import TimeRunner


@torch.no_grad()
def write_dynamic_predictions(
    network: DynamicNetwork, task: DynamicTask, runner: TimeRunner, target: Path, rank: int
) -> None:
    """Write one Parquet file per rank: what was asked about each snapshot, in order of time."""
    network.eval()
    tables = []
    for block, rows_tND in runner.evaluate():
        for step, rows_ND in zip(block.owned(runner.world.rank), rows_tND, strict=True):
            columns = task.table(network.head, step, rows_ND)
            if columns and len(next(iter(columns.values()))):
                tables.append(pa.table(columns))
    file = target / f"part{rank}.parquet"
    if not tables:
        return
    with writing(file):
        target.mkdir(parents=True, exist_ok=True)
        with replacing(file) as temporary:
            pq.write_table(pa.concat_tables(tables, promote_options="permissive"), temporary)


@torch.no_grad()
def write_dynamic_embeddings(
    network: DynamicNetwork, graph: DynamicGraph, grid: Grid, runner: TimeRunner, target: Path
) -> None:
    """Write one Parquet file per rank: each node's row in each snapshot, in order of time."""
    network.eval()
    file = target / f"part{grid.world.rank}.parquet"
    ids = graph.ids.take(grid.share.ids_n.cpu().numpy()).to_arrow()
    with writing(file), ExitStack() as stack:
        target.mkdir(parents=True, exist_ok=True)
        writer: pq.ParquetWriter | None = None
        for block, rows_tND in runner.evaluate():
            for step, rows_ND in zip(block.owned(runner.world.rank), rows_tND, strict=True):
                times = time_column(graph, step, len(ids))
                table = pa.table({"id": ids, "time": times, "embedding": as_lists(rows_ND)})
                if writer is None:
                    temporary = stack.enter_context(replacing(file))
                    writer = stack.enter_context(pq.ParquetWriter(temporary, table.schema))
                writer.write_table(table)


class _Facts(WeightFacts):
    num_features: Annotated[int, Field(ge=0, lt=1 << 31)]
    task: str | None = None
    feature_names: Json[list[str]] = Field(default=[])
    class_names: Json[list[str | int]] = Field(default=[])

    @field_validator("task")
    @classmethod
    def _known(cls, task: str | None) -> str | None:
        if task not in (None, *TASKS):
            raise ValueError(f"tasks are {', '.join(TASKS)}")
        return task


def _class_names(task: DynamicTask, graph: DynamicGraph) -> list[str | int]:
    """Return the names of the classes that a task predicts, none where they have none."""
    names = {"edge": graph.edge_class_names, "node": graph.class_names}.get(task.name, ())
    return list(names)


def save_dynamic_network(made: Made, graph: DynamicGraph, file: Path) -> None:
    """Write the weights, and with them what data they are for."""
    task, network = made.task, made.network
    facts = {"num_features": str(made.num_inputs(graph)), "task": task.name}
    facts["feature_names"] = json.dumps(graph.feature_names)
    facts["class_names"] = json.dumps(_class_names(task, graph))
    write_weights(network, facts, file)


def _unlabelled(graph: DynamicGraph, facts: _Facts, weights: Weights) -> DynamicGraph:
    """Return a graph of events whose classes are not known as one with the model's classes."""
    last = weights.tensors.get("head.last.weight", weights.tensors["head.source.weight"])
    return replace(
        graph,
        event_label=np.full(graph.num_events, -1),
        num_edge_classes=last.shape[0],
        edge_class_names=tuple(facts.class_names),
    )


def infer_dynamic(
    config: ResolvedConfig,
    graph: DynamicGraph,
    grid: Grid,
    file: Path,
    out: Path,
    *,
    embeddings: bool = False,
) -> None:
    """Write the predictions of trained weights for a dynamic graph, or its embeddings."""
    weights = Weights(file)
    facts = weights.facts(_Facts)
    # Runs of before histories, or features of edges in layers, were read have no part for them,
    # and none for a scale of the latter's sums before these had one.
    knows_pairs = "head.known.weight" in weights.tensors
    told = {"task": facts.task or config.task, "pair_history": knows_pairs}
    told |= {"precision": usable(config.precision, grid.world.device)}
    config = config.model_copy(update=told)
    draws = Draws(seed=config.seed, training=False)
    if config.task == "edge" and not graph.num_edge_classes:
        graph = _unlabelled(graph, facts, weights)
    is_own = config.model not in DYNAMIC_CARDS
    in_layers = is_own or any(name.endswith(".edges.weight") for name in weights.tensors)
    scaled = "events.sums.mean_F" in weights.tensors
    made = make_network(config, graph, grid, draws, edges_in_layers=in_layers, scaled_sums=scaled)
    task, network = made.task, made.network
    check_names(graph.feature_names, facts.feature_names, "features", graph.name)
    named = _class_names(task, graph)
    if named and facts.class_names and named != facts.class_names:
        raise StoreError(
            "The classes are not those the model was trained on.",
            seen=f"{named[:8]} in {graph.name}, the model knows {facts.class_names[:8]}",
            fix="infer on data whose labels have the model's classes, or on data without labels",
        )
    if made.num_inputs(graph) != facts.num_features:
        raise StoreError(
            "The features do not fit the model.",
            seen=f"{made.num_inputs(graph)} columns in {graph.name}, "
            f"the model was trained on {facts.num_features}",
            fix="infer on a graph with the features the run was trained on",
        )
    weights.load_into(network)
    runner = make_runner(config, graph, grid, made, draws, to_the_end=embeddings, trains=False)
    if embeddings:
        write_dynamic_embeddings(network, graph, grid, runner, out)
    else:
        write_dynamic_predictions(network, task, runner, out, grid.world.rank)
