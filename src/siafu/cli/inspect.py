"""`siafu inspect`: what a store, a parts folder, a run or a folder of runs holds."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from siafu.checkpoint import checkpoints_in
from siafu.cli.schema import print_schema, schema_rows
from siafu.cli.scores import run_rows, score_of
from siafu.cli.show import out, print_json, print_table, size
from siafu.config import make_config, read_run_config
from siafu.errors import StoreError
from siafu.graph import (
    Array,
    DynamicGraph,
    Graph,
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
from siafu.partitioning import Parts, Quality, open_parts
from siafu.record import RunFolder, percent, shortened, shown_score

_SHOWN_TYPES = 8
_NOT_HELD = ("name", "num_classes", "num_edge_types", "edge_type_names", "class_names")
_MOST_NAMES = 20


def inspect(
    path: Annotated[Path, typer.Argument(help="store, parts, run, or a folder of runs")],
    verify: Annotated[bool, typer.Option("--verify", help="read all and check the sums")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="the columns of tables, as YAML that can be edited")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="one JSON object as the last line")] = False,
) -> None:
    """Show what a store, parts folder or run folder holds; of a folder of runs, their scores."""
    if verify:
        _verify(path)
    if schema:
        print_schema(path, as_json=json)
        return
    runs = _runs_in(path)
    if runs and json:
        print_json({"path": str(path), "kind": "runs", "runs": [_run_facts(run) for run in runs]})
    elif runs:
        _print_runs(path, runs)
    else:
        show(path, describe(path), as_json=json)


def show(path: Path, rows: dict[str, Any], *, as_json: bool) -> None:
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
    run = RunFolder(path)
    if run.config.exists():
        return _run_rows(run)
    raise StoreError(
        "Nothing of siafu's is there.",
        seen=str(path),
        fix="name a store, a parts folder, a run folder, or a folder of runs",
    )


def _run_rows(run: RunFolder) -> dict[str, Any]:
    """Return a run's scores, then the settings that are not the defaults."""
    config = make_config(**read_run_config(run.config))
    finished = run.result.exists()
    told = {"kind": "run", "data": config.data, "model": config.model, "finished": finished}
    told["epochs"] = len(run.read_metrics())
    with _understood(run.result if finished else run.metrics):
        if finished:
            told |= run_rows(run.read_result(), run.path)
        elif last := _last_scores(run):
            told["scores so far"] = last
    plain = make_config(data=config.data, model=config.model).resolved()
    hidden = ("data", "model")
    told["settings"] = "  ".join(
        f"{name}={value}"
        for name, value in config.model_dump(exclude_none=True).items()
        if value != getattr(plain, name) and name not in hidden
    )
    told["settings"] = told["settings"] or "the defaults"
    told["all settings"] = str(run.config)
    for name, place in (("predictions", run.predictions), ("weights", run.weights)):
        if place.exists():
            told[name] = str(place)
    return told


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


def _last_scores(run: RunFolder) -> str:
    rows = run.read_metrics()
    scored = [row for row in rows if "accuracy" in row or "scores" in row]
    if not scored:
        return ""
    return f"{score_of(scored[-1])} (epoch {scored[-1]['epoch']})"


def _runs_in(path: Path) -> list[RunFolder]:
    """Return the runs in a folder that is none itself and holds nothing else of siafu's."""
    if not path.is_dir() or folder_kind(path) is not None or RunFolder(path).config.exists():
        return []
    return [run for child in sorted(path.iterdir()) if (run := RunFolder(child)).config.exists()]


def _run_facts(run: RunFolder) -> dict[str, Any]:
    config = read_run_config(run.config)
    facts = {name: config.get(name) for name in ("data", "model", "strategy", "ranks")}
    facts = {"run": run.path.name, **facts, "finished": run.result.exists()}
    if not run.result.exists():
        return {**facts, "epochs": len(run.read_metrics()), "metric": None, "scores": {}}
    try:
        with _understood(run.result):
            result = run.read_result()
            names = {"epochs": "epochs", "best epoch": "best_epoch", "metric": "metric"}
            found = {name: result[key] for name, key in names.items()}
            return {**facts, **found, "scores": dict(result["accuracy"])}
    except StoreError:  # one damaged run is no reason to hide the others
        return {**facts, "epochs": "?", "metric": "damaged", "scores": {}}


def _print_runs(path: Path, runs: list[RunFolder]) -> None:
    table = Table(title=str(path), title_justify="left", box=None, pad_edge=False)
    for name in ("run", "data", "model", "ranks", "epochs", "best", "metric", "val", "test"):
        table.add_column(name, overflow="fold")
    for facts in map(_run_facts, runs):
        metric, found = facts["metric"] or "not finished", facts["scores"]
        splits = [shown_score(metric, found[s]) if s in found else "" for s in ("val", "test")]
        names = [facts["run"], Path(str(facts["data"])).name, str(facts["model"])]
        ran = [facts["ranks"], facts["epochs"], facts.get("best epoch", "")]
        table.add_row(*names, *map(str, ran), metric, *splits)
    out.print(table)


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
    counts = count_classes(labels, rows["num_classes"])
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
    have = [f.name for f in fields(graph) if getattr(graph, f.name) is not None]
    types = [] if graph.edge_type is None else [graph.edge_type]
    labels = [] if graph.y is None or not graph.num_classes else [graph.y]
    hidden = (*_NOT_HELD, "feature_names", "edge_attr_names", "schema")
    return {
        "name": graph.name,
        "vertices": graph.num_nodes,
        "edges": graph.num_edges,
        **_degree_row([graph.indptr], graph.num_edges),
        **_edge_type_rows(types, graph.num_edge_types, graph.edge_type_names),
        "features": graph.num_features,
        **_feature_rows(facts.get("feature_names", ())),
        "classes": graph.num_classes,
        **_class_rows(count_classes(labels, graph.num_classes), graph.class_names),
        **schema_rows(graph.schema),
        "masks": masks or "none",
        "holds": ", ".join(name for name in have if name not in hidden),
    }


def _dynamic_rows(graph: DynamicGraph) -> dict[str, Any]:
    rows: dict[str, Any] = {
        "name": graph.name,
        "vertices": graph.num_nodes,
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
        "balance": f"nodes {quality.vertex_balance:.3f}, edges {quality.edge_balance:.3f}, "
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
