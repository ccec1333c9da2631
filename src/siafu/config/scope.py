"""Where each setting of a run has a meaning; elsewhere it is refused, never passed over."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from siafu.config.dynamic import DYNAMIC_DEFAULTS
from siafu.config.run import MODEL_DEFAULTS, RunConfig
from siafu.errors import ConfigError

ATTENTION_MODELS = ("gat", "gatv2", "transformer", "typed-gat")
EDGE_FEATURE_MODELS = ("gat", "gatv2", "transformer")
"""Built-in models that use the features of edges."""
_EVOLVING = ("evolvegcn-o", "evolvegcn-h")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """What a run is, as far as settings have a meaning by it."""

    config: RunConfig
    """Resolved."""
    over_time: bool
    unit: Literal["graph", "macrobatch", "interval"]
    pool: str
    assigns_widths: bool
    """Rows have widths of their own."""
    lags: bool
    """Rows may be older than an exact step's."""
    task: str | None
    """None where only the data tells."""

    @property
    def is_own(self) -> bool:
        """Whether the model is the user's."""
        return ":" in self.config.model

    @property
    def has_hidden_layer(self) -> bool:
        """Whether a layer of a built-in model is followed by another, or by a readout."""
        return self.config.layers > 1 or self.config.jk != "none"


@dataclass(frozen=True, slots=True)
class Scope:
    """Runs that a setting has a meaning for."""

    covers: Callable[[Kind], bool]
    elsewhere: str
    """Where it has none: ends the sentence `X has no meaning ...`."""
    remedy: str | None = None
    """What to add to a run so that it has one."""


STATIC = Scope(lambda kind: not kind.over_time, "on a dynamic graph")
OVER_TIME = Scope(lambda kind: kind.over_time, "on a static graph")
MINIBATCHES = Scope(
    lambda kind: kind.unit == "macrobatch",
    "where there are no minibatches",
    "add --strategy batchgnn",
)
NO_MINIBATCHES = Scope(lambda kind: kind.unit != "macrobatch", "where minibatches are drawn")
PIPELINE = Scope(
    lambda kind: kind.unit == "interval",
    "where no intervals are in a pipeline",
    "add --strategy dorylus",
)
NO_PIPELINE = Scope(lambda kind: kind.unit != "interval", "where intervals are in a pipeline")
SIMULATED = Scope(lambda kind: kind.pool == "simulated", "for this pool", "add --pool simulated")
LAMBDA = Scope(lambda kind: kind.pool == "aws-lambda", "for this pool", "add --pool aws-lambda")
RAY = Scope(
    lambda kind: "ray" in (kind.config.launcher, kind.pool),
    "where nothing runs on Ray",
    "add --launcher ray or --pool ray",
)
LAGGING = Scope(
    lambda kind: kind.lags,
    "where nothing lags that could stop lagging",
    "add --staleness 1 or --gather latest",
)
SCORED = Scope(
    lambda kind: kind.config.inference == "full",
    "where nothing is scored",
    "leave --inference none out",
)
WIDTHS = Scope(
    lambda kind: kind.assigns_widths, "where all rows have one width", "add --wire adaptive"
)
UNCUT_ROWS = Scope(
    lambda kind: not kind.over_time or kind.config.vertex_parts == 1,
    "between groups of nodes, whose rows travel whole",
    "leave --vertex-parts out",
)
BUILT_IN = Scope(
    lambda kind: not kind.is_own, "for a model of your own, which is taken as its class makes it"
)
HIDDEN_LAYER = Scope(
    lambda kind: kind.over_time or kind.is_own or kind.has_hidden_layer,
    "for a model of one layer",
    "use --layers 2 or more",
)
HIDDEN_WIDTH = Scope(
    lambda kind: kind.task == "link" or HIDDEN_LAYER.covers(kind),
    HIDDEN_LAYER.elsewhere,
    HIDDEN_LAYER.remedy,
)
ATTENTION = Scope(
    lambda kind: kind.config.model in ATTENTION_MODELS,
    "for a model without attention",
    f"use one of {', '.join(ATTENTION_MODELS)}",
)
EDGE_FEATURES = Scope(
    lambda kind: kind.config.model in EDGE_FEATURE_MODELS,
    "for a model that does not use the features of edges",
    f"use one of {', '.join(EDGE_FEATURE_MODELS)} (a model of your own gets them where its "
    "forward takes edge_attr)",
)
BANDED = Scope(
    lambda kind: kind.config.model == "tm-gcn",
    "for a model that averages over no band of snapshots",
    "use --model tm-gcn",
)
TEMPORAL = Scope(
    lambda kind: kind.config.model not in _EVOLVING,
    "for a model whose weights alone evolve, since no rows travel along time",
    f"use one of {', '.join(name for name in DYNAMIC_DEFAULTS if name not in _EVOLVING)}",
)
DROPOUT = Scope(
    lambda kind: kind.config.model not in _EVOLVING, "for EvolveGCN, which has no dropout"
)
NODES_CUT = Scope(
    lambda kind: not kind.over_time or kind.config.vertex_parts > 1,
    "on a dynamic graph whose nodes are not cut into groups",
    "add --vertex-parts 2",
)


