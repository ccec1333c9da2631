"""`siafu inspect`: what a store, a parts folder, a run or a folder of runs holds."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from siafu.checkpoint import checkpoints_in
from siafu.cli.runs import show_runs
from siafu.cli.schema import print_schema, schema_rows
from siafu.cli.scores import run_rows, score_rows, target_rows
from siafu.cli.show import print_json, print_table, size
from siafu.config import make_config, read_run_config
from siafu.errors import StoreError
from siafu.graph import (
    Array,
    DynamicGraph,
    Graph,
    IntegerIds,
    SparseFeatures,
    TextIds,
    at_hand,
    class_rows,
    count_classes,
    count_edge_types,
    folder_kind,
    graph_from_folder,
    load_dynamic_store,
    load_store,
    open_folder,
)
from siafu.launch.learnt import schema_of_parts
from siafu.launch.run_list import asked_settings, list_runs, runs_in, summary_of
from siafu.partitioning import Parts, Quality, open_parts
from siafu.record import RunFolder, percent, shortened

_SHOWN_TYPES = 8
_HELD = (np.ndarray, IntegerIds, TextIds, SparseFeatures)
_MOST_NAMES = 20


def inspect(
    place: Annotated[
        str, typer.Argument(metavar="PATH", help="store, parts (or their URL), run, folder of runs")
    ],
    verify: Annotated[bool, typer.Option("--verify", help="read all and check the sums")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="the columns of tables, as YAML that can be edited")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="one JSON object as the last line")] = False,
) -> None:
    """Show what a store, parts folder or run folder holds; of a folder of runs, their scores."""
    path = Path(at_hand(place))
    if verify:
        _verify(path)
    if schema:
        print_schema(path, as_json=json)
        return
    run = RunFolder(path)
    if run.config.exists():
        print_json(_run_json(run)) if json else show(path, _run_rows(run), as_json=False)
    elif runs_in(path):
        show_runs(path, list_runs(path), as_json=json)
    else:
        show(path, describe(path), as_json=json)


def show(path: Path | str, rows: dict[str, Any], *, as_json: bool) -> None:
    """Print what a folder holds, for people or for programs."""
    if as_json:
        print_json({"path": str(path), **rows})
    else:
        print_table(str(path), {name: _told(value) for name, value in rows.items()})


def _told(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(f"{name} {count:,}" for name, count in value.items()) or "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value


def describe(path: Path) -> dict[str, Any]:
    """Return what a folder holds, in rows."""
    kind = folder_kind(path)
    if kind == "store":
        folder = open_folder(path, "store")
        return {"kind": "store", **_graph_rows(graph_from_folder(folder), folder.facts)}
    if kind == "dynamic":
        return {"kind": "dynamic graph", **_dynamic_rows(load_dynamic_store(path))}
    if kind == "parts":
        parts = open_parts(path)
        rows = {"kind": "parts", "parts": parts.num_parts, "method": parts.facts["method"]}
        return {**rows, **_parts_graph_rows(parts), **quality_rows(parts.quality, 64)}
    raise StoreError(
        "Nothing of siafu's is there.",
        seen=str(path),
        fix="name a store, a parts folder, a run folder, or a folder of runs",
    )


def _run_rows(run: RunFolder) -> dict[str, Any]:
    """Return a run's scores first, then what it was trained on and how, its time and its files."""
    finished, summary = run.result.exists(), summary_of(run)
    if summary.state.startswith("damaged"):
        make_config(**read_run_config(run.config))  # raises what is wrong with the settings
    told: dict[str, Any] = {"kind": "run", "state": summary.state}
    told |= score_rows(summary.scores)
    with _understood(run.result if finished else run.metrics):
        found = run.read_result() if finished else {}
        result = run_rows(found, run.path) if finished else {}
        told |= target_rows(found)
    best = f"{summary.best_epoch} of {summary.epochs}" if finished else None
    told |= {"best epoch": best} if best else {"epochs": summary.epochs}
    told |= {"ended": result["ended"]} if "ended" in result else {}
    told |= {"data": summary.data, "model": summary.model}
    asked = asked_settings(run)[1]
    told["settings"] = "  ".join(f"{name}={value}" for name, value in asked.items())
    told["settings"] = told["settings"] or "the defaults"
    shown = {*told, summary.metric, "run", *next(iter(summary.scores.values()), {})}
    told |= {name: value for name, value in result.items() if name not in shown}
    for number, warning in enumerate(run.read_warnings()):
        told["warnings" if number == 0 else f"warnings {number + 1}"] = warning
    return {**told, **_file_rows(run)}


def _file_rows(run: RunFolder) -> dict[str, str]:
    places = {
        "predictions": run.predictions,
        "weights": run.weights,
        "metrics": run.metrics,
        "all settings": run.config,
    }
    return {name: str(place) for name, place in places.items() if place.exists()}


def _run_json(run: RunFolder) -> dict[str, Any]:
    """Return what a program is told of a run: numbers as numbers."""
    told = {"kind": "run", **summary_of(run).to_json(), "settings": asked_settings(run)[1]}
    files = {**_file_rows(run), "warnings": run.read_warnings()}
    with _understood(run.result):
        rest = run.read_result() if run.result.exists() else {"phases": run.read_phases()}
    return {**rest, **told, **files}


