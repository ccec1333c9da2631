"""What a run's answers are worth, class by class: told once, of the weights that are kept.

Shapes: B rows, C classes.
"""

from typing import Any

import torch
from torch import Tensor

from siafu.engine.metrics import Answers, class_counts, number_table, positive_share, said_of
from siafu.engine.tasks.scores import confusion

_MOST_CLASSES = 1000
_MOST_CONFUSED = 64
"""A matrix of more classes is not read by anybody."""
BINS = 10
_SPLITS = ("val", "test")


def quality_of(answers: Answers) -> dict[str, Any]:
    """Return tables of the validation and test rows; all ranks call this together.

    Their rows are of classes, or of numbers, in the order of `names`.
    """
    told: dict[str, Any] = {}
    for split in _SPLITS:
        if answers.num_classes:
            told[split] = _of_classes(answers, split)
        else:
            told[split] = number_table(answers, split)
    if answers.is_binary or answers.several:
        told["threshold"] = answers.objective.threshold
    if answers.is_binary:
        positive = answers.objective.positive
        told["positive"] = answers.names[positive] if answers.names else positive
    told["names"] = list(answers.names)[:_MOST_CLASSES]
    return told


def _summed(answers: Answers, numbers: Tensor) -> Tensor:
    table = numbers.double().to(answers.world.device)
    return answers.world.sum_in_place(table, "metric").cpu()


def _of_classes(answers: Answers, split: str) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if answers.num_classes <= _MOST_CLASSES:
        right_C, said_C, true_C = _summed(answers, class_counts(answers, split))
        told["classes"] = {
            "precision": (right_C / said_C.clamp(min=1)).tolist(),
            "recall": (right_C / true_C.clamp(min=1)).tolist(),
            "f1": (2 * right_C / (said_C + true_C).clamp(min=1)).tolist(),
            "count": [int(count) for count in true_C],
        }
    if not answers.several and answers.num_classes <= _MOST_CONFUSED:
        told["confusion"] = _confused(answers, split)
    told["calibration"] = calibration(answers, split)
    return told


def _confused(answers: Answers, split: str) -> list[list[int]]:
    """Return how often each class (row) was said to be which (column)."""
    width = answers.num_classes
    counts = torch.zeros(width, width, dtype=torch.float64)
    for out, y in answers.pieces(split):
        said = said_of(out, answers.objective, several=False)
        counts += confusion(y, said, width).cpu()
    return [[int(count) for count in row] for row in _summed(answers, counts)]


def calibration(answers: Answers, split: str) -> dict[str, Any]:
    """Return the expected calibration error and, by bins of probability, what came true.

    Of two classes by the probability of the one that is looked for, of several at once by that of
    each, else by that of the class that was told.
    """
    sums = torch.zeros(3, BINS, dtype=torch.float64)
    for out, y in answers.pieces(split):
        sure, right = _claims(answers, out, y)
        sure = sure.nan_to_num()  # of weights that have run away: nothing is claimed
        place = (sure * BINS).long().clamp(max=BINS - 1)
        for row, values in zip(sums, (torch.ones_like(sure), sure, right.double()), strict=True):
            row.index_add_(0, place.cpu(), values.cpu())
    count, claimed, came = _summed(answers, sums)
    some = count.clamp(min=1)
    error = float((claimed - came).abs().sum() / count.sum().clamp(min=1))
    return {
        "error": error,
        "count": [int(number) for number in count],
        "claimed": (claimed / some).tolist(),
        "true": (came / some).tolist(),
    }


def _claims(answers: Answers, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return probabilities that were told, and whether what they are of holds."""
    if answers.several:
        return out.double().sigmoid().flatten(), (y > 0).flatten()
    if answers.is_binary:
        positive = answers.objective.positive
        return positive_share(out, positive), y == positive
    sure, said = out.double().softmax(dim=1).max(dim=1)
    return sure, said == y
