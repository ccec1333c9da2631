"""The `siafu` command: parsing, calling one function, printing, exit codes."""

import sys
from typing import Annotated

from siafu.collector import collector_rests, spare_collector

with collector_rests():
    import typer

    from siafu.cli.cache import cache
    from siafu.cli.data import ingest, partition
    from siafu.cli.demo import demo
    from siafu.cli.doctor import doctor
    from siafu.cli.infer import infer
    from siafu.cli.inspect import inspect
    from siafu.cli.train import train_command
    from siafu.errors import SiafuError, Terminated
    from siafu.launch import TERMINATED_CODE, ending_cleanly
    from siafu.record import installed, notes
spare_collector()

app = typer.Typer(
    name="siafu",
    help="Train graph neural networks on one big graph over many ranks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _tell_version(*, asked: bool) -> None:
    if asked:
        print(f"siafu {installed('siafu')}")
        raise typer.Exit


@app.callback()
def _siafu(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="print the version and end",
            is_eager=True,
            callback=lambda asked: _tell_version(asked=asked),
        ),
    ] = False,
) -> None:
    pass


for command in (demo, doctor, ingest, partition, inspect, infer, cache):
    app.command()(command)
app.command(name="train")(train_command)


def main() -> None:
    """Run the command line; an error of ours is shown without a traceback, exit code 2."""
    try:
        with ending_cleanly():
            app()
    except SiafuError as error:
        notes.print(f"error: {error}", style="red", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        notes.print("stopped")
        sys.exit(130)
    except Terminated:
        notes.print("stopped")
        sys.exit(TERMINATED_CODE)
