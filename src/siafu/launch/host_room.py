"""Whether the ranks of a run fit this machine: told before data is read, and before they start."""

import os
from contextlib import suppress
from pathlib import Path

from siafu.comm import choose_device
from siafu.config import RunConfig
from siafu.errors import BudgetError
from siafu.launch.foreseen import FAILURES, outlook_of, setting_of
from siafu.memory import free_bytes
from siafu.options import read_bytes
from siafu.plan import PROCESS_BYTES, shown_bytes
from siafu.plan.memory import PROCESS
from siafu.plan.outlook import FORKED_SHARE

LEAST_BYTES = round(FORKED_SHARE * PROCESS_BYTES)
"""Of a rank that was forked from a process with torch, before it opens its part."""
_REFUSED = 1.25
"""Times what is free: less than that may fit after all, as on a GPU."""


def check_budget_of_process(config: RunConfig) -> None:
    """Raise where a rank may not even hold what Python and torch take; on a GPU they are not of it.

    The hosts of Ray's ranks may have GPUs that this one lacks.
    """
    if config.memory is None or config.launcher == "ray":
        return
    if choose_device(config.device, 0).type == "cpu" and read_bytes(config.memory) < PROCESS_BYTES:
        raise BudgetError(
            "The memory budget is too small for any rank.",
            seen=f"--memory {config.memory}; Python and torch alone take about "
            f"{shown_bytes(PROCESS_BYTES)} of a rank, before it opens its part",
            fix="give --memory 1GB; a run that needs more is refused with the least that it needs",
        )


def check_host(config: RunConfig, need: int = LEAST_BYTES, told: str = "at least") -> None:
    """Raise where so many bytes for each rank that starts here are far more than are free."""
    if config.ranks == 1 or config.launcher == "ray" or "LOCAL_WORLD_SIZE" in os.environ:
        return
    free = free_bytes()
    if config.ranks * need <= _REFUSED * free:
        return
    fits = max(1, min(free // need, len(os.sched_getaffinity(0))))
    budget = "" if told == "at least" else f", --memory {free // config.ranks // 10**6}MB"
    raise BudgetError(
        "So many ranks do not fit in the memory of this machine.",
        seen=f"--ranks {config.ranks}: {shown_bytes(need)} each {told}, "
        f"{shown_bytes(config.ranks * need)} in all; {shown_bytes(free)} are free",
        fix=f"use --ranks {fits}{budget}, or more machines (torchrun, --launcher ray)",
    )


def check_host_with_parts(config: RunConfig, parts: Path) -> None:
    """Raise where that is so with what training on the parts is predicted to take.

    A run with `--memory` chooses what stays within it.
    """
    if config.ranks == 1 or config.memory is not None:
        return
    need = 0
    with suppress(*FAILURES):  # nobody is kept from training by a forecast that fails
        if choose_device(config.device, 0).type == "cpu" and (at := setting_of(config, parts)):
            kinds = outlook_of(at, config).memory
            need = LEAST_BYTES + sum(size for kind, size in kinds.items() if kind != PROCESS)
    check_host(config, need, "predicted")
