"""What a run came to, for people: scores, loss, traffic, memory, how it was trained."""

from pathlib import Path
from typing import Any

from siafu.cli.show import size
from siafu.comm.meter import PURPOSES
from siafu.record import brief, counted, percent, shortened, shown_score, unpredicted

_SHOWN_CLASSES = 10


def run_rows(result: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the rows of a finished run, by name."""
    return dynamic_rows(result, path) if "task" in result else static_rows(result, path)


def static_rows(result: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return what a run on a static graph came to, by name."""
    scores = score_of(result)
    return {
        result["metric"]: f"{scores}  ({_epochs(result)})"
        if scores
        else "not scored (--inference none)",
        **_other_scores(result),
        **target_rows(result),
        **_common(result),
        **_quality(result.get("quality") or {}),
        "strategy": f"{result['strategy']} ({result['exactness']}), "
        f"{counted(result['ranks'], 'rank')}, {_told(result['choices'], result['exactness'])}",
        **_sampled(result.get("sampling", {})),
        **_piped(result.get("pipeline", {})),
        **((result.get("bill") or {}).get("rows", {})),
        "run": str(path),
    }


def _other_scores(result: dict[str, Any]) -> dict[str, str]:
    """Return the scores beside the one that counts."""
    found = result.get("scores") or {}
    names = [name for name in next(iter(found.values()), {}) if name != result["metric"]]
    return {
        name: "  ".join(f"{split} {shown_score(name, row[name])}" for split, row in found.items())
        for name in names
    }


def _quality(quality: dict[str, Any]) -> dict[str, str]:
    """Return how far probabilities are from what came true, and where it is decided."""
    test, rows = quality.get("test", {}), {}
    if "calibration" in test:
        rows["calibration"] = f"{percent(test['calibration']['error'])} off (test)"
    if "classes" in test and len(test["classes"]["f1"]) <= _SHOWN_CLASSES:
        names = quality.get("names") or range(len(test["classes"]["f1"]))
        pairs = zip(names, test["classes"]["f1"], strict=True)
        rows["f1 by class"] = ", ".join(f"{name} {percent(f1)}" for name, f1 in pairs) + " (test)"
    classes, silent = unpredicted({"quality": quality})
    if silent:
        rows["never predicted"] = f"{len(silent)} of {classes} classes: {shortened(silent)} (test)"
    if quality.get("threshold") is not None:
        rows["threshold"] = f"{quality['threshold']:.4g}"
    return rows


def target_rows(result: dict[str, Any]) -> dict[str, str]:
    """Return the test scores of each of several numeric targets."""
    quality = result.get("quality") or {}
    test, names = quality.get("test", {}), quality.get("names") or []
    errors = [name for name in ("rmse", "mae", "r2") if name in test]
    if not errors or not 1 < len(names) <= _SHOWN_CLASSES:
        return {}
    return {
        f"{target}, test": "  ".join(
            f"{name} {shown_score(name, test[name][place])}" for name in errors
        )
        for place, target in enumerate(names)
    }


def dynamic_rows(result: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return what a run on a dynamic graph came to, by name."""
    choices = result["choices"]
    names = list(next(iter(result["scores"].values()), {}))
    scores = {
        name: "  ".join(
            f"{s} {shown_score(name, row[name])}" for s, row in result["scores"].items()
        )
        for name in names
    }
    exchanges = ", ".join(dict.fromkeys(choices["exchanges"])) or "none"
    return {
        "task": f"{result['task']}, {counted(choices['snapshots'], 'snapshot')}, "
        f"{choices['train_snapshots']} trained on",
        **scores,
        "best epoch": _epochs(result).removeprefix("epoch "),
        **_common(result),
        "strategy": f"{result['strategy']} ({result['exactness']}), "
        f"{counted(result['ranks'], 'rank')}, "
        f"{_groups(choices)}{counted(choices['time_blocks'], 'time block')}, "
        f"exchange along time: {exchanges}{_told_of_rows(choices)}",
        "run": str(path),
    }


def score_rows(scores: dict[str, dict[str, float]]) -> dict[str, str]:
    """Return the scores of each split, test first."""
    order = [("test", "test"), ("val", "validation"), ("train", "training")]
    return {
        words: "  ".join(f"{name} {shown_score(name, v)}" for name, v in scores[split].items())
        for split, words in order
        if split in scores
    }


def score_of(row: dict[str, Any]) -> str:
    """Return the scores of a result, or of a row of metrics, by split."""
    if "score" not in row:
        row = {
            "score": {s: next(iter(found.values())) for s, found in row["scores"].items()},
            "metric": next(iter(next(iter(row["scores"].values()), {})), ""),
        }
    metric = row.get("metric") or ""
    return "  ".join(f"{s} {shown_score(metric, value)}" for s, value in row["score"].items())


def _epochs(result: dict[str, Any]) -> str:
    return f"epoch {result['best_epoch']} of {result['epochs']}"


def _common(result: dict[str, Any]) -> dict[str, str]:
    ended = {"ended": result["ended"]} if "ended" in result else {}
    return {
        **ended,
        "loss": f"{result['losses'][0]:.4f} to {result['losses'][-1]:.4f}",
        "epoch": f"{result['seconds_per_epoch']:.3g} s (median)",
        "sent": _sent(result["bytes_sent"], result["ranks"]),
        "evaluation": _evaluated(result.get("evaluation")),
        "peak memory": _peaks(result),
        **_time(result.get("phases", {})),
    }


def _peaks(result: dict[str, Any]) -> str:
    """Return the peak of each rank; of GPUs, with what torch had taken of them."""
    taken = result.get("reserved_mb") or []
    beside = f" ({', '.join(f'{mb:.0f} MiB' for mb in taken)} taken by torch)" if taken else ""
    return ", ".join(f"{mb:.0f} MiB" for mb in result["peak_mb"]) + beside


def _time(phases: dict[str, float]) -> dict[str, str]:
    """Return the time of all, and of each phase that took a share worth a word."""
    total = sum(phases.values())
    shown = sorted((-s, name) for name, s in phases.items() if s >= 0.01 * total)
    parts = ", ".join(f"{name} {brief(-seconds)}" for seconds, name in shown)
    return {"time": f"{brief(total)}: {parts}"} if phases else {}


def _evaluated(spent: dict[str, Any] | None) -> str:
    """Return what scoring took of the run; its bytes are among those sent."""
    if not spent or not spent["passes"]:
        return "none" if spent else "not counted"
    times = "once" if spent["passes"] == 1 else f"{spent['passes']} times"
    sent = f", {size(spent['bytes_sent'])} of what was sent" if spent["bytes_sent"] else ""
    kind = spent.get("kind", "exact")
    by = "" if kind == "exact" else f" by {kind} and at the end by all"
    return f"{times}{by}, {spent['seconds']:.3g} s in all{sent}"


def _sent(bytes_sent: dict[str, int], ranks: int) -> str:
    total = sum(bytes_sent.values())
    if not total:
        return "nothing" if ranks > 1 else "nothing: one rank has nobody to send to"
    order = sorted(bytes_sent.items(), key=lambda item: -item[1])
    told = [f"{PURPOSES.get(name, name)} {size(count)}" for name, count in order if count]
    return f"{size(total)} between ranks in all: {', '.join(told)}"


def _groups(choices: dict[str, Any]) -> str:
    count = choices.get("node_parts", choices.get("vertex_parts", 1))
    return f"{count} groups of nodes, " if count > 1 else ""


def _told_of_rows(choices: dict[str, Any]) -> str:
    """Return how rows along time are quantised, also where that was asked for in vain."""
    if choices["wire"] == 32:
        return ""
    if not choices["rounded"]:
        return (
            ", nothing quantised (states travel whole, and a single stretch of time sends no rows)"
        )
    if "wire_bits" in choices:
        return f", rows quantised to {_mean_bits(choices)} on average ({choices['wire']})"
    return f", rows {_width(choices['wire'])}"


def _width(wire: int | str) -> str:
    return f"as {wire}" if isinstance(wire, str) else f"quantised to {counted(wire, 'bit')}"


def _told(choices: dict[str, Any], exactness: str) -> str:
    """Return the number of stages, every choice that is on, and how messages are quantised."""
    if choices.get("unit") == "macrobatch":
        cached = ", first layer's input aggregated once" if choices["input_cache"] else ""
        return f"macrobatches of {counted(choices['macrobatch'], 'step')}{cached}"
    if choices.get("unit") == "interval":
        return _told_of_intervals(choices)
    told = [counted(choices["stages"], "stage")] if "stages" in choices else []
    told += [
        name.replace("_", " ")
        for name, value in choices.items()
        if value is True and name != "changes"
    ]
    if 0 < choices.get("recompute", 0) < 1:
        told.append(f"{choices['recompute']:.0%} of rows fetched again in backward")
    if "offload" in choices:
        told.append(f"{choices['offload'] / 1e9:.2f} GB of rows in the host's memory")
    # Of one rank nothing was rounded or late, whatever was asked for.
    return ", ".join(told if exactness == "exact" else [*told, *_told_of_messages(choices)])


def _told_of_messages(choices: dict[str, Any]) -> list[str]:
    """Return what was lossy between ranks."""
    told, wire = [], choices.get("wire", 32)
    what = "changes of rows" if choices.get("changes") else "messages"
    if "wire_bits" in choices:
        told.append(f"{what} quantised to {_mean_bits(choices)} on average ({wire})")
    elif wire == 0:
        told.append(f"rows of others renewed every {counted(choices['wire_period'], 'epoch')}")
    elif wire != 32:
        told.append(f"{what} {_width(wire)}")
    if "boundary" in choices:
        told.append(f"{100 * choices['boundary']:g} % of the rows of others, drawn by lot")
    if choices.get("staleness"):
        told.append("rows of others an epoch old")
    return told


def _told_of_intervals(choices: dict[str, Any]) -> str:
    told = [f"{counted(choices['intervals'], 'interval')} per rank", f"pool: {choices['pool']}"]
    if choices["staleness"] or choices["gather"] == "latest":
        oldest = choices["staleness"] + int(choices["gather"] == "latest")
        told.append(f"rows up to {counted(oldest, 'epoch')} old")
    if choices["pool_bits"] != 32:
        told.append(f"rows to the pool quantised to {choices['pool_bits']} bits")
    return ", ".join(told if choices["overlap"] else [*told, "taking turns"])


def _piped(pipeline: dict[str, Any]) -> dict[str, str]:
    """Return a line on what became of the tasks of a pipeline, where there is one."""
    if not pipeline:
        return {}
    told = [f"{counted(pipeline['requests'], 'task')}, {size(pipeline['sent_bytes'])} to workers"]
    told += [f"{pipeline[name]} {name}" for name in ("relaunched", "failures") if pipeline[name]]
    if pipeline["degraded"]:
        ranks = counted(pipeline["degraded"], "rank")
        told.append(f"given up on {ranks}, which went on without it")
    by_age = pipeline["rows_read_by_age"]
    if sum(by_age[1:]):
        told.append(f"{percent(sum(by_age[1:]) / sum(by_age))} of rows read were older")
    return {"pool": ", ".join(told)}


def _sampled(sampling: dict[str, Any]) -> dict[str, str]:
    """Return a line on how neighbours were drawn, where they were."""
    if not sampling:
        return {}
    told = [f"fan-out {','.join(map(str, sampling['fanout']))}"]
    steps = counted(sampling["steps"], "step")
    told.append(f"{steps} per epoch of {sampling['batch_size']} per rank")
    told += ["with replacement"] if sampling["replace"] else []
    told += ["by weight"] if sampling["weighted"] else []
    told += ["rows on disk"] if sampling["on_disk"] else []
    if "rounding_error" in sampling:
        told.append(f"features rounded to 8 bits (error {100 * sampling['rounding_error']:.2g} %)")
    if "hot_hits" in sampling:
        told.append(f"{percent(sampling['hot_hits'])} of far rows kept")
    return {"sampled": ", ".join(told)}


def _mean_bits(choices: dict[str, Any]) -> str:
    bits = float(choices["wire_bits"])
    return f"{bits:g} bit" if bits == 1 else f"{bits:g} bits"
