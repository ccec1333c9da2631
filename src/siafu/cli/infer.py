"""`siafu infer`: predictions and embeddings, keyed by original ids."""

from pathlib import Path
from typing import Annotated, Any

import pyarrow.parquet as pq
import typer

from siafu.cli.flags import given_flags, with_settings
from siafu.cli.show import print_json, print_table, say
from siafu.cli.trust import confirmed
from siafu.config import settings_of
from siafu.ingest.options import TableColumns
from siafu.launch import write_inference


def infer(  # noqa: PLR0913 - one argument per flag
    run: Annotated[Path, typer.Argument(help="run folder of a finished training")],
    out: Annotated[Path, typer.Option(help="folder for the Parquet files")] = Path("predictions"),
    data: Annotated[str | None, typer.Option(help="another graph (default: the run's)")] = None,
    pairs: Annotated[
        str | None,
        typer.Option(help="table of pairs, src and dst, to score (--task link or edge)"),
    ] = None,
    embeddings: Annotated[
        bool,
        typer.Option(
            "--embeddings", help="and hidden rows (own model: logits); over time those alone"
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="replace earlier predictions in --out")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="file of your own model, FILE.py:Class, to be trusted")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="memory per rank, as 4GB (default: training's; --strategy batchgnn)"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress")] = False,
    json: Annotated[bool, typer.Option("--json", help="one JSON object as last line")] = False,
    **columns: Any,
) -> None:
    """Write predictions (and embeddings) to Parquet, one file per rank of the run, by ids."""
    target = confirmed(
        lambda: write_inference(
            run,
            out,
            data=data,
            pairs=pairs,
            embeddings=embeddings,
            overwrite=overwrite,
            model=model,
            memory=memory,
            say=say,
            quiet=quiet,
            columns=given_flags(columns),
        )
    )
    if target is None:  # rank 0 of torchrun's tells
        return
    table = pq.ParquetDataset(target)
    num_rows = sum(fragment.metadata.num_rows for fragment in table.fragments)
    rows = {"out": str(target), "rows": num_rows, "columns": ", ".join(table.schema.names)}
    if json:
        print_json(rows)
    else:
        print_table("", rows)


infer = with_settings(infer, settings_of(TableColumns))
