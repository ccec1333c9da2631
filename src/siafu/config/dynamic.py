"""Settings that only runs on dynamic graphs have a use for, and those that only others have."""

from typing import Any

DYNAMIC_DEFAULTS: dict[str, dict[str, Any]] = {
    "tm-gcn": {"hidden": 16, "lr": 0.01, "dropout": 0.0, "weight_decay": 0.0},
    "cd-gcn": {"hidden": 16, "lr": 0.01, "dropout": 0.0, "weight_decay": 0.0},
    "wd-gcn": {"hidden": 16, "lr": 0.01, "dropout": 0.0, "weight_decay": 0.0},
    "evolvegcn-o": {"hidden": 32, "lr": 0.005, "dropout": 0.0, "weight_decay": 0.0},
    "evolvegcn-h": {"hidden": 32, "lr": 0.005, "dropout": 0.0, "weight_decay": 0.0},
    "gcrn": {"hidden": 16, "lr": 0.01, "dropout": 0.0, "weight_decay": 0.0},
}
"""The built-in dynamic models and what they are trained with unless asked otherwise."""

DYNAMIC_FIELDS = (
    "window",
    "edge_life",
    "time_block",
    "time_exchange",
    "bandwidth",
    "lags",
    "class_weights",
)
"""Settings without a meaning on a static graph."""

STATIC_FIELDS = (
    "strategy",
    "stages",
    "memory",
    "recompute",
    "prune",
    "wire",
    "wire_bits",
    "wire_period",
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
    "fanout",
    "batch_size",
    "seed_order",
    "step_minibatches",
    "sample_replace",
    "sample_weighted",
    "hot_rows",
    "feature_bits",
    "inference",
    "exclude_targets",
)
"""Settings without a meaning on a dynamic graph."""
