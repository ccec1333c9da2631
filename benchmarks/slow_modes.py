"""What `benchmarks.slow_network` compares: the settings of each contestant."""

from typing import Any

HIDDEN = 256
COMMON = {
    "hidden": HIDDEN,
    "layers": 3,
    "norm": "layer",
    "dropout": 0.5,
    "input_dropout": 0.0,
    "lr": 0.01,
    "weight_decay": 0.0,
    "threads": 1,
}
PLAIN = {"overlap": False, "once_per_host": False}
ADAPTIVE = {"strategy": "adaqp", "wire_bits": 4.0}
MODES: dict[str, dict[str, Any]] = {
    "fp32": PLAIN,
    "fp32 overlap": {},
    "8 bits": {"wire": 8, **PLAIN},
    "4 bits": {"wire": 4, **PLAIN},
    "adaptive overlap": ADAPTIVE,
    "adaptive overlap cache": {**ADAPTIVE, "input_cache": True},
    "4 bits changes": {"wire": 4, "changes": True},
    "2 bits changes": {"wire": 2, "changes": True},
    "1 bit changes": {"wire": 1, "changes": True},
    "adaptive changes": {**ADAPTIVE, "changes": True, "wire_bits": 1.0},
    "2 bits": {"wire": 2},
    "late": {"staleness": 1},
    "late 2 bits changes": {"wire": 2, "changes": True, "staleness": 1},
    "boundary first": {"once_per_host": False},
    "once per host": {"overlap": False},
    "adaptive": {**ADAPTIVE, **PLAIN},
    "random": {**ADAPTIVE, "wire": "random", **PLAIN},
    "adaptive 2.5": {**ADAPTIVE, "wire_bits": 2.5, **PLAIN},
    "random 2.5": {**ADAPTIVE, "wire_bits": 2.5, "wire": "random", **PLAIN},
    "changes": {"wire": 2, "changes": True, **PLAIN},
    "all": {"wire": 2, "changes": True},
    "bf16": {"precision": "bf16", **PLAIN},
    "all cached": {"wire": 2, "changes": True, "input_cache": True},
    "4 bits overlap": {"wire": 4},
    "random overlap": {**ADAPTIVE, "wire": "random"},
    "staleness": {"staleness": 1, "once_per_host": False},
}
PAPER_MODES = (*tuple(MODES)[:6], "4 bits overlap")
"""What is measured where nothing else is asked for."""
ACCURACY_MODES = ("fp32 overlap", "4 bits overlap", "adaptive overlap", "random overlap")
"""Widths are compared alike in all else: overlap, and once per host."""

ALIKE = {"boundary first": "fp32", "once per host": "fp32", "all": "changes"}
"""Modes that compute what another does, so that one of them tells the epochs of both."""


def settings(job: dict[str, Any], model: str, mode: str) -> dict[str, Any]:
    """Return the settings of one contestant."""
    chosen = MODES[mode]
    extra = {"wire_period": job["period"]} if chosen.get("strategy") == "adaqp" else {}
    threads = {"threads": job.get("threads", COMMON["threads"])}
    common = {**COMMON, "dropout": job["dropout"], "lr": job["lr"]}
    return {"data": job["parts"], "model": model, **common, **threads, **chosen, **extra}
