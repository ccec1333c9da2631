"""Link prediction: the loss over the edges of a minibatch, and the settings of such a run.

An edge's score is the dot product of its ends' rows. Shapes: V nodes of a minibatch, D width, B
edges, K negatives of each.
"""

from torch import Tensor
from torch.nn.functional import softplus

from siafu.config import RunConfig
from siafu.errors import ConfigError
from siafu.minibatch import LinkBatching, rows_of_seeds


def link_loss(rows_VD: Tensor, seeds: Tensor, num_negatives: int) -> Tensor:
    """Return the sum over the edges of a minibatch of their losses, whose mean is trained on.

    Each is the cross-entropy of the edge, and the mean one of its negatives. `seeds` are B sources,
    B destinations and the negatives, none where those are the other edges' destinations.
    """
    place = rows_of_seeds(seeds).to(rows_VD.device)
    count = len(seeds) // (2 + num_negatives)
    ends = rows_VD.index_select(0, place)
    src_BD, dst_BD, other = ends.split([count, count, count * num_negatives])
    loss = softplus(-(src_BD * dst_BD).sum(dim=1)).sum()
    if num_negatives:
        other_BKD = other.view(count, num_negatives, rows_VD.size(1))
        return loss + softplus((src_BD[:, None] * other_BKD).sum(dim=2)).mean(dim=1).sum()
    dst_B = place[count : 2 * count]
    is_other_BB = dst_B[:, None] != dst_B
    wrong_BB = softplus(src_BD @ dst_BD.T) * is_other_BB
    return loss + (wrong_BB.sum(dim=1) / is_other_BB.sum(dim=1).clamp(min=1)).sum()


def link_batching(config: RunConfig) -> LinkBatching | None:
    """Return how a run's edges become seeds; None where it is not about edges."""
    if config.task != "link":
        return None
    return LinkBatching(negatives=_num_negatives(config), exclude_targets=config.exclude_targets)


def _num_negatives(config: RunConfig) -> int:
    text = config.negatives or "uniform:1"
    if text == "in-batch":
        return 0
    number = text.removeprefix("uniform:")
    if not number.isdecimal() or int(number) == 0:
        raise ConfigError(
            "The negatives are not understood.",
            seen=f"--negatives {text}",
            fix="use uniform:5 for five drawn destinations an edge, or in-batch",
        )
    return int(number)


def num_eval_negatives(config: RunConfig) -> int:
    """Return how many drawn destinations each held-out edge is ranked among."""
    if not config.eval_negatives.isdecimal() or int(config.eval_negatives) == 0:
        raise ConfigError(
            "The negatives of the evaluation are not understood.",
            seen=f"--eval-negatives {config.eval_negatives}",
            fix="give a number from 1, as --eval-negatives 100",
        )
    return int(config.eval_negatives)


def check_link_settings(config: RunConfig) -> None:
    """Raise where link prediction is asked for in a way it can't be done."""
    if config.task == "signal":
        raise ConfigError(
            "The task is one of graphs that change over time.",
            seen=f"--task {config.task} with --model {config.model}",
            fix="use --task node, edge or link, or a dynamic graph and model",
        )
    if config.task != "link":
        return
    _num_negatives(config)
    num_eval_negatives(config)
    if config.chosen.unit != "macrobatch":
        raise ConfigError(
            "Link prediction trains on minibatches of edges.",
            seen=f"--task link with --strategy {config.strategy}",
            fix="add --strategy batchgnn",
        )
    if config.input_cache and config.exclude_targets:
        raise ConfigError(
            "What is aggregated beforehand includes the edges to be predicted.",
            seen="--task link with --input-cache",
            fix="leave --input-cache out, or allow it with --no-exclude-targets",
        )
    if config.evaluate == "train":
        raise ConfigError(
            "Edges are ranked by rows of nodes that no minibatch has together.",
            seen="--evaluate train with --task link",
            fix="use --evaluate sampled",
        )
    if ":" in config.model and config.evaluate in ("split", "sampled"):
        raise ConfigError(
            "Rows that edges are ranked by are those of all nodes, for a model of your own.",
            seen=f"--evaluate {config.evaluate} with --task link and a model of your own",
            fix="use --evaluate exact, or --eval-every with more epochs",
        )
    for name, fits in (("keep", ("score",)), ("metric", (None, "accuracy"))):
        if (value := getattr(config, name)) not in fits:
            raise ConfigError(
                "Edges are ranked: the weights kept are those of the best mean reciprocal rank.",
                seen=f"--{name} {value} with --task link",
                fix=f"leave --{name} out",
            )
