"""The page of one run, or of several side by side."""

import json
import statistics
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from siafu.comm.meter import PURPOSES
from siafu.errors import ConfigError, StoreError
from siafu.files import write_text_atomically
from siafu.options import read_bytes
from siafu.record import shortened, shown_score
from siafu.report.answers import answers
from siafu.report.blocks import as_details, figures, section, table
from siafu.report.plots import (
    NUM_COLOURS,
    Series,
    line_plot,
    matrix_plot,
    number_text,
    stacked_bars,
)
from siafu.report.style import STYLE
from siafu.report.told import ToldRun, read_told, scores_of
from siafu.report.verdict import predicted, what_was_lossy, would_more_ranks_help

_SPLITS = ("train", "val", "test")
_MIB = 2**20
_MOST_RANKS_OF_A_MATRIX = 128
_MOST_COLUMNS = 40


def write_report(paths: Sequence[Path], target: Path) -> Path:
    """Write the page of these runs, at once, and return where it is."""
    runs = [read_told(path) for path in paths]
    try:
        write_text_atomically(target, page_of(runs))
    except OSError as error:
        raise StoreError(
            "The report can't be written.",
            seen=f"{error.strerror}: {target}",
            fix="name a file you may write to with --out",
        ) from error
    return target


def page_of(runs: Sequence[ToldRun]) -> str:
    """Return the page as text; it loads nothing from elsewhere."""
    title = " and ".join(run.name for run in runs)
    sections = [
        *(_failure(run) for run in runs if run.failure and not run.result),
        _overview(runs),
        *(_warnings(run, named=len(runs) > 1) for run in runs if run.warnings),
        _curves(runs),
        *(answers(run, named=len(runs) > 1) for run in runs),
        *(_of_ranks(run, named=len(runs) > 1) for run in runs),
        *(_cut(run, named=len(runs) > 1) for run in runs),
        _settings(runs),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} - siafu</title><style>{STYLE}</style></head>"
        f"<body><main><h1>{escape(title)}</h1>{''.join(sections)}</main></body></html>\n"
    )


def _failure(run: ToldRun) -> str:
    told = "".join(
        f"<p><b>{name}</b> {escape(text)}</p>"
        for name, text in (("Seen:", run.failure.get("seen")), ("Fix:", run.failure.get("fix")))
        if text
    )
    problem = escape(str(run.failure.get("problem", "The run failed.")))
    return f'<section class="failure" role="alert"><h2>{problem}</h2>{told}</section>'


def _warnings(run: ToldRun, *, named: bool) -> str:
    told = "".join(f"<li>{escape(line)}</li>" for line in run.warnings)
    return section(f"Warnings of {run.name}" if named else "Warnings", f"<ul>{told}</ul>")


def _overview(runs: Sequence[ToldRun]) -> str:
    rows = [_facts(run) for run in runs]
    names = list(dict.fromkeys(name for row in rows for name in row))
    if len(runs) > 1:
        head = ["", *(run.name for run in runs)]
        return table(head, [[name, *(row.get(name, "") for row in rows)] for name in names])
    cards = "".join(
        f'<div class="card"><b>{escape(shown_score(runs[0].metric, value))}</b>'
        f"<span>{escape(split)} {escape(runs[0].metric)}</span></div>"
        for split, value in runs[0].scores.items()
    )
    facts = table([], [[name, rows[0][name]] for name in names])
    return f'<div class="cards">{cards}</div>{facts}'


def _further_scores(run: ToldRun) -> dict[str, str]:
    """Return the scores beside the one that counts, those of each split in a line."""
    found = run.result.get("scores") or {}
    names = dict.fromkeys(name for of in found.values() for name in of if name != run.metric)
    return {
        name: "  ".join(
            f"{split} {shown_score(name, of[name])}"
            for split, of in found.items()
            if isinstance(of.get(name), int | float)
        )
        for name in names
    }


