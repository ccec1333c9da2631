"""What the user named as a parts folder with one part per rank, while other ranks wait."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from siafu.comm import World
from siafu.config import RunConfig
from siafu.engine import Counts, check_before_cut, make_spec, minibatch_remedy
from siafu.errors import BudgetError, CommError, ConfigError, PlanError
from siafu.graph import Graph, Schema, SparseFeatures, folder_kind
from siafu.ingest import (
    as_tables,
    load_as_it_is,
    told_of_tables,
    told_where_edges_are_read,
    told_where_own_model_may,
    told_where_they_can_not_be,
)
from siafu.launch.columns import options_of_inference
from siafu.launch.cut import Allowance, Say, SourceReading, cut_source
from siafu.launch.dynamic import is_dynamic_run, prepare_dynamic, tells_times
from siafu.launch.learnt import (
    check_parts_as_learnt,
    column_choices,
    reads_edges,
    schema_of_parts,
)
from siafu.launch.ranks import under_torchrun
from siafu.launch.reuse import cut_key, note_cut, take_cut
from siafu.memory import Budget, held_bytes
from siafu.minibatch import hold_out_edges
from siafu.nn.cards import CARDS, cards_that
from siafu.partitioning import Cut, Quality, open_parts
from siafu.partitioning.prepared import ColumnChoices, told
from siafu.record import PhaseProgress

_CUT_SETTINGS = ("undirected", "split", "partition", "scale", "schema")


def prepare_parts(  # noqa: PLR0913 - what is asked, where, whom to tell
    data: Any,
    config: RunConfig,
    target: Path,
    *,
    say: Say,
    progress: PhaseProgress,
    learnt: Schema | None = None,
    go_on: str | None = None,
    anew: bool = False,
) -> Path:
    """Return a parts folder for the run, the user's own or one made at `target`; or a store of a
    dynamic graph, which needs no parts.

    Tables and stores are never held in memory. For inference, `learnt` is how the columns of the
    run were prepared, and no masks are drawn. `go_on` tells the user how to go on where that was
    stopped; without it nothing half made stays. `anew` uses no cut of a former run, whose files may
    be those that were damaged.
    """
    draw_masks = learnt is None
    say = _teller(config, say)
    if is_dynamic_run(data, config):
        return prepare_dynamic(data, config, target, say=say, progress=progress, trains=draw_masks)
    if _names_parts(data):
        if learnt is not None:
            check_parts_as_learnt(Path(data), learnt)
        return _with_part_per_rank(Path(data), config.ranks)
    if tells_times(data):
        say(f"Times of edges tell no order to --model {config.model}: the graph does not change.")
    try:
        reading = _reading(config, learnt)
        if draw_masks and config.task == "link":
            data = _without_held_out(data, config, target, say=say, progress=progress)
            reading = SourceReading(draws_masks=False, columns=reading.columns)
        cut = Cut(num_parts=config.ranks, method=config.partition, seed=config.seed)
        key = cut_key(data, cut, reading) if draw_masks and go_on is not None else None
        if key is not None and not anew and take_cut(key, target, say):
            _tell_again(data, reading, target, say)
            return target
        quality = cut_source(
            data,
            target,
            cut,
            reading,
            Allowance(
                budget=_budget(config),
                go_on=go_on,
                tells_memory=False,
                say=say,
                progress=progress,
                check=lambda graph: check_memory(config, graph) if draw_masks else None,
            ),
        )
    finally:
        progress.close()
    if key is not None and key == cut_key(data, cut, reading):  # no file changed meanwhile
        note_cut(key, target)
    if config.ranks > 1:
        _tell_cut(target, quality, say)
    return target


def _budget(config: RunConfig) -> Budget:
    """Return what this process may hold while it reads and cuts the data of a run.

    Ranks on this machine start when the data is cut: until then nobody has what they all may take,
    and the process that starts them holds its libraries beside it, as it does later. Under torchrun
    it is a rank itself, and others wait beside it; on Ray they are elsewhere: one rank's memory.
    """
    memory = config.memory_bytes
    on_gpu = config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available())
    if memory is None or on_gpu:  # a GPU's memory is another
        return Budget()
    if under_torchrun():
        return Budget(most=memory)
    held, ranks = held_bytes(), 1 if config.launcher == "ray" else config.ranks
    return Budget(most=held + ranks * memory, beside=held, ranks=ranks)


def _tell_cut(parts: Path, quality: Quality, say: Say) -> None:
    found = open_parts(parts)
    graph = found.facts["graph"]
    say(
        f"Partitioned {graph['num_nodes']:,} nodes and {graph['num_edges']:,} edges into "
        f"{found.num_parts} parts ({found.facts['method']}); {quality.cut_edges:,} edges are cut."
    )


def _teller(config: RunConfig, say: Say) -> Say:
    """Return how a run is told of its tables: who reads features of edges need not ask for it."""
    if reads_edges(config):
        if ":" in config.model and config.task != "edge":
            return lambda line: say(told_where_own_model_may(line))
        return lambda line: say(told_where_edges_are_read(line))
    card = CARDS.get(config.model)
    if card is None or card.takes_edge_features:
        return say
    able = cards_that(lambda other: other.takes_edge_features)[0]
    return lambda line: say(told_where_they_can_not_be(line, able))


def _tell_again(data: Any, reading: SourceReading, parts: Path, say: Say) -> None:
    """Tell of columns what the run told that made the cut."""
    tables, schema = as_tables(data), schema_of_parts(parts)
    if tables is not None:
        for line in told_of_tables(tables, reading.options, undirected=reading.undirected):
            say(line)
    for line in [] if schema is None else told(schema, edges=reading.columns.tells_edges):
        say(line)


def _reading(config: RunConfig, learnt: Schema | None) -> SourceReading:
    options = config.table_options(config.task)
    columns = ColumnChoices(learnt=learnt)
    if learnt is not None:
        options = options_of_inference(options, learnt)
    else:
        columns = replace(column_choices(config), tells_edges=reads_edges(config))
    return SourceReading(
        undirected=config.undirected,
        split=config.split,
        draws_masks=learnt is None and config.task != "edge",
        splits_edges=learnt is None and config.task == "edge",
        through_cache=True,
        options=options,
        columns=columns,
    )


def _with_part_per_rank(path: Path, ranks: int) -> Path:
    """Return the user's own parts, refusing any but one per rank."""
    count = open_parts(path).num_parts
    if count != ranks:
        raise PlanError(
            "The number of ranks differs from the number of parts.",
            seen=f"{ranks} ranks, {count} parts in {path}",
            fix=f"use --ranks {count}, or partition with --parts {ranks}",
        )
    return path