@contextmanager
def _understood(file: Path) -> Iterator[None]:
    """Turn what a file of a run lacks, or has of another kind, into an error that names it."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise StoreError(
            f"{file.name} of the run can't be read.",
            seen=f"{file}: {type(error).__name__} {error}",
            fix="copy the run folder again, or train again with this version",
        ) from error


def _parts_graph_rows(parts: Parts) -> dict[str, Any]:
    rows = dict(parts.facts["graph"])
    prepared = schema_rows(schema_of_parts(parts.path) if rows.pop("schema", None) else None)
    total, names = rows.pop("num_edge_types", 0), rows.pop("edge_type_names", ())
    folders = [parts.part(number) for number in range(parts.num_parts)]
    types = [folder.load("edge_type") for folder in folders] if total else []
    told = _edge_type_rows(types, total, names)
    classes = rows.pop("class_names", ())
    columns = rows.pop("feature_names", ())
    labels = [y for folder in folders if (y := folder.load_if_present("y")) is not None]
    degrees = _degree_row((folder.load("indptr") for folder in folders), rows["num_edges"])
    counts = count_classes(labels, rows["num_classes"]) if rows["num_classes"] else []
    return {
        **rows,
        **told,
        **degrees,
        **_class_rows(counts, classes),
        **_feature_rows(columns),
        **prepared,
    }


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


def _degree_row(indptrs: Iterable[Array], num_edges: int) -> dict[str, str]:
    nodes, most = 0, 0
    for indptr in indptrs:
        nodes += len(indptr) - 1
        for start in range(0, len(indptr) - 1, 1 << 22):
            most = max(most, int(np.diff(indptr[start : start + (1 << 22) + 1]).max(initial=0)))
    return {"in-edges per node": f"{num_edges / max(1, nodes):.1f} on average, {most:,} at most"}


def _class_rows(counts: list[int], names: Sequence[str | int]) -> dict[str, Any]:
    told = class_rows(counts, names)
    return {"classes in order": shortened(told, _MOST_NAMES)} if told else {}


def _feature_rows(names: Sequence[str]) -> dict[str, str]:
    return {"feature columns": shortened(list(names), _MOST_NAMES)} if names else {}


def _graph_rows(graph: Graph, facts: dict[str, Any]) -> dict[str, Any]:
    masks = {
        name: int(getattr(graph, name).sum())
        for name in ("train", "val", "test")
        if getattr(graph, name) is not None
    }
    holds = [f.name for f in fields(graph) if isinstance(getattr(graph, f.name), _HELD)]
    types = [] if graph.edge_type is None else [graph.edge_type]
    labels = [] if graph.y is None or graph.num_targets else [graph.y]
    return {
        "name": graph.name,
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        **_degree_row([graph.indptr], graph.num_edges),
        **_edge_type_rows(types, graph.num_edge_types, graph.edge_type_names),
        "features": graph.num_features,
        **_feature_rows(() if graph.schema else facts.get("feature_names", ())),
        "classes": graph.num_classes,
        **_class_rows(count_classes(labels, graph.num_classes), graph.class_names),
        **_target_rows(graph),
        **schema_rows(graph.schema),
        "masks": masks or "none",
        "holds": ", ".join(holds),
    }


def _target_rows(graph: Graph) -> dict[str, Any]:
    """Return the numbers that are to be told of nodes, and what is to be told of edges."""
    rows: dict[str, Any] = {}
    if graph.num_targets:
        rows["targets"] = ", ".join(graph.target_names) or graph.num_targets
    if graph.num_edge_targets:
        rows["edge targets"] = ", ".join(graph.edge_target_names) or graph.num_edge_targets
    if graph.edge_y is not None and graph.num_edge_classes:
        counts = count_classes([graph.edge_y], graph.num_edge_classes)
        told = class_rows(counts, graph.edge_class_names)
        rows["edge classes in order"] = shortened(told, _MOST_NAMES)
    return rows


def _dynamic_rows(graph: DynamicGraph) -> dict[str, Any]:
    rows: dict[str, Any] = {
        "name": graph.name,
        "nodes": graph.num_nodes,
        "snapshots": graph.num_snapshots,
        "events": graph.num_events,
    }
    if graph.event_label is not None:
        counts = count_classes([graph.event_label], graph.num_edge_classes)
        told = class_rows(counts, graph.edge_class_names)
        rows["edge classes in order"] = shortened(told, _MOST_NAMES)
    if graph.y is not None:
        counts = count_classes([np.asarray(graph.y).reshape(-1)], graph.num_classes)
        rows |= _class_rows(counts, graph.class_names)
    return rows


def quality_rows(quality: Quality, width: int) -> dict[str, Any]:
    """Return how good a cut is, by name."""
    sent = quality.layer_bytes(width)
    return {
        "cut edges": f"{quality.cut_edges:,} ({percent(quality.cut_fraction)})",
        "halo rows": ", ".join(f"{rows:,}" for rows in quality.halo_rows),
        "balance": f"nodes {quality.node_balance:.3f}, edges {quality.edge_balance:.3f}, "
        f"training {quality.training_balance:.3f} (largest / mean)",
        "traffic a layer": f"{size(sent)} at width {width}, forward and backward",
    }


def _verify(path: Path) -> None:
    kind = folder_kind(path)
    if kind == "parts":
        open_parts(path).verify()
    elif kind == "store":
        load_store(path)
    elif kind == "dynamic":
        load_dynamic_store(path)
    elif kind is not None:
        open_folder(path, kind).verify()
    else:
        run = RunFolder(path)
        for folder in [run.parts, *checkpoints_in(run.checkpoints)]:
            if folder_kind(folder) is not None:
                _verify(folder)
