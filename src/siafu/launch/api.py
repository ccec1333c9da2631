"""What Python offers beside `fit` and `infer`: cutting, resuming, reading what runs left."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from siafu.config import make_columns
from siafu.errors import StoreError
from siafu.graph import DynamicGraph, Graph, at_hand, made_for
from siafu.ingest import EventOptions, WindowLength, given_data, load_with_notes
from siafu.ingest import load_dynamic as load_dynamic_with_notes
from siafu.launch.callbacks import OnEpoch
from siafu.launch.columns import table_options
from siafu.launch.cut import Allowance, SourceReading, cut_source
from siafu.launch.fit import resume_run
from siafu.launch.infer import path_of
from siafu.launch.learnt import column_choices
from siafu.launch.notebook import sayer
from siafu.launch.python_words import speaking_python
from siafu.launch.run import Run
from siafu.launch.run_state import existing_run, resume_command
from siafu.launch.settings import Columns, Settings
from siafu.launch.signature import with_settings
from siafu.memory import Budget
from siafu.options import joined, read_bytes
from siafu.partitioning import Cut, Parts, open_parts
from siafu.partitioning.options import Method
from siafu.record import READING, PhaseProgress


@with_settings(Columns)
def load(  # noqa: PLR0913 - one argument per flag
    data: Any = None,
    *,
    nodes: Any = None,
    edges: Any = None,
    x: Any = None,
    y: Any = None,
    undirected: bool = False,
    split: str | Sequence[float] | None = None,
    seed: int = 0,
    store: Path | str | None = None,
    quiet: bool = True,
    **columns: Unpack[Columns],
) -> Graph:
    """Return the graph that `data` names or holds, with masks where it has labels.

    A built-in graph (`planted`, `powerlaw:100k`), a public data set (`cora`), an `.npz` file, a
    store, a Parquet or CSV file or folder, a PyG `Data` or `HeteroData`, a networkx graph, a
    `Graph`; or tables as `siafu.fit` takes them. Names come before paths: write `./cora` for a
    folder of that name. `seed` draws masks where the data has none; built-in graphs stay the same
    at any seed. Tables become a store first, at `store` or in the cache, and are memory-mapped from
    there, columns as they came; what these are is named as in `siafu ingest`: `label="kind"`.
    `quiet=False` tells on stderr what was done to the data, and how far reading is.

    >>> graph = siafu.load(nodes=customers, edges=payments, label="is_fraud")
    """
    given = given_data(data, nodes=nodes, edges=edges, x=x, y=y)
    told = make_columns(**columns, **given.columns)
    options = table_options(given.source, told)
    progress, say = PhaseProgress(quiet=quiet, spans={READING: (0.0, 1.0)}), sayer(quiet=quiet)
    try:
        graph, notes = load_with_notes(
            given.source,
            undirected=undirected,
            split=joined(split),
            seed=seed,
            options=options,
            store=store,
            progress=progress,
        )
    finally:
        progress.close()
    for note in notes:
        say(note)
    return graph


def load_dynamic(
    data: Any,
    *,
    window: WindowLength | None = None,
    stride: WindowLength | None = None,
    edge_life: int = 1,
    symmetric: bool = False,
    options: EventOptions | None = None,
) -> DynamicGraph:
    """Return the dynamic graph that `data` names or holds.

    A built-in name (`drifting`), a file or folder of events, a store, PyG's `TemporalData`, a list
    of PyG `Data`, or `Events`. `window` is the length of a snapshot: `"14d"`, `"12h"`, `"500e"`
    events, or `"each"` for one per different time; windows start every `stride`, one window long
    unless told. An edge stays for `edge_life` snapshots; `symmetric` makes each (A + A^T) / 2.
    Columns of other names, and units of time: `options=siafu.ingest.EventOptions(src="from")`.

    >>> graph = siafu.load_dynamic("events.csv", window="14d")
    >>> run = siafu.fit(graph, model="tm-gcn", task="link")
    """
    return load_dynamic_with_notes(
        given_data(data).source,
        window=window,
        stride=stride,
        edge_life=edge_life,
        symmetric=symmetric,
        options=options,
    )[0]


@with_settings(Columns)
def partition(  # noqa: PLR0913 - one argument per flag
    data: Any,
    target: Path | str,
    *,
    nodes: Any = None,
    parts: int = 2,
    method: Method = "auto",
    undirected: bool = False,
    split: str | Sequence[float] | None = None,
    seed: int = 0,
    memory: str | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    **columns: Unpack[Columns],
) -> Parts:
    """Cut a graph into parts, one per rank, and return them.

    Takes what `siafu.load` takes; tables and stores may be larger than memory, which `memory`
    (`"4GB"`) bounds. Killed or out of disk, the same call goes on where it was. `columns` of tables
    are named as in `siafu partition`: `label="kind", node_id="user"`. What that tells goes to
    stderr; `quiet=True` leaves all but warnings out.

    >>> siafu.partition("graph.store", "graph.parts", parts=4)
    >>> run = siafu.fit("graph.parts", model="sage", ranks=4)
    """
    progress = PhaseProgress(quiet=quiet)
    allowance = Allowance(
        budget=Budget(most=None if memory is None else read_bytes(memory)),
        overwrite=overwrite,
        say=sayer(quiet=quiet),
        progress=progress,
    )
    cut = Cut(num_parts=parts, method=method, seed=seed)
    given = given_data(data, nodes=nodes)
    told = make_columns(**columns, **given.columns)
    reading = SourceReading(
        undirected=undirected,
        split=joined(split),
        options=table_options(given.source, told),
        columns=column_choices(told),
    )
    try:
        with made_for(target, overwrite=overwrite) as folder:
            cut_source(given.source, folder, cut, reading, allowance)
    finally:
        progress.close()
    return open_parts(at_hand(target))


def resume(
    run: Run | Path | str,
    *,
    on_epoch: OnEpoch | None = None,
    quiet: bool = False,
    **changes: Unpack[Settings],
) -> Run:
    """Go on with a run from its newest whole checkpoint and return it.

    Only `epochs`, `patience`, `max_dollars`, `max_calls`, `deadline`, `threads`, `ranks`,
    `partition` and the launcher may change; before the first checkpoint the memory too. For other
    ranks its data is read and cut anew. It is told of, and calls `on_epoch`, as `siafu.fit` does;
    `quiet=True`: warnings alone.

    >>> run = siafu.resume("runs/planted-gcn-001", epochs=400)
    """
    path, say = path_of(run), sayer(quiet=quiet)
    with speaking_python():
        return resume_run(path, dict(changes), say=say, quiet=quiet, on_epoch=on_epoch)


def open_run(path: Path | str) -> Run:
    """Return a finished run: its result, metrics and predictions.

    >>> run = siafu.open_run("runs/planted-gcn-001")
    >>> run.score["test"], len(run.metrics)
    """
    folder = existing_run(Path(path))
    if not folder.is_finished:
        raise StoreError(
            "The run is not finished.",
            seen=str(path),
            fix=f"go on with `{resume_command(folder.path)}`, or siafu.resume({str(path)!r})",
        )
    return Run(folder.path, folder.read_result())
