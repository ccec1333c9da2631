"""What can be told of training and scoring: read by the engine, which is above this package."""

from typing import ClassVar, Literal

from siafu.options import OVER_TIME, SCORED, STATIC, Options, Scope, setting

LINKS = Scope(
    lambda kind: kind.task in (None, "link"),
    "where no edges are predicted",
    "add --task link (on a static graph with --strategy batchgnn)",
)
EDGE_CLASSES = Scope(
    lambda kind: kind.task in (None, "edge"),
    "where no classes of edges are learnt",
    "add --task edge",
)
MOMENTUM = Scope(
    lambda kind: kind.config.optimizer == "sgd",
    "for an optimiser that has its own averages",
    "add --optimizer sgd",
)


class TrainingOptions(Options):
    """How a model is trained, scored and kept."""

    panel: ClassVar[str] = "Training"

    task: Literal["node", "link", "edge", "signal"] | None = setting(
        None,
        "what is learnt: node or link, over time edge or signal too (default: node; over time what "
        "the data has, else link)",
        usual=9,
    )
    epochs: int = setting(200, "the most epochs to train", usual=5, ge=1)
    lr: float | None = setting(None, "learning rate (default: the model's)", usual=8, gt=0)
    weight_decay: float | None = setting(None, "L2 penalty (default: the model's)", ge=0)
    optimizer: Literal["adam", "adamw", "sgd"] = setting("adam", "what takes the steps")
    momentum: float = setting(0.9, "share of the last step that goes on", MOMENTUM, ge=0, lt=1)
    schedule: Literal["none", "cosine", "linear", "step"] = setting(
        "none",
        "how the learning rate falls, epoch by epoch: cosine or linear to zero, or step (to a "
        "tenth after half, to a hundredth after three quarters)",
    )
    warmup: int = setting(0, "epochs in which the learning rate rises to its full height", ge=0)
    clip_norm: float | None = setting(
        None, "longest gradient of all weights together; longer ones are shortened", gt=0
    )
    seed: int = setting(
        0, "seed of weights, dropout, splits and partition", usual=12, ge=0, lt=2**63
    )
    normalize_features: bool = setting(False, "scale each feature row to sum to 1", STATIC)
    class_weights: str | None = setting(
        None,
        "of edge classes: balanced (default), none, or numbers as 0.9,0.1",
        OVER_TIME,
        EDGE_CLASSES,
    )
    trace: bool = setting(
        False, "write trace.json: when each rank worked, waited and sent, for ui.perfetto.dev"
    )
    checkpoint_every: int = setting(50, "epochs between checkpoints; 0: none", ge=0)


class ScoringOptions(Options):
    """How results are scored, and which weights are kept."""

    panel: ClassVar[str] = "Scores"

    metric: Literal["accuracy", "roc-auc"] = setting(
        "accuracy",
        "accuracy (micro-F1 on multi-label data) or roc-auc (two classes)",
        STATIC,
        SCORED,
    )
    keep: Literal["score", "loss"] = setting(
        "score", "keep the weights of the best validation score, or lowest loss", STATIC
    )
    patience: int = setting(0, "stop after so many epochs without gain; 0: never", ge=0)
    eval_every: int | None = setting(
        None,
        "epochs between evaluations (default: 1; 10 with --staleness, since a pipeline is emptied "
        "for it, and where rows are rounded, since evaluation sends them whole)",
        SCORED,
        ge=1,
    )
    inference: Literal["full", "none"] = setting(
        "full", "score and predict all nodes with all neighbours, or nothing", STATIC
    )


class LinkOptions(Options):
    """How edges that are not there are drawn, to learn and to score those that are."""

    panel: ClassVar[str] = "Links (--task link)"

    negatives: str | None = setting(
        None,
        "per edge, uniform:K drawn ones (default: uniform:1, over time 20), or in-batch",
        LINKS,
    )
    eval_negatives: str = setting(
        "100", "drawn ones that an edge is ranked among; over time also all", LINKS
    )
    exclude_targets: bool = setting(
        True, "no messages over the edges of a minibatch while it is trained on", STATIC, LINKS
    )
