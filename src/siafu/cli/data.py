"""`siafu ingest` and `siafu partition`: graphs on disk."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from siafu.cli.flags import given_flags, with_settings
from siafu.cli.inspect import describe, quality_rows, show
from siafu.cli.show import say
from siafu.config import make_columns, settings_of
from siafu.graph import Crew, Help, at_hand, made_for
from siafu.ingest import as_tables, ingest_helps, ingest_to_store
from siafu.ingest.options import TableColumns
from siafu.launch.columns import table_options
from siafu.launch.crew import crew_of_ranks
from siafu.launch.cut import Allowance, SourceReading, cut_helps, cut_source
from siafu.launch.learnt import column_choices
from siafu.memory import Budget
from siafu.options import read_bytes
from siafu.partitioning import Cut
from siafu.partitioning.options import ColumnOptions, Method
from siafu.record import READING, PhaseProgress

_Json = Annotated[bool, typer.Option("--json", help="one JSON object as the last line")]
_Quiet = Annotated[bool, typer.Option("--quiet", help="no progress")]
_Memory = Annotated[str | None, typer.Option(help="memory allowed, e.g. 4GB")]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="replace an existing folder")]


def ingest(  # noqa: PLR0913 - one flag per option
    source: Annotated[str, typer.Argument(help="built-in name, .npz, Parquet or CSV, folder")],
    target: Annotated[str, typer.Argument(help="store folder to write, or its URL")],
    undirected: Annotated[bool, typer.Option("--undirected", help="add reverse edges")] = False,
    split: Annotated[str | None, typer.Option(help="draw masks: 0.6,0.2 or 20,30")] = None,
    seed: Annotated[int, typer.Option(help="seed of drawn masks")] = 0,
    memory: _Memory = None,
    overwrite: _Overwrite = False,
    quiet: _Quiet = False,
    json: _Json = False,
    **columns: Any,
) -> None:
    """Turn foreign files into a store, once, in bounded memory."""
    options = table_options(source, make_columns(**given_flags(columns)))
    budget = _budget(memory)

    def helps(crew: Crew) -> Mapping[str, Help]:
        del crew
        tables = as_tables(at_hand(source))
        if tables is None:
            return {}
        return ingest_helps(tables, undirected=undirected, options=options, budget=budget)

    with crew_of_ranks(f"ingest {source} {undirected} {options}", helps) as crew:
        if crew is None:
            return
        progress = PhaseProgress(quiet=quiet, spans={READING: (0.0, 1.0)})
        try:
            with made_for(target, overwrite=overwrite) as folder:
                remarks = ingest_to_store(
                    source,
                    folder,
                    overwrite=overwrite,
                    undirected=undirected,
                    split=split,
                    seed=seed,
                    options=options,
                    progress=progress,
                    budget=budget,
                    crew=crew,
                )
                rows = describe(folder)
        finally:
            progress.close()
    for remark in remarks:
        say(remark)
    show(target, rows, as_json=json)


def partition(  # noqa: PLR0913 - one flag per option
    data: Annotated[str, typer.Argument(help="store, or anything `siafu train` takes")],
    target: Annotated[str, typer.Argument(help="parts folder to write, or its URL")],
    parts: Annotated[int, typer.Option(help="how many parts, one per rank", min=1)] = 2,
    method: Annotated[Method, typer.Option(help="how to cut")] = "auto",
    width: Annotated[int, typer.Option(help="row width for the predicted traffic", min=1)] = 64,
    memory: _Memory = None,
    undirected: Annotated[bool, typer.Option("--undirected", help="add reverse edges")] = False,
    split: Annotated[str | None, typer.Option(help="draw masks: 0.6,0.2 or 20,30")] = None,
    seed: Annotated[int, typer.Option(help="seed of the cut and of drawn masks")] = 0,
    overwrite: _Overwrite = False,
    quiet: _Quiet = False,
    json: _Json = False,
    **columns: Any,
) -> None:
    """Cut a graph into parts, one per rank, and say how good the cut is.

    Tables and stores may be larger than memory. Killed or out of disk, the same command goes on.
    """
    told = make_columns(**given_flags(columns))
    reading = SourceReading(
        undirected=undirected,
        split=split,
        options=table_options(data, told),
        columns=column_choices(told),
    )
    budget = _budget(memory)

    def helps(crew: Crew) -> Mapping[str, Help]:
        return cut_helps(at_hand(data), reading, budget, crew)

    with crew_of_ranks(f"partition {data} {parts} {reading}", helps) as crew:
        if crew is None:
            return
        progress = PhaseProgress(quiet=quiet)
        try:
            with made_for(target, overwrite=overwrite) as folder:
                quality = cut_source(
                    data,
                    folder,
                    Cut(num_parts=parts, method=method, seed=seed),
                    reading,
                    Allowance(
                        budget=budget,
                        overwrite=overwrite,
                        say=say,
                        progress=progress,
                        crew=crew,
                    ),
                )
        finally:
            progress.close()
    show(target, quality_rows(quality, width), as_json=json)


def _budget(memory: str | None) -> Budget:
    return Budget(most=None if memory is None else read_bytes(memory))


ingest = with_settings(ingest, settings_of(TableColumns))
partition = with_settings(partition, [*settings_of(TableColumns), *settings_of(ColumnOptions)])
