"""Any source of a graph as a parts folder, in steps that survive a kill, within a memory budget.

Tables become a store first: inside the folder where the parts are made, and it goes when they are
done, or in the cache, for the next time as well.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from siafu.errors import PartitionError
from siafu.graph import (
    ALONE,
    Array,
    Crew,
    Graph,
    Help,
    Partial,
    at_hand,
    class_rows,
    count_classes,
    file_facts,
    folder_kind,
    load_store,
    make_in_steps,
)
from siafu.ingest import (
    TableOptions,
    as_tables,
    count_nodes,
    has_cached_store,
    ingest_helps,
    ingest_to_store,
    least_ingest_bytes,
    load_as_it_is,
    with_split,
)
from siafu.memory import Budget
from siafu.partitioning import (
    Cut,
    CutHelps,
    Progress,
    Quality,
    open_on_ranks,
    open_parts,
    partition_in_steps,
    with_edge_split,
)
from siafu.partitioning.memory import check_cut_fits, predict_peak_bytes
from siafu.partitioning.partition import load_checked_store
from siafu.partitioning.prepared import ColumnChoices, prepare_in_steps
from siafu.record import shortened

Say = Callable[[str], None]

_REVERSING_EDGE_BYTES = 64
"""Adding reverse edges to a store holds every edge in memory, several times over."""
_LEFT_BY_READING = 160 << 20
"""What a process holds more once it has read tables, code and heap: measured 112 to 138 MiB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceReading:
    """How a source is read before it is cut."""

    undirected: bool = False
    split: str | None = None
    options: TableOptions = field(default_factory=TableOptions)
    """Which columns of tables mean what."""
    draws_masks: bool = True
    """False keeps to the masks of the data."""
    splits_edges: bool = False
    """Whether edges are split, by shares of `split`, and not nodes."""
    through_cache: bool = False
    """True leaves the store of tables in the cache; one that is there is used in any case."""
    columns: ColumnChoices = field(default_factory=ColumnChoices)
    """How columns with names are prepared."""

    def facts(self) -> dict[str, Any]:
        """Return what makes the same graph again."""
        names = ("undirected", "split", "draws_masks", "splits_edges", "through_cache")
        facts = {name: getattr(self, name) for name in names}
        return facts | {"options": repr(self.options), "columns": self.columns.facts()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance:
    """What cutting may use, and whom it tells."""

    budget: Budget = field(default_factory=Budget)
    """What this process may hold."""
    overwrite: bool = False
    go_on: str | None = "run the same command again"
    """How the user goes on with what was stopped; None keeps nothing of it."""
    tells_memory: bool = True
    """Whether the predicted memory is said."""
    say: Say = lambda line: None
    progress: Progress | None = None
    check: Callable[[Graph], None] = lambda graph: None
    """Raises where there is no use in cutting the graph."""
    crew: Crew = ALONE
    """Who cuts stores and tables."""


def cut_source(
    source: Any,
    target: Path | str,
    cut: Cut,
    reading: SourceReading | None = None,
    allowance: Allowance | None = None,
) -> Quality:
    """Write any source as a parts folder and return the quality of the cut.

    Tables and stores are never held in memory, and the same call goes on after a kill or a full
    disk, with the same parts as if it had not been stopped.
    """
    reading, allowance = reading or SourceReading(), allowance or Allowance()
    source = at_hand(source)
    tables = as_tables(source)
    if tables is not None:
        return _cut_tables(tables, Path(target), cut, reading, allowance)
    is_store = isinstance(source, str | Path) and folder_kind(Path(source)) == "store"
    if is_store and not reading.undirected:
        return _cut_store(Path(source), Path(target), cut, reading, allowance)
    if is_store:
        _check_reversing(Path(source), allowance)
    if allowance.crew.size > 1:
        allowance.say("One rank does all: ranks share the work on tables and stores alone.")
    graph = _loaded(source, reading, allowance)
    with make_in_steps(target, "parts", overwrite=allowance.overwrite) as partial:
        return _cut_graph(partial, graph, cut, reading, allowance)


@contextmanager
def _in_steps(target: Path, job: dict[str, Any], allowance: Allowance) -> Iterator[Partial]:
    kept = None if allowance.go_on is None else job
    again = allowance.go_on or ""
    with make_in_steps(
        target,
        "parts",
        job=kept,
        overwrite=allowance.overwrite,
        go_on=again,
        crew=allowance.crew,
    ) as partial:
        if partial.ended:
            done = ", ".join(partial.ended)
            allowance.say(f"Going on from {partial.path}, done already: {done}.")
        yield partial


def _loaded(source: Any, reading: SourceReading, allowance: Allowance) -> Graph:
    graph, notes = load_as_it_is(
        source,
        undirected=reading.undirected,
        options=reading.options,
        progress=allowance.progress,
        budget=allowance.budget,
    )
    _say_all(allowance, notes)
    return graph


def _cut_store(
    store: Path, target: Path, cut: Cut, reading: SourceReading, allowance: Allowance
) -> Quality:
    job = {"store": file_facts(store), **asdict(cut), **reading.facts()}
    with _in_steps(target, job, allowance) as partial:
        graph = load_checked_store(partial, store)
        return _cut_graph(partial, graph, cut, reading, allowance, store)


def _cut_tables(
    source: Path, target: Path, cut: Cut, reading: SourceReading, allowance: Allowance
) -> Quality:
    _check_reading(source, cut, reading, allowance)
    options = reading.options
    roots = [source, *([reading.options.nodes] if reading.options.nodes else [])]
    job = {"files": file_facts(*roots), **asdict(cut), **reading.facts()}
    with _in_steps(target, job, allowance) as partial:
        is_made = has_cached_store(source, options, undirected=reading.undirected)
        is_made = is_made and allowance.crew.size == 1  # all ranks open the store of the target
        if reading.through_cache or (is_made and not partial.has("ingest")):
            partial.hold()
            graph = _loaded(source, reading, allowance)
            return _cut_graph(partial, graph, cut, reading, allowance)
        store, is_old = partial.path / "store", partial.has("ingest")
        if not is_old:
            partial.hold()
            notes = ingest_to_store(
                source,
                store,
                overwrite=store.exists(),
                undirected=reading.undirected,
                split=None if reading.splits_edges else reading.split,
                seed=cut.seed,
                options=options,
                draw_masks=reading.draws_masks,
                progress=allowance.progress,
                budget=allowance.budget,
                crew=allowance.crew,
            )
            _say_all(allowance, notes)
            partial.end("ingest")
        graph, is_drawn = load_store(store, verify=is_old), replace(reading, draws_masks=False)
        return _cut_graph(partial, graph, cut, is_drawn, allowance, store)


def _cut_graph(
    partial: Partial,
    graph: Graph,
    cut: Cut,
    reading: SourceReading,
    allowance: Allowance,
    store: Path | None = None,
) -> Quality:
    if reading.draws_masks:
        graph, notes = with_split(graph, reading.split, cut.seed)
        _say_all(allowance, notes)
    if reading.splits_edges:
        file = partial.scratch / "edge_split.npy"
        graph, notes = with_edge_split(graph, reading.split, cut.seed, file)
        _say_all(allowance, notes)
    graph = prepare_in_steps(partial, graph, reading.columns, allowance.say)
    allowance.check(graph)
    if store is not None:
        open_on_ranks(partial, store, graph)
    return partition_in_steps(
        partial,
        graph,
        cut,
        budget=allowance.budget,
        progress=allowance.progress,
        say=allowance.say if allowance.tells_memory else None,
    )


def cut_helps(source: Any, reading: SourceReading, budget: Budget, crew: Crew) -> dict[str, Help]:
    """Return what ranks beside the first do of `cut_source`."""
    tables = as_tables(source)
    helps = CutHelps(crew).helps()
    if tables is None:
        return helps
    return helps | ingest_helps(
        tables, undirected=reading.undirected, options=reading.options, budget=budget
    )


def _check_reading(source: Path, cut: Cut, reading: SourceReading, allowance: Allowance) -> None:
    """Raise where reading the tables and cutting them would not fit, one after the other.

    Tables that do not tell how many nodes they name are checked once that is known.
    """
    num_nodes = count_nodes(source, reading.options)
    if num_nodes is None:
        return
    facts = {"num_nodes": num_nodes, "num_edges": 0}
    cutting = predict_peak_bytes(facts, "streaming", cut.num_parts) + _LEFT_BY_READING
    reading_them = least_ingest_bytes(num_nodes, reading.options)
    what = "reading the tables and cutting them"
    check_cut_fits(max(reading_them, cutting), allowance.budget, what)


def _check_reversing(store: Path, allowance: Allowance) -> None:
    predicted = _REVERSING_EDGE_BYTES * load_store(store, verify=False).num_edges
    available = allowance.budget.free
    if predicted > available:
        raise PartitionError(
            "Adding reverse edges to a store would not fit in memory.",
            seen=f"about {predicted / 2**20:,.0f} MiB, {available / 2**20:,.0f} MiB are available",
            fix=allowance.budget.fix(
                predicted, "ingest the tables again with --undirected, which sorts edges on disk"
            ),
        )


def _say_all(allowance: Allowance, notes: list[str]) -> None:
    for note in notes:
        allowance.say(note)


def told_classes(
    labels: Iterable[Array], names: Sequence[str | int], what: str = "Classes"
) -> list[str]:
    """Return a line with the classes in order; none where they have no names of their own."""
    if all(name == number for number, name in enumerate(names)):
        return []
    rows = class_rows(count_classes(labels, len(names)), names)
    return [f"{what}: {shortened(rows)}."]


def told_classes_of_parts(path: Path, *, of_edges: bool = False) -> list[str]:
    """Return the line of the classes of a parts folder."""
    parts, prefix = open_parts(path), "edge_" if of_edges else ""
    found = (parts.part(k).load_if_present(f"{prefix}y") for k in range(parts.num_parts))
    names = parts.facts["graph"].get(f"{prefix}class_names", ())
    what = "Classes of edges" if of_edges else "Classes"
    return told_classes((labels for labels in found if labels is not None), names, what)
