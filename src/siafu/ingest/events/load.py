"""Any source of a dynamic graph, by name, path or object."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from siafu.errors import DataError
from siafu.graph import DynamicGraph, folder_kind, load_dynamic_store
from siafu.ingest.datasets.drifting import NAME, is_drifting, load_drifting
from siafu.ingest.datasets.named import canonical, data_files
from siafu.ingest.events.events import EventOptions, Events, NotedEvents
from siafu.ingest.events.graph import graph_from_events
from siafu.ingest.events.npz import events_from_npz
from siafu.ingest.events.pyg import events_from_pyg, is_pyg_dynamic
from siafu.ingest.events.tables import events_from_tables
from siafu.ingest.events.times import EACH, WindowLength, has_unit
from siafu.ingest.formats.npz import array_names
from siafu.ingest.tables.files import TABLE_ENDINGS
from siafu.record import Progress, silent, suggestion

_ROLES = ("src", "dst", "time", "weight", "label")


def load_dynamic(
    data: Any,
    *,
    window: WindowLength | None = None,
    stride: WindowLength | None = None,
    edge_life: int = 1,
    symmetric: bool = False,
    options: EventOptions | None = None,
    progress: Progress | None = None,
) -> tuple[DynamicGraph, list[str]]:
    """Return the dynamic graph that `data` names or holds, and sentences for the user.

    The built-in `drifting` (`drifting:20k`), an `.npz`, CSV or Parquet file or folder of events, a
    set of the folder SIAFU_DATA, a store of a dynamic graph, a PyG `TemporalData`, a list of PyG
    `Data`, a PyG Temporal signal, `Events` or a `DynamicGraph`. Stores and dynamic graphs have
    their windows already.

    `window` is a length of time (`14d`, `12h`, a number in the data's unit), a number of events
    (`500e`), or `each` for a snapshot of every different time; windows start every `stride`, by
    default one window long. An edge stays alive for `edge_life` snapshots and its weights add up.
    `symmetric` makes every snapshot (A + A^T) / 2.
    """
    report = progress or silent
    if isinstance(data, str | Path) and folder_kind(Path(data)) == "dynamic":
        data = load_dynamic_store(data)
    if isinstance(data, DynamicGraph):
        life = edge_life if edge_life != 1 else None
        direction = True if symmetric and not data.symmetric else None
        drop = "drop" if options and options.partial_window == "drop" else None
        asked = {"window": window, "stride": stride, "edge_life": life, "symmetric": direction}
        unit = options.time_unit if options and options.time_unit != "s" else None
        asked |= {"edge_attr": ",".join(options.attr) or None if options else None}
        _refuse(data, **asked, partial_window=drop, time_unit=unit, columns=_columns(options))
        return data, []
    options = options or EventOptions()
    report("reading events", 0, None)
    events, notes = _events(data, options, report)
    if options.unlabelled and events.label is None:
        events = replace(events, label=np.full(events.num_events, -1))
    check_options(events, window, options, roles=_roles(data))
    report("cutting windows", 0, events.num_events)
    graph, more = graph_from_events(
        events,
        window=window,
        stride=stride,
        edge_life=edge_life,
        symmetric=symmetric,
        options=options,
    )
    report("cutting windows", events.num_events, events.num_events)
    return graph, notes + more


def is_dynamic(data: Any) -> bool:
    """Return whether the source is a dynamic graph by its kind, without reading its events."""
    if isinstance(data, Events | DynamicGraph):
        return True
    if not isinstance(data, str | Path):
        return is_pyg_dynamic(data)
    path = Path(data)
    if path.suffix != ".npz" and canonical(path.name) in data_files():
        path = data_files()[canonical(path.name)]
    if path.suffix == ".npz" and path.is_file():
        return {"src", "dst", "t"} <= array_names(path)
    return is_drifting(str(data)) or folder_kind(path) == "dynamic"


def _columns(options: EventOptions | None) -> str | None:
    told = [f"{role}={name}" for role in _ROLES if (name := getattr(options, role, None))]
    return ",".join(told) or None


def _roles(data: Any) -> tuple[str, ...]:
    """Return what the columns of the data may be named for."""
    if not isinstance(data, str | Path) or is_drifting(str(data)):
        return ()
    is_npz = Path(data).suffix == ".npz" or canonical(Path(data).name) in data_files()
    return ("time", "weight", "label") if is_npz else _ROLES


def _refuse(graph: DynamicGraph, **asked: WindowLength | None) -> None:
    """Raise where a setting would be passed over in silence."""
    given = [f"{name}={value}" for name, value in asked.items() if value is not None]
    if given:
        raise DataError(
            "A dynamic graph that is stored has its windows already.",
            seen=f"{graph.num_snapshots} snapshots, asked for {', '.join(given)}",
            fix="leave that out, or load the events themselves",
        )


def _events(data: Any, options: EventOptions, progress: Progress) -> NotedEvents:
    if isinstance(data, Events):
        return data, []
    if isinstance(data, str) and is_drifting(data):
        return load_drifting(data), []
    if isinstance(data, str | Path):
        return _events_of_path(Path(data), options, progress)
    if is_pyg_dynamic(data):
        return events_from_pyg(data, options)
    raise DataError(
        "This kind of object is not a dynamic graph we know.",
        seen=type(data).__name__,
        fix="give a name, a path, a PyG TemporalData, a list of PyG Data, or siafu Events",
    )


def _events_of_path(path: Path, options: EventOptions, progress: Progress) -> NotedEvents:
    if path.suffix == ".npz":
        return events_from_npz(path, options), []
    if path.name.lower().endswith(TABLE_ENDINGS) or (path.is_dir() and folder_kind(path) is None):
        return events_from_tables(path, options, progress)
    named = data_files()
    if path.name == str(path) and canonical(path.name) in named:
        return events_from_npz(named[canonical(path.name)], options), []
    if path.exists():
        raise DataError(
            "This kind of file is not read as events.",
            seen=str(path),
            fix=f"give an .npz file, tables ({', '.join(TABLE_ENDINGS)}) or a store of a dynamic "
            "graph",
        )
    names = [NAME, *sorted(named)]
    raise DataError(
        "No such data set, file or folder.",
        seen=str(path),
        fix=f"{suggestion(str(path), names)}names: {', '.join(names)}; "
        "or a path to an .npz, CSV or Parquet file of events, or a store of a dynamic graph",
    )


def check_options(
    events: Events, window: WindowLength | None, options: EventOptions, *, roles: tuple[str, ...]
) -> None:
    """Raise where an option would be passed over in silence; `roles` are those that were read."""
    if options.attr and events.attr_names != options.attr:
        raise DataError(
            "Features of events are named in tables alone.",
            seen=f"edge_attr={','.join(options.attr)} of {events.name}",
            fix="leave --edge-attr out: events of other kinds of data bring their features along",
        )
    named = [role for role in _ROLES if getattr(options, role) is not None and role not in roles]
    if named:
        raise DataError(
            "The columns of this kind of data have names of their own.",
            seen=f"{named[0]}={getattr(options, named[0])} of {events.name}",
            fix=f"leave {named[0]} out of --columns",
        )
    if options.time_unit != "s" and (events.dates or window is None or not has_unit(window)):
        raise DataError(
            "The unit of times is for windows as 14d of times that are numbers.",
            seen=f"time_unit={options.time_unit} with "
            + ("dates" if events.dates else f"a window of {window}"),
            fix="leave --time-unit out, or give a --window such as 14d",
        )
    if options.partial_window == "drop" and (events.num_steps is not None or window == EACH):
        raise DataError(
            "No window is ever begun and not filled here.",
            seen=f"partial_window=drop of {events.name}",
            fix="leave --partial-window out, or give a --window such as 14d",
        )