def _model(settings: dict[str, Any]) -> str:
    """Return the model with its size; one of the user's own was asked for what is noted of it."""
    name = str(settings.get("model", ""))
    if ":" not in name:
        return f"{name}, {settings.get('layers', '?')} layers of {settings.get('hidden', '?')}"
    asked = [f"{key} {settings[key]}" for key in ("layers", "hidden") if key in settings]
    return ", ".join([name, *asked])


def _edge_columns(run: ToldRun) -> str:
    """Return the columns of edges that the model was given, if it was any."""
    settings = run.settings
    is_own = ":" in str(settings.get("model"))
    if not run.edge_columns or not (
        is_own or settings.get("edge_features") or settings.get("task") == "edge"
    ):
        return ""
    where = " (if forward takes edge_attr)" if is_own and settings.get("task") != "edge" else ""
    return shortened(run.edge_columns, _MOST_COLUMNS) + where


def _facts(run: ToldRun) -> dict[str, str]:
    result, settings = run.result, run.settings
    scores = "  ".join(f"{split} {shown_score(run.metric, v)}" for split, v in run.scores.items())
    epochs = f"{len(run.rows)} of {settings.get('epochs', '?')}"
    if result:
        epochs = f"{result['epochs']}, the best is {result['best_epoch']}"
    seconds = [row["seconds"] for row in run.rows if isinstance(row.get("seconds"), int | float)]
    told = {
        "state": run.state,
        "data": str(settings.get("data", "")),
        "model": _model(settings),
        "strategy": f"{result.get('strategy') or settings.get('strategy', '')}, {run.ranks} rank"
        + ("s" if run.ranks > 1 else ""),
        run.metric: scores,
        **_further_scores(run),
        "columns used": shortened(run.columns, _MOST_COLUMNS) if run.columns else "",
        "edge columns used": _edge_columns(run),
        "epochs": epochs,
        "seconds per epoch": number_text(statistics.median(seconds))
        + predicted(run, lambda told: f"{number_text(told['seconds'])}")
        if seconds
        else "",
        "sent between ranks": f"{sum(result.get('bytes_sent', {}).values()) / _MIB:,.1f} MiB"
        if result
        else "",
        "peak memory": f"{max(result.get('peak_mb') or [0]):,.0f} MiB on one rank"
        + predicted(run, lambda told: f"{sum(told['memory'].values()) / _MIB:,.0f} MiB")
        if result
        else "",
        "lossy": what_was_lossy(run),
        "more ranks?": would_more_ranks_help(run),
        **((result.get("bill") or {}).get("rows", {})),
        "damaged lines": f"{run.damaged} of metrics.jsonl, left out" if run.damaged else "",
    }
    return {name: str(value) for name, value in told.items() if value}


def _curves(runs: Sequence[ToldRun]) -> str:
    several = len(runs) > 1
    losses, scores, times = [], [], []
    for number, run in enumerate(runs):
        colour, name = number % NUM_COLOURS, run.name if several else ""
        losses.append(Series(name, _points(run, "loss"), colour))
        # The first epoch, in which kernels are compiled or loaded, would hide all others.
        times.append(Series(name or "an epoch", _points(run, "seconds", 1), colour))
        if not several:
            times.append(Series("of it, rank 0 waits", _points(run, "waiting", 1), colour + 1))
        for place, split in enumerate(_SPLITS):
            if several and split != "val":
                continue
            factor = 100 if run.is_share else 1
            found = tuple(
                (float(row["epoch"]), factor * of[split])
                for row in run.rows
                if split in (of := scores_of(row))
            )
            scores.append(Series(f"{name} {split}".strip(), found, colour if several else place))
    unit = " (%)" if runs[0].is_share else ""
    drawn = [
        ("Loss", line_plot(losses, title="Loss by epoch", x_name="epoch", y_name="loss")),
        (
            "Score",
            line_plot(
                scores, title="Score by epoch", x_name="epoch", y_name=f"{runs[0].metric}{unit}"
            ),
        ),
        (
            "Time, without the first epoch",
            line_plot(
                times,
                title="Seconds by epoch, from the second on",
                x_name="epoch",
                y_name="seconds",
            ),
        ),
    ]
    return section("Epochs", figures(drawn))


