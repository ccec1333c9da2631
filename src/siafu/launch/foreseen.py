"""What is predicted of a run whose data is cut: to choose, for its page, when memory ends."""

import datetime
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from siafu.comm import choose_device
from siafu.config import RunConfig
from siafu.errors import SiafuError
from siafu.files import write_text_atomically
from siafu.graph import folder_kind
from siafu.launch.statistics import spec_of, statistics_of_parts
from siafu.nn import CARDS
from siafu.partitioning import open_parts
from siafu.plan import (
    EXACT,
    TYPICAL,
    Link,
    Machine,
    Outlook,
    Setting,
    foresee,
    kept_machine,
    plan_choices,
)
from siafu.record import RunFolder
from siafu.strategy import PRESETS

ON_RAY = Link(bytes_per_second=1.25e9, latency_seconds=5e-5)
"""Between nodes of Ray, whose ranks have not started yet: 10 Gbit."""


FAILURES = (OSError, ValueError, LookupError, TypeError, ArithmeticError, RuntimeError, SiafuError)
"""What a forecast may end with: nobody is kept from training by one."""


def setting_of(
    config: RunConfig,
    parts: Path,
    *,
    rank: int | None = None,
    link: Link | None = None,
    memory: int | None = None,
) -> Setting | None:
    """Return what predictions start from; None of models and data that none are made for.

    A rank's part may stand for the largest. Costs of work are those that were measured here once,
    or typical ones: nobody waits for that now.
    """
    if config.model not in CARDS or folder_kind(parts) != "parts":
        return None
    opened = open_parts(parts)
    graph = statistics_of_parts(opened, rank if config.ranks == opened.num_parts else None)
    return Setting(
        config=config.resolved(),
        spec=spec_of(config, graph),
        statistics=graph,
        machine=_machine(config),
        link=ON_RAY if config.launcher == "ray" else link,
        ranks_per_host=1 if link is None else int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        memory=memory,
    )


def _machine(config: RunConfig) -> Machine:
    with suppress(SiafuError):  # of a device that is not here
        device = choose_device(config.device, 0).type
        found = kept_machine(device, datetime.datetime.now(datetime.UTC).date())
        if found is not None:
            return found
    return TYPICAL.model_copy(update={"cores": len(os.sched_getaffinity(0))})


def outlook_of(at: Setting, config: RunConfig) -> Outlook:
    """Return the forecast of the strategy that settings name, in its most stages."""
    strategy = config.chosen
    if strategy.stages == "auto":
        strategy = strategy.with_choices(stages=config.ranks)
    return foresee(at, config.strategy, strategy, config.ranks)


def note_forecast(
    folder: RunFolder, config: RunConfig, parts: Path, link: Link | None = None
) -> None:
    """Write what is predicted of a run beside it, so that its page can compare.

    Whether more ranks would help is what `siafu plan` tells: of exact runs by the best of all exact
    strategies.
    """
    folder.forecast.unlink(missing_ok=True)
    with suppress(*FAILURES):
        at = setting_of(config, parts, link=link)
        if at is None or config.strategy not in PRESETS:
            return
        now = outlook_of(at, config)
        names = EXACT if now.is_exact else (config.strategy,)
        plan = plan_choices(at, [config.ranks, 2 * config.ranks], names)
        twice = min(
            (one for one in plan.outlooks if one.ranks > config.ranks),
            key=lambda one: one.seconds,
        )
        told: dict[str, Any] = {
            "memory": now.memory,
            "bytes": now.traffic.training,
            "seconds": now.seconds,
            "more": {
                "ranks": twice.ranks,
                "helps": plan.enough_ranks() > config.ranks,
                "times": twice.seconds / max(1e-12, now.seconds),
                "exchange": twice.phases.exchange / max(1e-12, twice.seconds),
            },
        }
        write_text_atomically(folder.forecast, json.dumps(told, indent=1))