def check_memory(config: RunConfig, graph: Graph) -> None:
    """Raise where the run's memory is too small for the graph, before hours of cutting it."""
    config = config.resolved()
    if config.memory is None or ":" in config.model or graph.x is None:
        return
    attr = graph.edge_attr if config.edge_features else None
    spec = make_spec(
        config,
        in_width=graph.num_features,
        out_width=graph.num_targets or graph.num_classes,
        edge_width=0 if attr is None else attr.shape[1],
        num_types=graph.num_edge_types,
    )
    columns = (graph.src, graph.edge_weight, graph.edge_attr, graph.edge_type)
    if isinstance(graph.x, SparseFeatures):
        row_bytes = 8 + 8 * len(graph.x.index) // max(1, graph.num_nodes)
    else:
        row_bytes = graph.x[:1].nbytes
    counts = Counts(
        rows=graph.num_nodes // config.ranks,
        edges=graph.num_edges // config.ranks,
        row_bytes=row_bytes,
        edge_bytes=sum(column[:1].nbytes for column in columns if column is not None),
        ranks=config.ranks,
    )
    try:
        check_before_cut(config, spec, counts)
    except BudgetError:
        if config.allow != "sampled" or not minibatch_remedy(config, spec, counts):
            raise


def _without_held_out(
    data: Any, config: RunConfig, target: Path, *, say: Say, progress: PhaseProgress
) -> Graph:
    """Return the graph to cut; the edges it is tested on go beside `target`."""
    graph, notes = load_as_it_is(
        data,
        undirected=config.undirected,
        options=config.table_options(config.task),
        progress=progress,
        budget=_budget(config),
    )
    before = graph.num_edges
    graph, held = hold_out_edges(graph, config.split, config.seed)
    held.save(target)
    counts = f"{len(held.val):,} edges for validation and {len(held.test):,} for test"
    copies = before - graph.num_edges - len(held.val) - len(held.test)
    more = f"; left out too, as copies or reverses of these: {copies:,}" if copies else ""
    idle = ["target"] if graph.y is not None else []
    idle += ["split"] if graph.train is not None else []
    if idle:
        notes.append(f"Not used, since links alone are learnt: the nodes' {' and '.join(idle)}.")
    for note in [*notes, f"Held out {counts}{more}; {graph.num_edges:,} are left."]:
        say(note)
    return graph


