"""`siafu train`: flags made from the settings of a run, so that both have the same names."""

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.models import OptionInfo

from siafu.cli.flags import given_flags, option_of, with_parameters
from siafu.cli.scores import run_rows
from siafu.cli.settings_files import SUFFIXES, settings_in
from siafu.cli.show import print_json, print_table, say
from siafu.cli.trust import confirmed
from siafu.config import (
    OWNERS,
    RENAMED,
    flag_of,
    make_config,
    owner_of,
    settings_of,
    usual_settings,
)
from siafu.errors import ConfigError
from siafu.launch import Run, resume_run, start_run
from siafu.launch.own_code import check_trusted


def train(
    data: Annotated[
        str | None, typer.Argument(help="data, or a YAML or TOML file with the settings")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(help="go on with this run folder; auto: with that of --out, if it was begun"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="one JSON object as the last line")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress")] = False,
    help_all: Annotated[
        bool,
        typer.Option(
            "--help-all",
            help="all settings, by what they are for",
            is_eager=True,
            callback=lambda ctx, asked: _show_all(ctx, asked=asked),
        ),
    ] = False,
    **flags: Any,
) -> None:
    """Train a GNN: a built-in name, .npz, Parquet or CSV folder, store or parts folder.

    siafu train planted --model gat --ranks 4
    """
    given = given_flags(flags)
    if resume is not None and resume != "auto":
        path = Path(resume)
        if data is not None:
            raise ConfigError(
                "A resumed run keeps its data.",
                seen=f"{data} with --resume {resume}",
                fix="leave the data out, or start a new run without --resume",
            )
        run = confirmed(lambda: resume_run(path, given, say=say, quiet=quiet))
    else:
        config = confirmed(lambda: make_config(**_settings(data, given, resume)))
        run = start_run(config, say=say, quiet=quiet, goes_on=resume == "auto")
    if run.is_first_rank:
        show_run(run, as_json=json)


def _settings(data: str | None, given: dict[str, Any], resume: str | None) -> dict[str, Any]:
    if data is None:
        raise ConfigError("No data is named.", seen="siafu train", fix="try: siafu train planted")
    if data.endswith(SUFFIXES):
        settings = {**settings_in(Path(data), again=resume is None), **given}
        for name in {"model", "loss"} - set(given):
            code = str(settings.get(name) or "")
            check_trusted(code, data, f"run `siafu train {data} --{name} {code}`")
        return settings
    return {"data": data, **given}


def show_run(run: Run, *, as_json: bool) -> None:
    """Print what a run came to."""
    if as_json:
        print_json(run.result)
    else:
        print_table("", run_rows(run.result, run.path))


def _show_all(ctx: typer.Context, *, asked: bool) -> None:
    """Print the help with every setting, a panel per owner."""
    if asked:
        for parameter in ctx.command.params:
            if parameter.name not in RENAMED:
                parameter.hidden = False  # type: ignore[attr-defined]
        ctx.command.epilog = None
        print(ctx.get_help())
        raise typer.Exit


def _refuse_renamed(name: str, *, given: str | None) -> None:
    if given is not None:
        raise ConfigError(
            "The setting has another name now.",
            seen=f"{flag_of(name)} {given}",
            fix=f"write {flag_of(RENAMED[name])} {given}",
        )


def _with_flags(command: Any) -> Any:
    """Return the command with one option for each setting of a run."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    settings = [name for owner in OWNERS for name in settings_of(owner) if name != "data"]
    usual_first = dict.fromkeys([*usual_settings(), *settings])
    options = [
        inspect.Parameter(name, keyword, default=None, annotation=_option(name))
        for name in usual_first
    ]
    old = [
        inspect.Parameter(name, keyword, default=None, annotation=_old_option(name))
        for name in RENAMED
    ]
    return with_parameters(command, [*options, *old])


def _option(name: str) -> Any:
    is_usual = name in usual_settings()
    return option_of(name, panel=USUAL if is_usual else owner_of(name).panel, hidden=not is_usual)


def _old_option(name: str) -> Any:
    option: OptionInfo = typer.Option(
        hidden=True, callback=lambda given: _refuse_renamed(name, given=given)
    )
    return Annotated[str | None, option]


USUAL = "Settings people use most"


def more_settings() -> str:
    """Return the names of all other settings, a paragraph per owner."""
    shown = {"data", *usual_settings()}
    rest: dict[str, list[str]] = {}
    for owner in OWNERS:
        flags = [flag_of(name) for name in settings_of(owner) if name not in shown]
        rest[owner.panel] = rest.get(owner.panel, []) + flags
    told = [f"{panel}: {', '.join(flags)}" for panel, flags in rest.items() if flags]
    return "\n\n".join(["All other settings, by `siafu train --help-all`:", *told])


EPILOG = more_settings()
train = _with_flags(train)
