"""The built-in models of dynamic graphs and what they are trained with."""

from typing import Any

_PLAIN: dict[str, Any] = {"dropout": 0.0, "weight_decay": 0.0, "aggregate": "in"}
DYNAMIC_DEFAULTS: dict[str, dict[str, Any]] = {
    "tm-gcn": {**_PLAIN, "hidden": 16, "lr": 0.01, "aggregate": "out"},
    "cd-gcn": {**_PLAIN, "hidden": 16, "lr": 0.01},
    "wd-gcn": {**_PLAIN, "hidden": 16, "lr": 0.01},
    "evolvegcn-o": {**_PLAIN, "hidden": 32, "lr": 0.005},
    "evolvegcn-h": {**_PLAIN, "hidden": 32, "lr": 0.005},
    "gcrn": {**_PLAIN, "hidden": 16, "lr": 0.01},
}
"""The built-in dynamic models and what they are trained with unless asked otherwise."""
