"""One unit for scores everywhere: shares as percentages, losses and errors as plain numbers."""

PLAIN = frozenset({"loss", "mse", "mae", "rmse", "huber", "r2", "log-loss", "brier"})
"""Scores that are no share of anything."""

LOWER_IS_BETTER = PLAIN - {"r2"}
"""Losses and errors."""


def percent(value: float) -> str:
    """Return a fraction as a percentage."""
    return f"{100 * value:.2f} %"


def shown_score(metric: str, value: float) -> str:
    """Return a share as a percentage, and a loss or an error as the number it is."""
    return f"{value:.4f}" if metric.lower() in PLAIN else percent(value)
