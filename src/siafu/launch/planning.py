"""A plan for data that is here, or for a graph of which only the numbers are known."""

import datetime
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from siafu.comm import choose_device
from siafu.config import RunConfig, make_config
from siafu.errors import ConfigError
from siafu.graph import Graph, at_hand, folder_kind
from siafu.ingest import given_data, load_with_notes
from siafu.launch.dynamic import is_dynamic_run
from siafu.launch.learnt import column_choices
from siafu.launch.statistics import spec_of, statistics_of_parts
from siafu.nn import CARDS
from siafu.nn.precision import check_precision
from siafu.options import read_bytes
from siafu.partitioning import Cut, assign, open_parts, score
from siafu.plan import (
    KNOWN,
    CutStatistics,
    GraphStatistics,
    Link,
    Machine,
    Plan,
    Setting,
    calibrate,
    draw_minibatches,
    graph_statistics,
    keep_machine,
    kept_machine,
    plan_choices,
    rank_counts,
    read_bandwidth,
    read_latency,
    read_machine,
    read_prices,
    read_statistics,
)

Say = Callable[[str], None]

_FILES = (".yaml", ".yml", ".json", ".toml")
_CUTTING_SECONDS = 10.0
"""Spent on cuts of a graph; what they tell of others is a law."""
_MOST_EDGES, _MOST_CUTS = 20_000_000, 64
"""Of a graph that is cut for a plan, and into how many parts."""
_DEFAULT_INSTANCE = "c5.xlarge"
DEFAULT_BANDWIDTH, DEFAULT_LATENCY = "10Gbit", "50us"
"""Between machines, where nothing is said."""


def plan_run(
    config: RunConfig,
    *,
    data: Any = None,
    bandwidth: str | None = None,
    latency: str | None = None,
    machine: Path | str | None = None,
    anew: bool = False,
    say: Say = lambda line: None,
) -> Plan:
    """Return what the strategies would take for the model of a run, up to its number of ranks."""
    data = config.data if data is None else data
    _check_known(data, config)
    if machine is None:
        check_precision(config.precision, choose_device(config.device, 0))
    costs = machine_costs(config, machine, anew=anew, say=say)
    is_here = not names_statistics(data)
    link = None
    if bandwidth is not None or latency is not None or not is_here:
        link = Link(
            bytes_per_second=read_bandwidth(bandwidth or DEFAULT_BANDWIDTH),
            latency_seconds=read_latency(latency or DEFAULT_LATENCY),
        )
    most = config.ranks
    if "ranks" not in config.model_fields_set:
        most = 16 if link is not None else costs.cores
    counts = rank_counts(most)
    statistics = statistics_of(data, config, counts, say)
    hourly = None
    if config.prices is not None or config.instance is not None:
        hourly = (
            read_prices(config.prices).instance(config.instance or "c5.xlarge").dollars_per_hour
        )
    setting = Setting(
        config=config.resolved(),
        spec=spec_of(config, statistics),
        statistics=statistics,
        machine=costs,
        link=link,
        memory=None if config.memory is None else read_bytes(config.memory),
        dollars_per_hour=hourly,
    )
    return plan_choices(setting, counts)


def make_plan(
    data: Any,
    *,
    bandwidth: str | None = None,
    latency: str | None = None,
    machine: Path | str | None = None,
    **settings: Any,
) -> Plan:
    """Return what each strategy is predicted to take: memory, bytes, seconds, dollars.

    `data` is what `siafu.fit` takes, a file of statistics, or the name of a known graph
    (`papers100M`). Ranks share this machine, unless `bandwidth` or `latency` say that each has one
    of its own. Costs are measured here once; `machine` names a file of another's. `settings` are
    those of `siafu plan`.

    >>> plan = siafu.make_plan("products", model="sage", ranks=16, memory="16GB")
    >>> plan.fastest.flags, plan.sentences()
    """
    given = given_data(data)
    name = given.source if isinstance(given.source, str | Path) else type(given.source).__name__
    config = make_config(data=str(name), **{**settings, **given.columns})
    return plan_run(
        config, data=given.source, bandwidth=bandwidth, latency=latency, machine=machine
    )


