"""`siafu ingest` and `siafu partition`: graphs on disk."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from siafu.cli.inspect import describe, quality_rows, show
from siafu.cli.show import say
from siafu.ingest import TableOptions, ingest_to_store
from siafu.launch.cut import Allowance, SourceReading, cut_source
from siafu.options import read_bytes
from siafu.partitioning import Cut
from siafu.partitioning.options import Method
from siafu.record import PhaseProgress

_Json = Annotated[bool, typer.Option("--json", help="one JSON object as the last line")]
_Quiet = Annotated[bool, typer.Option("--quiet", help="no progress")]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="replace an existing folder")]


def ingest(  # noqa: PLR0913 - one flag per option
    source: Annotated[str, typer.Argument(help="built-in name, .npz, Parquet or CSV, folder")],
    target: Annotated[Path, typer.Argument(help="store folder to write")],
    node_id: Annotated[str, typer.Option(help="id column of the node table")] = "id",
    src: Annotated[str, typer.Option(help="source column of the edge table")] = "src",
    dst: Annotated[str, typer.Option(help="destination column of the edge table")] = "dst",
    label: Annotated[str | None, typer.Option(help="label column(s), comma between")] = None,
    split_column: Annotated[str | None, typer.Option(help="column with train, val, test")] = None,
    features: Annotated[str | None, typer.Option(help="feature columns, comma between")] = None,
    edge_weight: Annotated[str | None, typer.Option(help="weight column of the edges")] = None,
    edge_attr: Annotated[str | None, typer.Option(help="edge feature columns")] = None,
    edge_type: Annotated[str | None, typer.Option(help="type column of the edges")] = None,
    id_type: Annotated[Literal["integer", "text"] | None, typer.Option(help="read ids as")] = None,
    nodes: Annotated[Path | None, typer.Option(help="node table, if not beside the edges")] = None,
    undirected: Annotated[bool, typer.Option("--undirected", help="add reverse edges")] = False,
    split: Annotated[str | None, typer.Option(help="draw masks: 0.6,0.2 or 20,30")] = None,
    seed: Annotated[int, typer.Option(help="seed of drawn masks")] = 0,
    overwrite: _Overwrite = False,
    quiet: _Quiet = False,
    json: _Json = False,
) -> None:
    """Turn foreign files into a store, once, in bounded memory."""
    labels = _columns(label)
    options = TableOptions(
        node_id=node_id,
        src=src,
        dst=dst,
        label=labels[0] if labels and len(labels) == 1 else labels,
        split=split_column,
        features=_columns(features),
        edge_weight=edge_weight,
        edge_attr=_columns(edge_attr) or (),
        edge_type=edge_type,
        undirected=undirected,
        id_type=id_type,
        nodes=nodes,
    )
    progress = PhaseProgress(quiet=quiet)
    try:
        remarks = ingest_to_store(
            source,
            target,
            overwrite=overwrite,
            undirected=undirected,
            split=split,
            seed=seed,
            options=options,
            progress=progress,
        )
    finally:
        progress.close()
    for remark in remarks:
        say(remark)
    show(target, describe(target), as_json=json)


def _columns(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(","))


def partition(  # noqa: PLR0913 - one flag per option
    data: Annotated[str, typer.Argument(help="store, or anything `siafu train` takes")],
    target: Annotated[Path, typer.Argument(help="parts folder to write")],
    parts: Annotated[int, typer.Option(help="how many parts, one per rank", min=1)] = 2,
    method: Annotated[Method, typer.Option(help="how to cut")] = "auto",
    width: Annotated[int, typer.Option(help="row width for the predicted traffic", min=1)] = 64,
    memory: Annotated[str | None, typer.Option(help="memory allowed, e.g. 4GB")] = None,
    undirected: Annotated[bool, typer.Option("--undirected", help="add reverse edges")] = False,
    split: Annotated[str | None, typer.Option(help="draw masks: 0.6,0.2 or 20,30")] = None,
    seed: Annotated[int, typer.Option(help="seed of the cut and of drawn masks")] = 0,
    overwrite: _Overwrite = False,
    quiet: _Quiet = False,
    json: _Json = False,
) -> None:
    """Cut a graph into parts, one per rank, and say how good the cut is.

    Tables and stores may be larger than memory. Killed or out of disk, the same command goes on.
    """
    progress = PhaseProgress(quiet=quiet)
    try:
        quality = cut_source(
            data,
            target,
            Cut(num_parts=parts, method=method, seed=seed),
            SourceReading(undirected=undirected, split=split),
            Allowance(
                memory_bytes=None if memory is None else read_bytes(memory),
                overwrite=overwrite,
                say=say,
                progress=progress,
            ),
        )
    finally:
        progress.close()
    show(target, quality_rows(quality, width), as_json=json)
