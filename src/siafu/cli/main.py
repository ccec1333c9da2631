"""The `siafu` command: parsing, calling one function, printing, exit codes."""

import sys
from importlib import import_module
from typing import Annotated

import typer

from siafu.collector import collector_rests, spare_collector
from siafu.errors import SiafuError, Terminated
from siafu.memory import share_one_arena
from siafu.record import installed, notes
from siafu.signals import TERMINATED_CODE, ending_cleanly

_DATA = "siafu.cli.data"
COMMANDS = {
    "train": ("siafu.cli.train", "Train a GNN: on a built-in name, files, a store or parts."),
    "infer": ("siafu.cli.infer", "Predict with a trained run, on its own graph or on another."),
    "inspect": ("siafu.cli.inspect", "Show what a store, parts, a checkpoint or a run holds."),
    "runs": ("siafu.cli.runs", "List and compare the runs of a folder."),
    "plan": ("siafu.cli.plan", "Predict what each strategy takes, before anything is run."),
    "watch": ("siafu.cli.watch", "Follow a run that another process works on."),
    "report": ("siafu.cli.report", "Draw what runs did, as one page for a browser."),
    "ingest": (_DATA, "Turn tables, arrays or PyG objects into a store."),
    "partition": (_DATA, "Cut a graph into parts, one per rank."),
    "demo": ("siafu.cli.demo", "Train on a small graph over several ranks, and on one."),
    "launch": ("siafu.cli.launch", "Print or submit the job file of a cluster."),
    "doctor": ("siafu.cli.doctor", "Show what this installation can use."),
    "cache": ("siafu.cli.cache", "Show what is kept for later runs, and empty it."),
}
"""Where each command is, which is loaded when it is called, and what it is for."""


def _tell_version(*, asked: bool) -> None:
    if asked:
        # By their metadata: loading torch would take seconds.
        print(f"siafu {installed('siafu')}")
        print(f"torch {installed('torch')}")
        compilers = [f"{name} {v}" for name in ("numba", "triton") if (v := installed(name))]
        print(f"kernels {', '.join(compilers) or 'as written in Python: numba is not installed'}")
        raise typer.Exit


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


def make_app(called: str | None) -> typer.Typer:
    """Return the command line; of all commands but the one that is called, the name alone."""
    app = typer.Typer(
        name="siafu",
        help="Train graph neural networks on one big graph over many ranks.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_siafu)
    for name, (place, told) in COMMANDS.items():
        if name == called:
            with collector_rests():
                module = import_module(place)
            epilog = getattr(module, "EPILOG", None) if name == "train" else None
            app.command(name, epilog=epilog)(getattr(module, name))
        else:
            app.command(name, help=told)(_not_loaded)
    return app


def _not_loaded() -> None:
    raise AssertionError("a command that is called is loaded")


def main() -> None:
    """Run the command line; an error of ours is shown without a traceback, exit code 2."""
    share_one_arena()  # before a command loads torch
    called = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    try:
        with ending_cleanly():
            app = make_app(called)
            spare_collector()
            app()
    except SiafuError as error:
        notes.print(f"error: {error}", style="red", soft_wrap=True)
        for note in getattr(error, "__notes__", ()):
            notes.print(note, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        notes.print("stopped")
        sys.exit(130)
    except Terminated:
        notes.print("stopped")
        sys.exit(TERMINATED_CODE)
