"""What can be told of training and scoring: read by the engine, which is above this package."""

import math
import re
from typing import ClassVar, Literal

from pydantic import field_validator

from siafu.errors import ConfigError, did_you_mean
from siafu.minibatch.options import MINIBATCHES
from siafu.nn.losses import CLASS_LOSSES, NUMBER_LOSSES
from siafu.options import SCORED, STATIC, Options, Scope, setting

LINKS = Scope(
    lambda kind: kind.task in (None, "link"),
    "where no edges are predicted",
    "add --task link (on a static graph with --strategy batchgnn)",
)
WITH_TARGETS: tuple[str | None, ...] = (None, "node", "classification", "regression", "edge")
"""Tasks whose answers are known of some nodes or edges."""
CLASSES = Scope(
    lambda kind: kind.task in ((None, "edge") if kind.over_time else WITH_TARGETS),
    "where no classes are learnt, over time none of edges",
    "use --task classification or edge",
)
TARGETS = Scope(
    lambda kind: kind.task in WITH_TARGETS,
    "where edges are predicted",
    "leave --task link out",
)
MOMENTUM = Scope(
    lambda kind: kind.config.optimizer == "sgd",
    "for an optimiser that has its own averages",
    "add --optimizer sgd",
)


class TrainingOptions(Options):
    """How a model is trained, scored and kept."""

    panel: ClassVar[str] = "Training"

    task: Literal["node", "link", "edge", "signal", "classification", "regression"] | None = (
        setting(
            None,
            "what is learnt: node (classification or regression as the label is), link, edge, over "
            "time signal too (default: node; over time what the data has, else link)",
            usual=9,
        )
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
        "balanced, none, or numbers as 0.9,0.1 (default: none; of edges over time balanced)",
        CLASSES,
        usual=9,
    )
    loss: str | None = setting(
        None,
        "of classes cross-entropy (default) or focal, of numbers mse (default), mae or huber; or "
        "your own: FILE.py:function",
        STATIC,
        TARGETS,
    )
    trace: bool = setting(
        False, "write trace.json: when each rank worked, waited and sent, for ui.perfetto.dev"
    )
    checkpoint_every: int = setting(50, "epochs between checkpoints; 0: none", ge=0)
    checkpoint_minutes: float = setting(
        10.0,
        "after so long the state is saved too, at the end of an epoch or, with minibatches, after "
        "a step; 0: by --checkpoint-every alone",
        ge=0,
    )
    keep_checkpoints: int = setting(2, "checkpoints that are kept, the newest", ge=1)

    @field_validator("loss")
    @classmethod
    def _known_loss(cls, value: str | None) -> str | None:
        known = [*CLASS_LOSSES, *NUMBER_LOSSES]
        if value is None or value in known or ":" in value:
            return value
        raise ConfigError(
            "Unknown loss.",
            seen=f"{value}{did_you_mean(value, known)}",
            fix=f"use one of: {', '.join(known)}; or FILE.py:function for your own",
        )


class ScoringOptions(Options):
    """How results are scored, and which weights are kept."""

    panel: ClassVar[str] = "Scores"

    metric: str | None = setting(
        None,
        "scores, comma between, the first one counts: accuracy, f1, macro-f1, micro-f1, roc-auc, "
        "average-precision, recall@K; of numbers rmse, mae, r2 (default: what fits the targets)",
        STATIC,
        SCORED,
        usual=9,
    )
    threshold: str | None = setting(
        None,
        "of two classes, the probability from which on the one looked for is told: a number, or f1 "
        "for what is best on validation (default: where it is the likelier one)",
        STATIC,
        SCORED,
        TARGETS,
    )
    keep: Literal["score", "loss"] = setting(
        "score", "keep the weights of the best validation score, or lowest loss", STATIC
    )
    patience: int = setting(0, "stop after so many epochs without gain; 0: never", usual=9, ge=0)
    eval_every: int | None = setting(
        None,
        "epochs between evaluations (default: 1; 10 with --staleness, since a pipeline is emptied "
        "for it, and where rows are rounded, since evaluation sends them whole)",
        SCORED,
        ge=1,
    )
    evaluate: Literal["auto", "exact", "split", "sampled", "train"] = setting(
        "auto",
        "what epochs are scored by: all nodes with all neighbours, those of the splits with all of "
        "theirs, some of them with --fanout, or training nodes as they are trained on; auto: of "
        "the first three the best that costs a fifth of training at most",
        STATIC,
        MINIBATCHES,
    )
    inference: Literal["full", "none"] = setting(
        "full",
        "score and predict all nodes with all neighbours at the end, or nothing (nothing is scored "
        "then unless --evaluate says how)",
        STATIC,
    )

    @property
    def is_scored(self) -> bool:
        """Whether there are any scores."""
        return self.inference == "full" or self.evaluate != "auto"


class RecordOptions(Options):
    """Where a run is followed beside its folder; the launcher reads it."""

    panel: ClassVar[str] = "Record"

    sink: str | None = setting(
        None, "where metrics go too: tensorboard, mlflow, wandb, or several, comma between"
    )


class LinkOptions(Options):
    """How edges that are not there are drawn, to learn and to score those that are."""

    panel: ClassVar[str] = "Links (--task link)"

    negatives: str | None = setting(
        None,
        "per edge, uniform:K drawn ones (default: uniform:1), or in-batch; over time history:K "
        "with its source and nodes of the last snapshots (default: history:20)",
        LINKS,
    )
    eval_negatives: str = setting(
        "100",
        "drawn ones that an edge is ranked among; over time also all: of nodes met, and of all",
        LINKS,
    )
    exclude_targets: bool = setting(
        True, "no messages over the edges of a minibatch while it is trained on", STATIC, LINKS
    )


METRICS = (
    "accuracy",
    "f1",
    "macro-f1",
    "micro-f1",
    "roc-auc",
    "average-precision",
    "rmse",
    "mae",
    "r2",
)


def read_metrics(text: str | None) -> tuple[str, ...]:
    """Return the names of scores, in the order asked for; none where nothing is asked."""
    names = tuple(dict.fromkeys(part.strip() for part in (text or "").split(",") if part.strip()))
    unknown = [n for n in names if n not in METRICS and not re.fullmatch(r"recall@[1-9]\d*", n)]
    if unknown or (text is not None and not names):
        raise ConfigError(
            "There is no such score.",
            seen=f"--metric {text}",
            fix=f"use some of {', '.join(METRICS)} and recall@K as recall@100",
        )
    return names


def read_class_weights(text: str | None) -> tuple[float, ...] | None:
    """Return the weights that are numbers; None where a word stands for them."""
    if text in (None, "none", "balanced"):
        return None
    try:
        weights = tuple(float(part) for part in str(text).split(","))
    except ValueError:
        weights = ()
    if not any(weights) or not all(0 <= weight < math.inf for weight in weights):
        guess = did_you_mean(str(text), ["none", "balanced"])
        raise ConfigError(
            "The weights of the classes can't be used.",
            seen=f"--class-weights {text}{guess}",
            fix="use balanced, none, or a number of 0 or more for each class, comma between",
        )
    return weights


def read_threshold(text: str | None) -> float | None:
    """Return the threshold that is a number; None where there is none, or validation tells."""
    if text is None or text == "f1":
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise ConfigError(
            "The threshold is no probability.",
            seen=f"--threshold {text}",
            fix="use a number between 0 and 1, or f1",
        )
    return value
