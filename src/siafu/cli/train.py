"""`siafu train`: flags made from the settings of a run, so that both have the same names."""

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.models import OptionInfo

from siafu.cli.show import percent, print_json, print_table, say, size
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
        settings = {**read_config(Path(data)), **given}
        if "model" not in given:
            model = str(settings.get("model", ""))
            check_trusted(model, data, f"run `siafu train {data} --model {model}`")
        return settings
    return {"data": data, **given}


def show_run(run: Run, *, as_json: bool) -> None:
    """Print what a run came to."""
    result = run.result
    if as_json:
        print_json(result)
        return
    if "task" in result:
        print_table("", dynamic_rows(run))
        return
    scores = "  ".join(f"{name} {percent(value)}" for name, value in run.accuracy.items())
    rows = {
        result["metric"]: f"{scores}  (epoch {result['best_epoch']} of {result['epochs']})"
        if scores
        else "not scored (--inference none)",
        "loss": f"{result['losses'][0]:.4f} to {result['losses'][-1]:.4f}",
        "epoch": f"{result['seconds_per_epoch']:.3g} s (median)",
        "sent": ", ".join(f"{k} {size(v)}" for k, v in result["bytes_sent"].items() if v) or "0 B",
        "evaluation": _evaluated(result["evaluation"]),
        "peak memory": ", ".join(f"{mb:.0f} MiB" for mb in result["peak_mb"]),
        "strategy": f"{result['strategy']} ({result['exactness']}), {result['ranks']} ranks, "
        f"{_told(result['choices'])}",
        **_sampled(result.get("sampling", {})),
        **_piped(result.get("pipeline", {})),
        **((result.get("bill") or {}).get("rows", {})),
        "run": run.path,
    }
    print_table("", rows)


def dynamic_rows(run: Run) -> dict[str, Any]:
    """Return what a run on a dynamic graph came to, by name."""
    result = run.result
    choices = result["choices"]
    names = list(next(iter(result["scores"].values()), {}))
    scores = {
        name: "  ".join(f"{split} {row[name]:.4f}" for split, row in result["scores"].items())
        for name in names
    }
    exchanges = ", ".join(dict.fromkeys(choices["exchanges"])) or "none"
    return {
        "task": f"{result['task']}, {choices['snapshots']} snapshots, "
        f"{choices['train_snapshots']} trained on",
        **scores,
        "best epoch": f"{result['best_epoch']} of {result['epochs']}",
        "loss": f"{result['losses'][0]:.4f} to {result['losses'][-1]:.4f}",
        "epoch": f"{result['seconds_per_epoch']:.3g} s (median)",
        "sent": ", ".join(f"{k} {size(v)}" for k, v in result["bytes_sent"].items() if v) or "0 B",
        "evaluation": _evaluated(result["evaluation"]),
        "peak memory": ", ".join(f"{mb:.0f} MiB" for mb in result["peak_mb"]),
        "strategy": f"{result['strategy']} ({result['exactness']}), {result['ranks']} ranks, "
        f"{_groups(choices)}{choices['time_blocks']} time block(s), "
        f"exchange along time: {exchanges}{_told_of_rows(choices)}",
        "run": run.path,
    }


def _evaluated(spent: dict[str, Any]) -> str:
    """Return what scoring took of the run: its bytes are among those sent."""
    if not spent["passes"]:
        return "none"
    times = "once" if spent["passes"] == 1 else f"{spent['passes']} times"
    sent = f", {size(spent['bytes_sent'])} of what was sent" if spent["bytes_sent"] else ""
    return f"{times}, {spent['seconds']:.3g} s in all{sent}"


def _groups(choices: dict[str, Any]) -> str:
    count = choices.get("vertex_parts", 1)
    return f"{count} groups of vertices, " if count > 1 else ""


def _told_of_rows(choices: dict[str, Any]) -> str:
    """Return how rows along time are quantised, also where that was asked for in vain."""
    if choices["wire"] == 32:
        return ""
    if not choices["rounded"]:
        return (
            ", nothing quantised (states travel whole, and a single stretch of time sends no rows)"
        )
    if "wire_bits" in choices:
        return f", rows quantised to {choices['wire_bits']:g} bits on average ({choices['wire']})"
    return f", rows quantised to {choices['wire']} bits"


def _told(choices: dict[str, Any]) -> str:
    """Return the number of stages, every choice that is on, and how messages are quantised."""
    if choices.get("unit") == "macrobatch":
        cached = ", first layer's input aggregated once" if choices["input_cache"] else ""
        return f"macrobatches of {choices['macrobatch']} steps{cached}"
    if choices.get("unit") == "interval":
        return _told_of_intervals(choices)
    stages, wire = choices["stages"], choices["wire"]
    told = [f"{stages} stage{'s' if stages > 1 else ''}"]
    told += [name.replace("_", " ") for name, value in choices.items() if value is True]
    if "wire_bits" in choices:
        told.append(f"messages quantised to {choices['wire_bits']:g} bits on average ({wire})")
    elif wire != 32:
        told.append(f"messages quantised to {wire} bits")
    return ", ".join(told)


def _told_of_intervals(choices: dict[str, Any]) -> str:
    told = [f"{choices['intervals']} intervals a rank", f"pool: {choices['pool']}"]
    if choices["staleness"] or choices["gather"] == "latest":
        oldest = choices["staleness"] + int(choices["gather"] == "latest")
        told.append(f"rows up to {oldest} epoch{'s' if oldest > 1 else ''} old")
    if choices["pool_bits"] != 32:
        told.append(f"rows to the pool quantised to {choices['pool_bits']} bits")
    return ", ".join(told if choices["overlap"] else [*told, "taking turns"])


def _piped(pipeline: dict[str, Any]) -> dict[str, str]:
    """Return a line on what became of the tasks of a pipeline, where there is one."""
    if not pipeline:
        return {}
    told = [f"{pipeline['requests']} tasks, {size(pipeline['sent_bytes'])} to the workers"]
    told += [f"{pipeline[name]} {name}" for name in ("relaunched", "failures") if pipeline[name]]
    if pipeline["degraded"]:
        told.append(f"given up on {pipeline['degraded']} ranks, which went on by themselves")
    by_age = pipeline["rows_read_by_age"]
    if sum(by_age[1:]):
        told.append(f"{percent(sum(by_age[1:]) / sum(by_age))} of rows read were older")
    return {"pool": ", ".join(told)}


def _sampled(sampling: dict[str, Any]) -> dict[str, str]:
    """Return a line on how neighbours were drawn, where they were."""
    if not sampling:
        return {}
    told = [f"fan-out {','.join(map(str, sampling['fanout']))}"]
    told.append(f"{sampling['steps']} steps an epoch of {sampling['batch_size']} a rank")
    told += ["with replacement"] if sampling["replace"] else []
    told += ["by weight"] if sampling["weighted"] else []
    told += ["rows on disk"] if sampling["on_disk"] else []
    if "rounding_error" in sampling:
        told.append(f"features rounded to 8 bits (error {100 * sampling['rounding_error']:.2g} %)")
    if "hot_hits" in sampling:
        told.append(f"{percent(sampling['hot_hits'])} of far rows kept")
    return {"sampled": ", ".join(told)}


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
