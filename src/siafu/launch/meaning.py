"""From the settings of a run to the kind of run it is, by which each setting has a meaning."""

from siafu.config import Kind, RunConfig, check_scopes
from siafu.plan import named_strategy


def check_meaning(config: RunConfig, *, over_time: bool, task: str | None) -> None:
    """Raise where a setting would be passed over in silence; `task` None: only the data tells."""
    strategy = named_strategy(config)
    kind = Kind(
        config=config.resolved(),
        over_time=over_time,
        unit=strategy.unit,
        pool=strategy.pool if strategy.unit == "interval" else "",
        assigns_widths=strategy.assigns_widths,
        lags=strategy.exactness == "bounded",
        task=task,
    )
    check_scopes(kind, config)