def _points(run: ToldRun, name: str, rows_from: int = 0) -> tuple[tuple[float, float], ...]:
    found = ((row["epoch"], row.get(name)) for row in run.rows[rows_from:])
    return tuple((float(at), float(v)) for at, v in found if isinstance(v, int | float))


def _of_ranks(run: ToldRun, *, named: bool) -> str:
    result = run.result
    seconds, peaks = result.get("rank_seconds") or {}, result.get("peak_mb") or []
    times = {
        f"rank {rank}": {name: of[rank] for name, of in seconds.items()}
        for rank in range(len(peaks))
    }
    exact = table(
        ["", *seconds], [[rank, *map(number_text, of.values())] for rank, of in times.items()]
    )
    by_rank = stacked_bars(times, title="Seconds by phase and rank", x_name="seconds")
    drawn = [
        ("Time of each rank", by_rank + as_details(exact) if by_rank else ""),
        ("Time by phase, rank 0", _phases(result.get("phases") or {})),
        ("Memory of each rank", _memory(peaks, _budget(run))),
        ("Sent between ranks", _sent(result.get("bytes_sent") or {})),
        ("Who sends rows to whom", _traffic(result.get("traffic") or [])),
        ("Widths of messages", _widths(result.get("widths") or [])),
        ("Rows kept from epoch to epoch", _kept(result.get("kept") or [])),
    ]
    return section(f"Ranks of {run.name}" if named else "Ranks", figures(drawn))


def _phases(seconds: dict[str, float]) -> str:
    rows = {name: {"": spent} for name, spent in seconds.items()}
    return stacked_bars(rows, title="Seconds by phase of the whole run", x_name="seconds")


def _memory(peaks: Sequence[float], budget: float | None) -> str:
    rows = {f"rank {rank}": {"": mb} for rank, mb in enumerate(peaks)}
    unit = "MiB" if budget is None else "MiB; the line is --memory"
    return stacked_bars(rows, title="Peak memory by rank", x_name=unit, mark=budget)


def _sent(by_purpose: dict[str, int]) -> str:
    order = sorted(by_purpose.items(), key=lambda item: -item[1])
    rows = {PURPOSES.get(name, name): {"": sent / _MIB} for name, sent in order if sent}
    return stacked_bars(rows, title="Bytes by purpose", x_name="MiB in all")


def _traffic(rows: Sequence[Sequence[float]]) -> str:
    if not 1 < len(rows) <= _MOST_RANKS_OF_A_MATRIX:
        return ""
    return matrix_plot(
        rows,
        title="Bytes of rows between ranks",
        rows_are="from rank",
        tell=lambda i, j: f"from rank {i} to rank {j}: {rows[i][j] / _MIB:,.2f} MiB",
    )


def _budget(run: ToldRun) -> float | None:
    """Return the MiB that a rank may take, where that was told."""
    try:
        return read_bytes(str(run.settings["memory"])) / _MIB
    except (KeyError, ConfigError):
        return None


_WAYS = {"there": "rows", "back": "gradients"}


def _places(found: Sequence[dict[str, Any]]) -> dict[tuple[int, str], str]:
    """Return what to call each exchange and direction: its layer, where that is known."""
    ways = {(one["exchange"], one["direction"]): one.get("name", "") for one in found}
    places = {}
    for (exchange, direction), name in ways.items():
        same = [key for key, other in ways.items() if other == name and key[1] == direction]
        number = f"exchange {exchange + 1}"
        called = f"{name}, {number}" if name and len(same) > 1 else name or number
        places[exchange, direction] = f"{called}, {_WAYS.get(direction, direction)}"
    return places