def _check_known(data: Any, config: RunConfig) -> None:
    if config.model not in CARDS or (not names_statistics(data) and is_dynamic_run(data, config)):
        raise ConfigError(
            "A plan is made for the built-in models of static graphs.",
            seen=f"--model {config.model}",
            fix=f"use one of {', '.join(CARDS)}; a model of your own takes what a like one does",
        )


def names_statistics(data: Any) -> bool:
    """Return whether the data is numbers of a graph alone: a known name, or a file of them."""
    if not isinstance(data, str | Path):
        return False
    path = Path(data)
    return str(data) in KNOWN or (path.suffix in _FILES and path.is_file())


def machine_costs(
    config: RunConfig, file: Path | str | None, *, anew: bool = False, say: Say
) -> Machine:
    """Return what work costs: as a file tells, as was measured here before, or as is now."""
    if file is not None:
        return read_machine(Path(file))
    device = choose_device(config.device, 0)
    today = datetime.datetime.now(datetime.UTC).date()
    found = None if anew else kept_machine(device.type, today)
    if found is None:
        found = calibrate(device.type, say)
        say(f"Kept at {keep_machine(found)}")
    return found


def statistics_of(data: Any, config: RunConfig, counts: Sequence[int], say: Say) -> GraphStatistics:
    """Return the numbers of a graph; one that is here and small enough is cut for them."""
    data, choices = at_hand(data), column_choices(config)
    is_cut = isinstance(data, str | Path) and folder_kind(Path(data)) == "parts"
    if choices.changes is not None and (is_cut or names_statistics(data)):
        raise ConfigError(
            "A schema is of columns of tables, and none are read.",
            seen=f"--schema with {data}",
            fix="leave --schema out, or name the tables",
        )
    if str(data) in KNOWN:
        return KNOWN[str(data)]
    if names_statistics(data):
        return read_statistics(Path(data))
    if is_cut:
        return statistics_of_parts(open_parts(data))
    graph, _ = load_with_notes(
        data,
        undirected=config.undirected,
        split=config.split,
        seed=config.seed,
        options=config.table_options(config.task),
    )
    if choices.changes is not None and graph.schema is not None:
        graph = replace(graph, schema=graph.schema.overridden(choices.changes, choices.named))
    found = graph_statistics(graph).model_copy(update={"method": config.partition})
    return found.with_cuts(_cuts(graph, config, counts, say))


def _whole(graph: Graph, config: RunConfig) -> CutStatistics:
    """Return the graph as one part, with what its minibatches have."""
    drawn = draw_minibatches(graph, np.zeros(graph.num_nodes, np.int32), 1, config.resolved())
    size = {"rows": graph.num_nodes, "edges": graph.num_edges}
    return CutStatistics(ranks=1, halo_rows=0, drawn=drawn, **size)


def _cuts(graph: Graph, config: RunConfig, counts: Sequence[int], say: Say) -> list[CutStatistics]:
    """Return cuts of a graph: of the most ranks first, then of fewer, while there is time."""
    if graph.num_edges > _MOST_EDGES:
        say("The graph is too large to be cut for a plan: a law stands for its cuts.")
        return []
    wanted = [count for count in counts if 1 < count <= min(_MOST_CUTS, graph.num_nodes)]
    found, started = [_whole(graph, config)], time.monotonic()
    for count in sorted(wanted, key=lambda count: (count != max(wanted), count)):
        if time.monotonic() - started > _CUTTING_SECONDS:
            break
        part_of = assign(graph, Cut(num_parts=count, method=config.partition, seed=config.seed))
        drawn = draw_minibatches(graph, part_of, count, config.resolved())
        cut = CutStatistics.of(score(graph, part_of, count))
        found.append(cut.model_copy(update={"drawn": drawn}))
    return found
