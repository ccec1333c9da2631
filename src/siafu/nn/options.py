"""What a model can be told."""

from typing import ClassVar, Literal

from pydantic import field_validator

from siafu.errors import ConfigError, did_you_mean
from siafu.nn.cards import CARDS, cards_that
from siafu.nn.dynamic import DYNAMIC_CARDS
from siafu.nn.named_code import defined_in
from siafu.options import OVER_TIME, STATIC, Options, RunKind, Scope, setting


def _only_weights_evolve(kind: RunKind) -> bool:
    card = DYNAMIC_CARDS.get(kind.config.model)
    return card is not None and card.only_weights_evolve


def _has_hidden_layer(kind: RunKind) -> bool:
    """Whether a layer of a built-in static model is followed by another, or by a readout."""
    is_built_in = not kind.over_time and not kind.is_own
    return not is_built_in or kind.config.layers > 1 or kind.config.jk != "none"


_ATTENDING = cards_that(lambda card: card.attends)
_READING_EDGES = cards_that(lambda card: card.takes_edge_features)
BUILT_IN = Scope(
    lambda kind: not kind.is_own, "for a model of your own, which is taken as its class makes it"
)
HIDDEN_LAYER = Scope(_has_hidden_layer, "for a model of one layer", "use --layers 2 or more")
HIDDEN_WIDTH = Scope(
    lambda kind: kind.task == "link" or HIDDEN_LAYER.covers(kind),
    HIDDEN_LAYER.elsewhere,
    HIDDEN_LAYER.remedy,
)
ATTENTION = Scope(
    lambda kind: kind.config.model in cards_that(lambda card: card.attends),
    "for a model without attention",
    f"use one of {', '.join(_ATTENDING)}",
)
EDGE_FEATURES = Scope(
    lambda kind: (
        kind.over_time or kind.config.model in cards_that(lambda card: card.takes_edge_features)
    ),
    "for a model that does not use the features of edges",
    f"use one of {', '.join(_READING_EDGES)} (a model of your own gets them where its forward "
    "takes edge_attr)",
)
DROPOUT = Scope(lambda kind: not _only_weights_evolve(kind), "for EvolveGCN, which has no dropout")
TEMPORAL = Scope(
    lambda kind: not _only_weights_evolve(kind),
    "for a model whose weights alone evolve, since no rows travel along time",
    "use one of "
    + ", ".join(name for name, card in DYNAMIC_CARDS.items() if not card.only_weights_evolve),
)
BANDED = Scope(
    lambda kind: (
        kind.config.model in DYNAMIC_CARDS and DYNAMIC_CARDS[kind.config.model].averages_band
    ),
    "for a model that averages over no band of snapshots",
    "use --model tm-gcn",
)
PAIRS = Scope(
    lambda kind: kind.task in (None, "link", "edge"),
    "where no pairs of nodes are judged",
    "add --task link or edge",
)
LINKS_OVER_TIME = Scope(
    lambda kind: kind.task in (None, "link"), "where no links are predicted", "add --task link"
)
RECURRENCES = Scope(
    lambda kind: kind.task in (None, "link") or not BANDED.covers(kind),
    "for a model that averages over a band of snapshots",
    "use --bandwidth",
)
SIGNAL = Scope(
    lambda kind: kind.task in (None, "signal"), "where no signal is predicted", "add --task signal"
)