LINKS = Scope(
    lambda kind: kind.task in (None, "link"),
    "where no edges are predicted",
    "add --task link (on a static graph with --strategy batchgnn)",
)
PAIRS = Scope(
    lambda kind: kind.task in (None, "link", "edge"),
    "where no pairs of nodes are judged",
    "add --task link or edge",
)
EDGE_CLASSES = Scope(
    lambda kind: kind.task in (None, "edge"),
    "where no classes of edges are learnt",
    "add --task edge",
)
SIGNAL = Scope(
    lambda kind: kind.task in (None, "signal"), "where no signal is predicted", "add --task signal"
)

_GROUPS: list[tuple[tuple[Scope, ...], str]] = [
    ((), "data model ranks task epochs seed layers lr weight_decay patience"),
    ((DROPOUT,), "dropout"),
    ((), "checkpoint_every undirected split device threads deadline launcher out"),
    ((STATIC,), "strategy stages memory recompute prune keep inference normalize_features"),
    ((STATIC,), "prices instance"),
    ((STATIC, SCORED), "metric"),
    ((SCORED,), "eval_every"),
    ((STATIC, NO_PIPELINE), "input_cache"),
    ((STATIC, NO_MINIBATCHES), "overlap"),
    ((STATIC, MINIBATCHES), "macrobatch fanout batch_size seed_order step_minibatches"),
    ((STATIC, MINIBATCHES), "sample_replace sample_weighted hot_rows feature_bits"),
    ((STATIC, LINKS), "exclude_targets"),
    ((LINKS,), "negatives eval_negatives"),
    (
        (
            STATIC,
            PIPELINE,
        ),
        "intervals staleness gather pool pool_workers pool_bits trace",
    ),
    ((STATIC, PIPELINE, LAGGING, SCORED), "exact_from"),
    ((STATIC, PIPELINE, SIMULATED), "cloud"),
    ((STATIC, PIPELINE, LAMBDA), "lambda_function lambda_endpoint pool_address"),
    ((RAY,), "ray_address"),
    ((UNCUT_ROWS,), "wire"),
    ((WIDTHS, UNCUT_ROWS), "wire_bits wire_period"),
    ((HIDDEN_WIDTH,), "hidden"),
    ((STATIC, ATTENTION, HIDDEN_LAYER), "heads"),
    ((STATIC, EDGE_FEATURES), "edge_features"),
    ((STATIC, BUILT_IN), "input_dropout jk"),
    ((STATIC, BUILT_IN, HIDDEN_LAYER), "norm residual"),
    ((NODES_CUT,), "partition"),
    ((OVER_TIME,), "window columns time_unit partial_window edge_life time_block"),
    ((OVER_TIME,), "vertex_parts aggregate"),
    ((OVER_TIME, TEMPORAL), "time_exchange"),
    ((OVER_TIME, BANDED), "bandwidth"),
    ((OVER_TIME, PAIRS), "head"),
    ((OVER_TIME, SIGNAL), "lags"),
    ((OVER_TIME, EDGE_CLASSES), "class_weights"),
]
SCOPES: dict[str, tuple[Scope, ...]] = {
    name: scopes for scopes, names in _GROUPS for name in names.split()
}
"""Every setting, and what all must cover a run for the setting to have a meaning there."""


def is_asked(config: RunConfig, name: str) -> bool:
    """Return whether a setting differs from what it would be unsaid.

    By value, not by model_fields_set: the config.yaml of a run holds every default too.
    """
    value, default = getattr(config, name), RunConfig.model_fields[name].default
    if value == default:
        return False
    unsaid = config.model_copy(update={name: default})
    unsaid.model_fields_set.discard(name)
    return bool(value != getattr(unsaid.resolved(), name))


def check_scopes(kind: Kind, given: RunConfig) -> None:
    """Raise where a setting that was asked for has no meaning for such a run."""
    asked = [name for name in SCOPES if is_asked(given, name)]
    for scope in dict.fromkeys(scope for name in asked for scope in SCOPES[name]):
        names = [name for name in asked if scope in SCOPES[name]]
        if not scope.covers(kind):
            raise _meaningless(kind, given, names, scope)


def _meaningless(kind: Kind, given: RunConfig, names: list[str], scope: Scope) -> ConfigError:
    flags = [f"--{name.replace('_', '-')}" for name in names]
    shown = [shown_flag(flag, getattr(given, n)) for flag, n in zip(flags, names, strict=True)]
    leave = f"leave {', '.join(flags)} out (in a file of settings too)"
    return ConfigError(
        f"{', '.join(flags)} {'has' if len(flags) == 1 else 'have'} no meaning {scope.elsewhere}.",
        seen=f"{' '.join(shown)} with {_described(kind)}",
        fix=leave if scope.remedy is None else f"{scope.remedy}, or {leave}",
    )


def shown_flag(flag: str, value: Any) -> str:
    """Return a flag as it is typed."""
    if isinstance(value, bool):
        return flag if value else flag.replace("--", "--no-", 1)
    return f"{flag} {value}"


def _described(kind: Kind) -> str:
    told = [f"--model {kind.config.model}"]
    told += [] if kind.over_time else [f"--strategy {kind.config.strategy}"]
    told += [f"--pool {kind.pool}"] if kind.unit == "interval" else []
    told += [f"--task {kind.task}"] if kind.task else []
    return " ".join(told)


assert set(MODEL_DEFAULTS) >= set(ATTENTION_MODELS), "models are named in one way"
