"""How a score is shown to people: one unit everywhere."""

_NOT_SHARES = ("mse", "mae", "rmse", "r2")
_MANY_DIGITS = 1000


def shown_score(metric: str, value: float) -> str:
    """Return a share as a percentage, and an error, or what a model explains, as the number."""
    if metric not in _NOT_SHARES:
        return f"{100 * value:.2f} %"
    return f"{value:.4f}" if abs(value) < _MANY_DIGITS else f"{value:,.1f}"
