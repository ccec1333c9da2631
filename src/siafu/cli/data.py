"""`siafu ingest`, `siafu partition` and `siafu inspect`: graphs on disk."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

from siafu.cli.show import percent, print_json, print_table, say, size
from siafu.errors import StoreError
from siafu.graph import Array, Graph, count_edge_types, folder_kind, graph_from_folder, open_folder
from siafu.ingest import TableOptions, ingest_to_store
from siafu.launch.cut import Allowance, Reading, cut_source
from siafu.partition import Cut, Parts, Quality, open_parts
from siafu.plan import read_bytes
from siafu.record import PhaseProgress, RunFolder

_Json = Annotated[bool, typer.Option("--json", help="one JSON object as the last line")]
_Quiet = Annotated[bool, typer.Option("--quiet", help="no progress")]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="replace an existing folder")]
_SHOWN_TYPES = 8
_NOT_HELD = (
    *("name", "num_classes", "num_edge_types", "edge_type_names"),
    *("feature_names", "edge_attr_names"),
)


def ingest(  # noqa: PLR0913 - one flag an option
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
    _show(target, describe(target), as_json=json)


def _columns(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(","))


def partition(  # noqa: PLR0913 - one flag an option
    data: Annotated[str, typer.Argument(help="store, or anything `siafu train` takes")],
    target: Annotated[Path, typer.Argument(help="parts folder to write")],
    parts: Annotated[int, typer.Option(help="how many parts, one a rank", min=1)] = 2,
    method: Annotated[
        Literal["auto", "metis", "streaming", "contiguous", "hash"], typer.Option(help="how to cut")
    ] = "auto",
    width: Annotated[int, typer.Option(help="row width for the predicted traffic", min=1)] = 64,
    memory: Annotated[str | None, typer.Option(help="memory allowed, e.g. 4GB")] = None,
    undirected: Annotated[bool, typer.Option("--undirected", help="add reverse edges")] = False,
    split: Annotated[str | None, typer.Option(help="draw masks: 0.6,0.2 or 20,30")] = None,
    seed: Annotated[int, typer.Option(help="seed of the cut and of drawn masks")] = 0,
    overwrite: _Overwrite = False,
    quiet: _Quiet = False,
    json: _Json = False,
) -> None:
    """Cut a graph into parts, one a rank, and say how good the cut is.

    Tables and stores may be larger than memory. Killed or out of disk, the same command goes on.
    """
    progress = PhaseProgress(quiet=quiet)
    try:
        quality = cut_source(
            data,
            target,
            Cut(num_parts=parts, method=method, seed=seed),
            Reading(undirected=undirected, split=split),
            Allowance(
                memory_bytes=None if memory is None else read_bytes(memory),
                overwrite=overwrite,
                say=say,
                progress=progress,
            ),
        )
    finally:
        progress.close()
    _show(target, _quality_rows(quality, width), as_json=json)


def _quality_rows(quality: Quality, width: int) -> dict[str, Any]:
    sent = quality.layer_bytes(width)
    return {
        "cut edges": f"{quality.cut_edges:,} ({percent(quality.cut_fraction)})",
        "halo rows": ", ".join(f"{rows:,}" for rows in quality.halo_rows),
        "balance": f"vertices {quality.vertex_balance:.3f}, edges {quality.edge_balance:.3f}, "
        f"training {quality.training_balance:.3f} (largest / mean)",
        "traffic a layer": f"{size(sent)} at width {width}, forward and backward",
    }


def inspect(
    path: Annotated[Path, typer.Argument(help="store, parts folder or run folder")],
    verify: Annotated[bool, typer.Option("--verify", help="read all and check the sums")] = False,
    json: _Json = False,
) -> None:
    """Show what a store, a parts folder or a run folder holds."""
    if verify:
        _verify(path)
    _show(path, describe(path), as_json=json)


def describe(path: Path) -> dict[str, Any]:
    """Return what a folder holds, in rows."""
    kind = folder_kind(path)
    if kind == "store":
        folder = open_folder(path, "store")
        return {"kind": "store", **_graph_rows(graph_from_folder(folder))}
    if kind == "parts":
        parts = open_parts(path)
        rows = {"kind": "parts", "parts": parts.num_parts, "method": parts.facts["method"]}
        return {**rows, **_parts_graph_rows(parts), **_quality_rows(parts.quality, 64)}
    run = RunFolder(path)
    if run.config.exists():
        rows = {"kind": "run", "config": run.config.read_text().replace("\n", "  ").strip()}
        return {**rows, "epochs": len(run.read_metrics()), "finished": run.result.exists()}
    raise StoreError(
        "Nothing of siafu's is there.", seen=str(path), fix="name a store, parts or run folder"
    )


def _parts_graph_rows(parts: Parts) -> dict[str, Any]:
    rows = dict(parts.facts["graph"])
    total, names = rows.pop("num_edge_types", 0), rows.pop("edge_type_names", ())
    for columns in ("feature_names", "edge_attr_names"):
        rows.pop(columns, None)
    folders = [parts.part(number) for number in range(parts.num_parts)] if total else []
    types = [folder.load("edge_type") for folder in folders]
    return {**rows, **_edge_type_rows(types, total, names)}


def _edge_type_rows(types: list[Array], total: int, names: Sequence[str | int]) -> dict[str, Any]:
    """Return how many edge types there are, and the edges of the first few by name."""
    rows: dict[str, Any] = {"edge types": total}
    if types:
        counts = np.sum([count_edge_types(array, total) for array in types], axis=0).tolist()
        shown = zip(list(names or range(total))[:_SHOWN_TYPES], counts, strict=False)
        rows["edges a type"] = {str(name): count for name, count in shown}
        if total > _SHOWN_TYPES:
            rest = f"and {total - _SHOWN_TYPES} more types"
            rows["edges a type"][rest] = sum(counts[_SHOWN_TYPES:])
    return rows


def _graph_rows(graph: Graph) -> dict[str, Any]:
    masks = {
        name: int(getattr(graph, name).sum())
        for name in ("train", "val", "test")
        if getattr(graph, name) is not None
    }
    have = [f.name for f in fields(graph) if getattr(graph, f.name) is not None]
    types = [] if graph.edge_type is None else [graph.edge_type]
    return {
        "name": graph.name,
        "vertices": graph.num_nodes,
        "edges": graph.num_edges,
        **_edge_type_rows(types, graph.num_edge_types, graph.edge_type_names),
        "features": graph.num_features,
        "classes": graph.num_classes,
        "masks": masks or "none",
        "holds": ", ".join(name for name in have if name not in _NOT_HELD),
    }


def _verify(path: Path) -> None:
    kind = folder_kind(path)
    if kind == "parts":
        parts = open_parts(path)
        open_folder(path, "parts").verify()
        for number in range(parts.num_parts):
            parts.part(number).verify()
    elif kind is not None:
        open_folder(path, kind).verify()
    else:
        run = RunFolder(path)
        for folder in [run.parts, *sorted(run.checkpoints.glob("epoch-*"))]:
            if folder_kind(folder) is not None:
                _verify(folder)


def _show(path: Path, rows: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json({"path": str(path), **rows})
    else:
        print_table(str(path), rows)
