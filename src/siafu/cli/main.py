"""The `siafu` command: parsing, calling one function, printing, exit codes."""

import sys

from siafu.collector import collector_rests, spare_collector

with collector_rests():
    import typer

    from siafu.cli.cache import cache
    from siafu.cli.data import ingest, inspect, partition
    from siafu.cli.demo import demo
    from siafu.cli.doctor import doctor
    from siafu.cli.infer import infer
    from siafu.cli.show import notes
    from siafu.cli.train import train_command
    from siafu.errors import SiafuError, Terminated
    from siafu.launch import TERMINATED_CODE, ending_cleanly
spare_collector()

app = typer.Typer(
    name="siafu",
    help="Train any graph neural network on one big graph over many ranks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
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