def check_parts_settings(data: Any, config: RunConfig) -> None:
    """Raise where a setting asks to change a graph that is cut already."""
    if not _names_parts(data):
        return
    # Edges are split when a rank has opened its part.
    free = {"split"} if config.task in ("link", "edge") else set[str]()
    names = [name for name in _CUT_SETTINGS if name not in free]
    fields = RunConfig.model_fields
    # By value, not by model_fields_set: the config.yaml of a run holds every default too.
    asked = [name for name in names if getattr(config, name) != fields[name].default]
    if asked:
        flags = ", ".join(f"--{name}" for name in asked)
        raise ConfigError(
            "A parts folder is used as it was cut.",
            seen=f"{flags} with the parts in {data}",
            fix=f"run `siafu partition` again with {flags.replace('--partition', '--method')}",
        )


def _names_parts(data: Any) -> bool:
    return isinstance(data, str | Path) and folder_kind(Path(data)) == "parts"


def with_ranks_of_parts(data: Any, config: RunConfig) -> RunConfig:
    """Return the settings with one rank a part, where the user named parts but no ranks."""
    if "ranks" in config.model_fields_set or not _names_parts(data):
        return config
    return config.model_copy(update={"ranks": open_parts(data).num_parts})


_BEAT, _END = "siafu/preparation/beat", "siafu/preparation/end"
_DONE = "done"
_POLL_SECONDS = 0.1
_MOST_BEAT_SECONDS = 5.0
MOST_SECONDS = 24 * 3600.0


@contextmanager
def preparing(world: World) -> Iterator[None]:
    """Tell the waiting ranks, from rank 0, that the work inside goes on and how it ends."""
    store, stop = world.store, threading.Event()
    pause = min(_MOST_BEAT_SECONDS, world.deadline_seconds / 10)

    def beat() -> None:
        while not stop.wait(pause):
            store.add(_BEAT, 1)

    thread = threading.Thread(target=beat, name="siafu-preparation", daemon=True)
    thread.start()
    end = "it was stopped"
    try:
        yield
        end = _DONE
    except Exception as error:
        end = f"{type(error).__name__}: {error}"
        raise
    finally:
        stop.set()
        thread.join()
        store.set(_END, end)


def wait_for_preparation(world: World, *, most_seconds: float = MOST_SECONDS) -> None:
    """Wait until rank 0 is done; raise when it fails, falls silent or takes more than a day."""
    store, started = world.store, time.monotonic()
    beats, heard = 0, started
    with world.waiting("preparation on rank 0", peer=0):
        while not store.check([_END]):
            now, count = time.monotonic(), store.add(_BEAT, 0)
            if count != beats:
                beats, heard = count, now
            if now - heard > world.deadline_seconds:
                raise _too_long(world, f"rank 0 has not been heard of for {now - heard:.0f} s")
            if now - started > most_seconds:
                raise _too_long(world, f"it has taken {now - started:.0f} s")
            time.sleep(_POLL_SECONDS)
        end = store.get(_END).decode()
    if end != _DONE:
        raise CommError(
            "The preparation on rank 0 failed.", seen=end, fix="rank 0 tells the same, and more"
        )


def _too_long(world: World, seen: str) -> CommError:
    return CommError(
        "The preparation on rank 0 does not end.",
        seen=f"rank {world.rank} waits for it; {seen}",
        fix="cut the graph beforehand with `siafu partition` and train on the parts",
    )
