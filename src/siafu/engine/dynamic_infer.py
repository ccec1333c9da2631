"""Predictions on a dynamic graph by the user's own ids, and the weights they come from."""

import json
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from siafu.config import RunConfig
from siafu.engine.column_names import check_names
from siafu.engine.dynamic import DynamicNetwork, make_network, make_runner
from siafu.engine.grid import Grid
from siafu.engine.infer import as_lists
from siafu.engine.snapshots import num_inputs
from siafu.engine.tasks import Task, time_column
from siafu.errors import StoreError
from siafu.graph import DynamicGraph, writing
from siafu.nn import Draws
from siafu.strategy import TimeRunner


@torch.no_grad()
def write_dynamic_predictions(
    network: DynamicNetwork, task: Task, runner: TimeRunner, target: Path, rank: int
) -> None:
    """Write one Parquet file a rank: what was asked about each snapshot, in order of time."""
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
        temporary = file.with_suffix(".tmp")
        pq.write_table(pa.concat_tables(tables, promote_options="permissive"), temporary)
        temporary.replace(file)


@torch.no_grad()
def write_dynamic_embeddings(
    network: DynamicNetwork, graph: DynamicGraph, grid: Grid, runner: TimeRunner, target: Path
) -> None:
    """Write one Parquet file a rank: each vertex's row in each snapshot, in order of time."""
    network.eval()
    file = target / f"part{grid.world.rank}.parquet"
    ids = graph.ids.take(grid.share.ids_n.cpu().numpy()).to_arrow()
    writer: pq.ParquetWriter | None = None
    with writing(file), ExitStack() as stack:
        target.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".tmp")
        for block, rows_tND in runner.evaluate():
            for step, rows_ND in zip(block.owned(runner.world.rank), rows_tND, strict=True):
                times = time_column(graph, step, len(ids))
                table = pa.table({"id": ids, "time": times, "embedding": as_lists(rows_ND)})
                if writer is None:
                    writer = stack.enter_context(pq.ParquetWriter(temporary, table.schema))
                writer.write_table(table)
        stack.close()
        if writer is not None:
            temporary.replace(file)


def save_dynamic_network(
    network: DynamicNetwork, task: Task, graph: DynamicGraph, lags: int, file: Path
) -> None:
    """Write the weights, and with them what data they are for."""
    tensors = {name: tensor.contiguous().cpu() for name, tensor in network.state_dict().items()}
    facts = {"num_features": str(num_inputs(graph, lags)), "task": task.name}
    facts["feature_names"] = json.dumps(graph.feature_names)
    save_file(tensors, file, metadata=facts)


def infer_dynamic(
    config: RunConfig,
    graph: DynamicGraph,
    grid: Grid,
    file: Path,
    out: Path,
    *,
    embeddings: bool = False,
) -> None:
    """Write the predictions of trained weights for a dynamic graph, or its embeddings."""
    with safe_open(file, "pt") as opened:
        facts = opened.metadata() or {}
    config = config.model_copy(update={"task": facts.get("task", config.task)})
    draws = Draws(seed=config.seed, training=False)
    made = make_network(config, graph, grid, draws)
    task, network, lags = made
    check_names(graph.feature_names, facts.get("feature_names"), "features", graph.name)
    if num_inputs(graph, lags) != int(facts.get("num_features", -1)):
        raise StoreError(
            "The features do not fit the model.",
            seen=f"{num_inputs(graph, lags)} columns in {graph.name}, "
            f"the model was trained on {facts.get('num_features')}",
            fix="infer on a graph with the features the run was trained on",
        )
    try:
        network.load_state_dict(load_file(file, device=str(grid.world.device)))
    except RuntimeError as error:
        raise StoreError(
            "The weights do not fit the model.",
            seen=str(error).splitlines()[-1].strip(),
            fix="infer with the model and the kind of data the run was trained with",
        ) from error
    runner = make_runner(config, graph, grid, made, draws, to_the_end=embeddings)
    if embeddings:
        write_dynamic_embeddings(network, graph, grid, runner, out)
    else:
        write_dynamic_predictions(network, task, runner, out, grid.world.rank)
