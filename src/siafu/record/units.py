"""One unit for scores everywhere: shares as percentages, losses and errors as plain numbers."""

PLAIN = frozenset({"loss", "mse", "mae", "rmse", "huber", "r2", "log-loss", "brier"})
"""Scores that are no share of anything."""

LOWER_IS_BETTER = PLAIN - {"r2"}
"""Losses and errors."""
_MANY_DIGITS = 1000


def percent(value: float) -> str:
    """Return a fraction as a percentage."""
    return f"{100 * value:.2f} %"


def shown_score(metric: str, value: float) -> str:
    """Return a share as a percentage, and a loss or an error as the number it is."""
    if metric.lower() not in PLAIN:
        return percent(value)
    return f"{value:.4f}" if abs(value) < _MANY_DIGITS else f"{value:,.1f}"