class ModelOptions(Options):
    """What shapes a model."""

    panel: ClassVar[str] = "Model"

    model: str = setting(
        "gcn",
        f"{', '.join(CARDS)}; over time {', '.join(DYNAMIC_CARDS)}; or your own: FILE.py:Class",
        usual=1,
    )
    layers: int = setting(2, "graph layers", usual=6, ge=1, le=1000)
    hidden: int | None = setting(
        None, "hidden width (default: the model's)", HIDDEN_WIDTH, usual=7, ge=1, le=10**6
    )
    heads: int = setting(
        8,
        f"attention heads ({', '.join(_ATTENDING)})",
        STATIC,
        ATTENTION,
        HIDDEN_LAYER,
        ge=1,
        le=10**6,
    )
    dropout: float | None = setting(None, "dropout (default: the model's)", DROPOUT, ge=0, lt=1)
    input_dropout: float | None = setting(
        None, "dropout of the input features (default: as --dropout)", STATIC, BUILT_IN, ge=0, lt=1
    )
    norm: Literal["none", "batch", "layer"] | None = setting(
        None,
        "none, batch (exact over ranks) or layer (default: the model's)",
        STATIC,
        BUILT_IN,
        HIDDEN_LAYER,
    )
    residual: bool = setting(
        False, "add a layer's input to its output", STATIC, BUILT_IN, HIDDEN_LAYER
    )
    jk: Literal["none", "cat", "max"] = setting("none", "jumping knowledge", STATIC, BUILT_IN)
    edge_features: bool = setting(
        False, "let attention, or any model over time, use the edges' features", EDGE_FEATURES
    )

    @field_validator("model")
    @classmethod
    def _known_model(cls, value: str) -> str:
        known = [*CARDS, *DYNAMIC_CARDS]
        if value in known:
            return value
        if ":" not in value and value.endswith(".py"):
            found = defined_in(value)
            has = f"{value} has: {', '.join(found)}" if found else "none is found there"
            raise ConfigError(
                "A model of your own is named by where it is, and by its class.",
                seen=f"model={value}, without a class",
                fix=f"give {value}:{found[0] if len(found) == 1 else 'Class'}; {has}",
            )
        if ":" not in value:
            raise ConfigError(
                "Unknown model.",
                seen=f"{value}{did_you_mean(value, known)}",
                fix=f"use one of: {', '.join(known)}; or FILE.py:Class for your own",
            )
        place, _, name = value.rpartition(":")
        is_place = place.endswith(".py") or all(map(str.isidentifier, place.split(".")))
        if not (is_place and name.isidentifier()):
            raise ConfigError(
                "A model of your own is named by where it is, and by its class.",
                seen=f"model={value}",
                fix="give FILE.py:Class, or package.module:Class",
            )
        return value


class DynamicModelOptions(Options):
    """What shapes a model of a dynamic graph."""

    panel: ClassVar[str] = "Models over time"

    aggregate: Literal["in", "out"] | None = setting(
        None,
        "over time a node sums over those whose edges come in, or those its own go out to "
        "(default: out for tm-gcn, else in)",
        OVER_TIME,
    )
    bandwidth: int = setting(20, "snapshots that tm-gcn averages over", OVER_TIME, BANDED, ge=1)
    head: Literal["linear", "mlp"] | None = setting(
        None,
        "over time, pairs are judged by a linear map of both ends' embeddings, or with a hidden "
        "layer (default: linear for the edge classes of tm-gcn, else mlp)",
        OVER_TIME,
        PAIRS,
    )
    node_features: str | None = setting(
        None,
        "over time, instead of the data's own: log-degree, degree-onehot, random:32 (drawn per "
        "node) or learned:32 (default: the data's; log-degree where it has none)",
        OVER_TIME,
    )
    history: int | None = setting(
        None,
        "snapshots looked back on by recurrences (default: all), by histories of pairs and by "
        "--negatives history:K (default: 10)",
        OVER_TIME,
        RECURRENCES,
        ge=1,
    )
    pair_history: bool = setting(
        True,
        "over time, links are judged also by when and how often a pair met before",
        OVER_TIME,
        LINKS_OVER_TIME,
    )
    lags: int = setting(4, "past values of a signal that are features", OVER_TIME, SIGNAL, ge=1)


def default_settings(model: str) -> dict[str, object]:
    """Return what a model is trained with unless asked otherwise, by setting."""
    card = CARDS.get(model) or DYNAMIC_CARDS.get(model)
    return OWN_DEFAULTS if card is None else card.defaults


OWN_DEFAULTS: dict[str, object] = {
    "hidden": 64,
    "lr": 0.01,
    "dropout": 0.5,
    "weight_decay": 5e-4,
}
"""What a model of the user's own is trained with."""

OWN_ARGUMENTS = {"hidden": "hidden_channels", "layers": "num_layers", "dropout": "dropout"}
"""Settings that a class of the user's own may take, and the names it takes them by."""
