"""`siafu launch`: job files of clusters, printed or handed over."""

import subprocess
import sys
from typing import Annotated, Any

import typer

from siafu.cli.main import make_app
from siafu.cli.show import say
from siafu.errors import ConfigError, PoolError
from siafu.launch.job_files import JobKind, JobRequest, job_file, submit_command


def launch(  # noqa: PLR0913 - one argument per flag
    kind: Annotated[JobKind, typer.Argument(help="who runs it")],
    words: Annotated[
        list[str] | None, typer.Argument(help="after --: train DATA --out RUN and its settings")
    ] = None,
    name: Annotated[str, typer.Option(help="of the job")] = "siafu",
    nodes: Annotated[int, typer.Option(help="machines", min=1)] = 1,
    min_nodes: Annotated[
        int | None, typer.Option(help="machines that are enough to go on with")
    ] = None,
    ranks_per_node: Annotated[int, typer.Option(help="processes per machine", min=1)] = 1,
    cores: Annotated[int, typer.Option(help="per machine", min=1)] = 4,
    memory: Annotated[str | None, typer.Option(help="per machine, as 64GB")] = None,
    gpus: Annotated[int, typer.Option(help="per machine", min=0)] = 0,
    hours: Annotated[float, typer.Option(help="the most it may take", min=0.02)] = 24.0,
    queue: Annotated[
        str | None, typer.Option(help="Slurm's partition, or a priority class of Kubernetes")
    ] = None,
    image: Annotated[str | None, typer.Option(help="with siafu in it (Kubernetes)")] = None,
    claim: Annotated[
        str | None, typer.Option(help="volume that all pods have at /data (Kubernetes)")
    ] = None,
    restarts: Annotated[int, typer.Option(help="after lost machines or ranks", min=0)] = 3,
    submit: Annotated[bool, typer.Option("--submit", help="hand it over, too")] = False,
) -> None:
    """Print the file that runs a training on a cluster; with --submit hand it over.

    siafu launch slurm --nodes 4 --cores 16 -- train DATA --model gat --out RUN
    """
    request = JobRequest(
        name=name,
        nodes=nodes,
        min_nodes=min_nodes,
        ranks_per_node=ranks_per_node,
        cores=cores,
        memory=memory,
        gpus=gpus,
        hours=hours,
        queue=queue,
        image=image,
        claim=claim,
        restarts=restarts,
    )
    text = job_file(kind, request, words or [])
    _check_settings((words or [])[1:])
    sys.stdout.write(text)
    if submit:
        _hand_over(kind, text)


def _check_settings(words: list[str]) -> None:
    """Raise where `siafu train` would not take these words: here, not hours later on a cluster."""
    commands: Any = typer.main.get_command(make_app("train"))
    try:
        commands.commands["train"].make_context("train", list(words))
    except Exception as error:
        told = getattr(error, "format_message", None)
        if told is None:
            raise
        raise ConfigError(
            "The training can't be started so.", seen=told(), fix="see `siafu train --help`"
        ) from error


def _hand_over(kind: JobKind, text: str) -> None:
    command = submit_command(kind)
    try:
        done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{command[0]} is not there.",
            seen=str(error),
            fix="run this where jobs are submitted from, or save what is printed",
        ) from error
    if done.returncode:
        raise PoolError(
            "The job was not taken.",
            seen=f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}",
            fix="see what it says; the file is printed above",
        )
    say(done.stdout.strip())
