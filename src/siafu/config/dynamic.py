"""Settings that only runs on dynamic graphs have a use for, and those that only others have."""

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

DYNAMIC_FIELDS = (
    "window",
    "columns",
    "time_unit",
    "edge_life",
    "partial_window",
    "time_block",
    "time_exchange",
    "vertex_parts",
    "bandwidth",
    "aggregate",
    "head",
    "lags",
    "class_weights",
)
"""Settings without a meaning on a static graph."""

MINIBATCH_FIELDS = (
    "fanout",
    "batch_size",
    "seed_order",
    "step_minibatches",
    "sample_replace",
    "sample_weighted",
    "hot_rows",
    "feature_bits",
)
"""Settings without a meaning where nothing is sampled."""

STATIC_FIELDS = (
    "strategy",
    "stages",
    "memory",
    "recompute",
    "prune",
    "overlap",
    "heads",
    "edge_features",
    "input_dropout",
    "residual",
    "jk",
    "metric",
    "keep",
    "normalize_features",
    "partition",
    "macrobatch",
    *MINIBATCH_FIELDS,
    "inference",
    "exclude_targets",
)
"""Settings without a meaning on a dynamic graph."""
