"""`siafu plan`: what strategies would take, told before anything is run or paid for."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from siafu.cli.flags import given_flags, with_settings
from siafu.cli.settings_files import holds_settings, settings_among
from siafu.cli.show import out, print_json, say
from siafu.config import make_config, settings_of
from siafu.ingest.options import TableColumns
from siafu.launch.planning import plan_run
from siafu.plan import Outlook, Plan, shown_bytes, shown_seconds

_SETTINGS = (
    *("model", "ranks", "memory", "layers", "hidden", "heads", "norm", "jk", "dropout"),
    *("input_dropout", "edge_features", "batch_size", "fanout", "partition", "undirected"),
    *("split", "schema", "device", "threads", "precision", "prices", "instance"),
)
_KNOWN = ("data", "seed", "task", *_SETTINGS, *settings_of(TableColumns))
"""Settings of a file that a plan reads."""
_TRAINING = ("edges", "products", "passes", "exchange", "fixed")
_WIDE = 120
"""Columns of a screen that has room for the seconds of every phase."""


def plan(
    data: Annotated[
        str, typer.Argument(help="data, a known graph, or a file of settings or of statistics")
    ],
    bandwidth: Annotated[
        str | None, typer.Option(help="between machines of one rank each, as 10Gbit")
    ] = None,
    latency: Annotated[str | None, typer.Option(help="of a message there, as 50us")] = None,
    machine: Annotated[
        Path | None, typer.Option(help="costs of another machine, as measured there")
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="measure this machine's costs again")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
    **flags: Any,
) -> None:
    """Predict memory, bytes, seconds and dollars of each strategy, up to --ranks.

    siafu plan products --model gat --layers 3 --ranks 8 --memory 16GB --bandwidth 10Gbit
    """
    found = plan_run(
        make_config(**_settings(data, given_flags(flags))),
        bandwidth=bandwidth,
        latency=latency,
        machine=machine,
        anew=calibrate,
        say=say,
    )
    if json:
        print_json(found.as_dict())
    else:
        _show(found)


def _settings(data: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return what is planned for; a file of settings may say more than a plan has a use for."""
    if not holds_settings(data):
        return {"data": data, **given}
    settings, others = settings_among(Path(data), _KNOWN)
    if others:
        say(f"Of {data}, a plan has no use for: {', '.join(others)}")
    return {**settings, **given}


def _show(found: Plan) -> None:
    graph, at = found.setting.statistics, found.setting
    where = (
        f"on machines like {at.machine.name}, a rank each, "
        f"{shown_bytes(at.link.bytes_per_second)}/s between them"
        if at.link
        else f"on {at.machine.name}, shared by all ranks"
    )
    out.print(
        f"{graph.name}: {graph.nodes:,} nodes, {graph.edges:,} edges, {graph.features} features; "
        f"{at.spec.name}, {at.spec.layers} layers of {at.spec.hidden}; {where} "
        f"(costs of {at.machine.date})",
        soft_wrap=True,
    )
    out.print(_table(found))
    if any(not one.is_measured and one.ranks > 1 for one in found.outlooks):
        out.print("~ rows of others by a law fitted to other cuts, or typical of METIS")
    for line in found.sentences():
        out.print(line, soft_wrap=True)


def _table(found: Plan) -> Table:
    """Return a line per choice; a narrow screen is told the longest phase instead of all."""
    phases = list(_TRAINING) if out.width >= _WIDE else ["mostly"]
    prices = ["dollars"] if found.setting.dollars_per_hour is not None else []
    table = Table(box=None, pad_edge=False)
    for name in ("strategy", "ranks", "memory", "sent", "epoch", *phases, *prices, ""):
        is_text = name in ("strategy", "mostly", "")
        # Remarks are broken where a screen is too narrow, never numbers.
        justify: Literal["left", "right"] = "left" if is_text else "right"
        table.add_column(name, justify=justify, no_wrap=bool(name))
    best = {id(found.fastest): "fastest", id(found.leanest): "least memory"}
    for one in found.outlooks:
        remarks = ", ".join(filter(None, [best.get(id(one), ""), *_remarks(one)]))
        row = [*_row(one), *_phases(one, phases), *([f"{one.dollars:.2g}"] if prices else [])]
        table.add_row(*row, remarks, style=None if one.fits else "dim")
    return table


def _row(one: Outlook) -> list[str]:
    stages = one.strategy.stages
    name = one.name if one.name != "halo" or stages == 1 else f"halo, {stages} stages"
    sent = shown_bytes(one.traffic.training) if one.ranks > 1 else "-"
    return [
        name,
        str(one.ranks),
        shown_bytes(one.memory_bytes),
        sent if one.is_measured or one.ranks == 1 else f"~{sent}",
        shown_seconds(one.seconds),
    ]


def _phases(one: Outlook, names: list[str]) -> list[str]:
    parts = {name: getattr(one.phases, name) for name in _TRAINING}
    if names != ["mostly"]:
        return [shown_seconds(parts[name]) for name in names]
    longest = max(parts, key=lambda name: parts[name])
    return [f"{longest} {parts[longest] / max(one.seconds, 1e-12):.0%}"]


def _remarks(one: Outlook) -> list[str]:
    lossy = {"unbiased": "rounded", "sampled": "sampled", "bounded": "lags"}
    lossy["rounded"] = "bf16: rounded rows"
    told = [lossy[one.exactness]] if one.exactness in lossy else []
    return [*told, *([] if one.fits else ["does not fit"])]


plan = with_settings(plan, [*_SETTINGS, *settings_of(TableColumns)])