def _widths(found: Sequence[dict[str, Any]]) -> str:
    """Return how many rows travelled at which width, by layer, direction and epoch."""
    if not found:
        return ""
    places = _places(found)
    used = {bits for one in found for bits, count in one["rows"].items() if count}
    rows = {
        f"epoch {one['epoch']}: {places[one['exchange'], one['direction']]}": {
            _bits(bits): float(count) for bits, count in one["rows"].items() if bits in used
        }
        for one in found
    }
    told = [
        [name, *(f"{count:,.0f}" for count in counts.values()), _mean_bits(one["rows"])]
        for (name, counts), one in zip(rows.items(), found, strict=True)
    ]
    unsent = (
        " At 0 bits nothing is sent: the row that was kept is read again, and other rows have its "
        "share of --wire-bits, its two scales included."
    ) * ("0" in used)
    words = (
        "<p>Before the first epoch told here every row travels at 8 bits, from then on at the "
        "width last chosen for it. Rows of fewer than 10 columns travel whole and are not "
        f"counted here.{unsent}</p>"
    )
    head = ["", *next(iter(rows.values())), "mean bits"]
    bars = stacked_bars(rows, title="Rows by width and layer", x_name="rows of all ranks")
    return words + bars + as_details(table(head, told))


def _bits(number: str) -> str:
    return f"{number} bit" if number == "1" else f"{number} bits"


def _mean_bits(rows: dict[str, int]) -> str:
    total = sum(rows.values())
    mean = sum(float(bits) * count for bits, count in rows.items()) / total if total else 0.0
    return f"{mean:.2f}"


def _kept(found: Sequence[dict[str, Any]]) -> str:
    """Return the rows that both ends of exchanges keep, of all ranks."""
    places = _places(found)
    rows = [
        [places[one["exchange"], one["direction"]], f"{one['rows']:,}", _size(one["bytes"])]
        for one in found
    ]
    if len(found) > 1:
        every = [sum(one[name] for one in found) for name in ("rows", "bytes")]
        rows.append(["all", f"{every[0]:,}", _size(every[1])])
    words = "<p>A row counts on each rank that keeps it: on its own and on those that read it.</p>"
    return words + table(["layer", "rows", "memory of all ranks"], rows) if rows else ""


def _size(num_bytes: float) -> str:
    return f"{num_bytes / _MIB:,.1f} MiB" if num_bytes >= _MIB else f"{num_bytes / 1024:,.1f} KiB"


def _cut(run: ToldRun, *, named: bool) -> str:
    quality = run.quality
    if quality is None or quality.num_parts < 2:
        return ""
    rows = [
        [f"{part}", *(f"{counts[part]:,}" for counts in _counts(quality))]
        for part in range(quality.num_parts)
    ]
    head = ["part", "nodes", "edges", "training nodes", "rows from others"]
    told = (
        f"<p>{quality.cut_edges:,} edges are cut ({100 * quality.cut_fraction:.1f} %); the largest "
        f"part has {quality.node_balance:.2f} times the mean of nodes and "
        f"{quality.edge_balance:.2f} times that of edges.</p>"
    )
    title = f"Cut of {run.name}" if named else "Cut"
    return section(title, told + table(head, rows))


def _counts(quality: Any) -> tuple[tuple[int, ...], ...]:
    return quality.nodes, quality.edges, quality.training, quality.halo_rows


def _settings(runs: Sequence[ToldRun]) -> str:
    names = sorted({name for run in runs for name in run.settings})
    values = {name: [_plain(run.settings.get(name)) for run in runs] for name in names}
    differing = [name for name in names if len(set(values[name])) > 1]
    head = ["", *(run.name for run in runs)]
    told = ""
    if len(runs) > 1:
        shown = [[name, *values[name]] for name in differing if name != "out"]
        told = f"<h3>Settings that differ</h3>{table(head, shown)}" if shown else ""
    everything = table(head, [[name, *values[name]] for name in names])
    machines = "".join(
        f"<p>{escape(run.name)}: {escape(_plain(run.machine))}</p>" for run in runs if run.machine
    )
    return section("Settings", told + as_details(everything + machines, "All settings, machine"))


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
