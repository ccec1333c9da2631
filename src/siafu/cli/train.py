"""`siafu train`: flags made from the settings of a run, so that both have the same names."""

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.models import OptionInfo

from siafu.cli.scores import run_rows
from siafu.cli.show import print_json, print_table, say
from siafu.cli.trust import confirmed
from siafu.config import RunConfig, make_config, read_config
from siafu.errors import ConfigError
from siafu.launch import Run, resume_run, start_run
from siafu.launch.trust import check_trusted

_CONFIG_FILES = (".yaml", ".yml", ".toml")


def train(
    data: Annotated[
        str | None, typer.Argument(help="data, or a YAML or TOML file with the settings")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="go on with this run folder")] = None,
    json: Annotated[bool, typer.Option("--json", help="one JSON object as the last line")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress")] = False,
    **flags: Any,
) -> None:
    """Train a GNN: a built-in name, .npz, Parquet or CSV folder, store or parts folder.

    siafu train planted --model gat --ranks 4
    """
    given = {key: value for key, value in flags.items() if value is not None}
    if resume is not None:
        if data is not None:
            raise ConfigError(
                "A resumed run keeps its data.",
                seen=f"{data} with --resume {resume}",
                fix="leave the data out, or start a new run without --resume",
            )
        run = confirmed(lambda: resume_run(resume, given, say=say, quiet=quiet))
    else:
        config = confirmed(lambda: make_config(**_settings(data, given)))
        run = start_run(config, say=say, quiet=quiet)
    if run.is_first_rank:
        show_run(run, as_json=json)


def _settings(data: str | None, given: dict[str, Any]) -> dict[str, Any]:
    if data is None:
        raise ConfigError("No data is named.", seen="siafu train", fix="try: siafu train planted")
    if data.endswith(_CONFIG_FILES):
        settings = {**_read(Path(data)), **given}
        if "model" not in given:
            model = str(settings.get("model", ""))
            check_trusted(model, data, f"run `siafu train {data} --model {model}`")
        return settings
    return {"data": data, **given}


def _read(path: Path) -> dict[str, Any]:
    settings = read_config(path)
    # Every run once noted this default, also where nothing is weighed. Where it is, it still is.
    if settings.get("class_weights") == "balanced":
        del settings["class_weights"]
    return settings


def show_run(run: Run, *, as_json: bool) -> None:
    """Print what a run came to."""
    if as_json:
        print_json(run.result)
    else:
        print_table("", run_rows(run.result, run.path))


def _with_flags(command: Any) -> Any:
    """Return the command with one option for each setting of a run."""
    signature = inspect.signature(command)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = []
    for name, field in RunConfig.model_fields.items():
        if name == "data":
            continue
        note = "" if field.default is None else f" (default: {str(field.default).lower()})"
        option: OptionInfo = typer.Option(help=f"{field.description}{note}", show_default=False)
        annotation: Any = field.annotation
        kind = Annotated[annotation | None, option]
        keyword = inspect.Parameter.KEYWORD_ONLY
        options.append(inspect.Parameter(name, keyword, default=None, annotation=kind))
    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    command.__signature__ = signature.replace(parameters=[*own, *options])
    command.__annotations__ = {p.name: p.annotation for p in [*own, *options]}
    return command


train_command = _with_flags(train)
