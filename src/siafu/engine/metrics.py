"""Scores of answers about nodes or edges, the same however they lie on the ranks.

Classes are counted, and the counts added up; rankings gather the scores of the rows that are
asked about. Shapes: B rows, O outputs (C classes or T numbers).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from siafu.comm import World
from siafu.config import read_metrics
from siafu.engine.ranking import Ranking
from siafu.engine.scores import gather_rows
from siafu.errors import ConfigError
from siafu.shard import HeldRows, Objective, RowReader, Shard

ROWS_AT_ONCE = 1 << 16
_CELLS_AT_ONCE = 1 << 22
"""Scores that are gathered together: as many classes as fit."""
OF_NUMBERS = ("rmse", "mae", "r2")
OF_COUNTS = ("accuracy", "micro-f1", "f1", "macro-f1")
_RARE = 0.2
"""A class rarer than this is told by average precision: all may be right, and it never found."""
Details = dict[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class Answers:
    """A model's rows about nodes or edges of this rank, and what is true of them."""

    out: RowReader
    y: Tensor
    masks: dict[str, Tensor]
    """Row numbers of train, val and test."""
    num_classes: int
    """0 where numbers are told."""
    names: tuple[str | int, ...]
    """Of the classes, or of the numbers."""
    objective: Objective
    world: World

    @property
    def several(self) -> bool:
        """Whether several classes may hold at once."""
        return self.num_classes > 0 and self.y.dim() == 2

    @property
    def is_binary(self) -> bool:
        """Whether one class is looked for."""
        return self.num_classes == 2 and not self.several

    def pieces(self, mask: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield rows and targets of a split, some at a time where they are not in memory."""
        rows = self.masks[mask]
        for some in (rows,) if isinstance(self.out, HeldRows) else rows.split(ROWS_AT_ONCE):
            yield self.out.read(some), self.y[some]


def node_answers(out: RowReader, shard: Shard) -> Answers:
    """Return what a model says of the owned nodes."""
    assert shard.y is not None
    return Answers(
        out=out,
        y=shard.y,
        masks=shard.masks,
        num_classes=shard.num_classes,
        names=shard.target_names if shard.num_targets else shard.class_names,
        objective=shard.objective,
        world=shard.world,
    )


def metrics_of(text: str | None, objective: Objective, *, several: bool) -> tuple[str, ...]:
    """Return the scores of a run, that which counts first; unless asked, what fits the targets."""
    names, counts = read_metrics(text), objective.counts
    if text is None and not counts:
        # Errors of several numbers are in units of each, and a mean of them in none.
        return OF_NUMBERS if len(objective.mean) == 1 else ("r2", "rmse", "mae")
    if several and names in ((), ("accuracy",)):  # what it has been called of old
        return ("micro-f1",)
    if not names:
        rare = len(counts) == 2 and min(counts) < _RARE * sum(counts)
        return ("average-precision", "roc-auc", "accuracy") if rare else ("accuracy",)
    wrong = [name for name in names if (name in OF_NUMBERS) != (not counts)]
    if len(counts) != 2 or several:
        wrong += [name for name in names if name == "f1"]
    if wrong:
        kind = "numbers" if not counts else f"{len(counts)} classes"
        fits = "rmse, mae, r2" if not counts else "accuracy, macro-f1, roc-auc, average-precision"
        raise ConfigError(
            "A score does not fit the targets.",
            seen=f"--metric {','.join(wrong)}, and the targets are {kind}",
            fix=f"use {fits}",
        )
    return names


def scores_of(answers: Answers, names: Sequence[str]) -> Details:
    """Return the scores of each split, by name."""
    splits = list(answers.masks)
    if names[0] in OF_NUMBERS:
        sums = _added(answers, [_number_sums(answers, split) for split in splits])
        return {s: _of_numbers(sums_5T, names) for s, sums_5T in zip(splits, sums, strict=True)}
    counts = _added(answers, [class_counts(answers, split) for split in splits])
    return {
        split: _of_split(answers, split, names, counts_3C)
        for split, counts_3C in zip(splits, counts, strict=True)
    }


def _of_split(
    answers: Answers, split: str, names: Sequence[str], counts_3C: Tensor
) -> dict[str, float]:
    found = {name: _counted(answers, name, counts_3C) for name in names if name in OF_COUNTS}
    tops = [name for name in names if name.startswith("recall@")]
    rest = [name for name in names if name not in OF_COUNTS]
    if not answers.is_binary:
        found |= {name: _recall_at(answers, split, _k(name)) for name in tops}
        rest = [name for name in rest if name not in tops]
    if rest:
        found |= _over_classes(answers, split, rest)
    return {name: found[name] for name in names}


def _added(answers: Answers, of_splits: list[Tensor]) -> Tensor:
    """Return the sums over all ranks, on the host."""
    table = torch.stack(of_splits).double().to(answers.world.device)
    return answers.world.sum_in_place(table, "metric").cpu()


def said_of(out_BO: Tensor, objective: Objective, *, several: bool) -> Tensor:
    """Return the class of each row, or bool [B, C] where several may hold."""
    limit = objective.threshold
    if several:
        return out_BO > 0 if limit is None else out_BO.sigmoid() >= limit
    if limit is None:
        return out_BO.argmax(dim=1)
    found = positive_share(out_BO, objective.positive) >= limit
    return torch.where(found, objective.positive, 1 - objective.positive)


def positive_share(out_B2: Tensor, positive: int) -> Tensor:
    """Return the probability of the class that is looked for, in double precision."""
    margin = (out_B2[:, positive] - out_B2[:, 1 - positive]).double()
    return margin.sigmoid()


def class_counts(answers: Answers, mask: str) -> Tensor:
    """Return count_3C of this rank: how often each class was said and right, said, and true."""
    counts = torch.zeros(3, answers.num_classes, dtype=torch.float64)
    for out, y in answers.pieces(mask):
        said = said_of(out, answers.objective, several=answers.several)
        if answers.several:
            true = y > 0
            each = torch.stack([(said & true).sum(0), said.sum(0), true.sum(0)])
        else:
            width = answers.num_classes
            kinds = (y[said == y], said, y)
            each = torch.stack([torch.bincount(kind, minlength=width) for kind in kinds])
        counts += each.cpu()
    return counts


def _counted(answers: Answers, name: str, counts_3C: Tensor) -> float:
    right_C, said_C, true_C = counts_3C
    if name == "accuracy":
        return _share(right_C.sum(), true_C.sum())
    if name == "micro-f1":
        return _share(2 * right_C.sum(), said_C.sum() + true_C.sum())
    f1_C = 2 * right_C / (said_C + true_C).clamp(min=1)
    if name == "f1":
        return float(f1_C[answers.objective.positive])
    assert name == "macro-f1", name
    occurs_C = said_C + true_C > 0
    return float(f1_C[occurs_C].mean()) if bool(occurs_C.any()) else 0.0


def _share(part: Tensor, whole: Tensor) -> float:
    return float(part) / float(whole) if float(whole) else 0.0


def rankings(answers: Answers, split: str) -> Iterator[Ranking]:
    """Yield the rankings of all ranks' rows by each class, or by the one that is looked for."""
    rows = len(answers.masks[split])
    total = sum(int(row[0]) for row in answers.world.gather_numbers([float(rows)], "metric"))
    numbers = range(answers.num_classes)
    if answers.is_binary:
        numbers = numbers[answers.objective.positive :][:1]
    width = max(1, _CELLS_AT_ONCE // max(1, total))
    for low in range(0, len(numbers), width):
        some = numbers[low : low + width]
        pieces = [_sureness(answers, some, *piece) for piece in answers.pieces(split)]
        table = gather_rows(torch.cat(pieces), answers.world)
        for score, truth in zip(*table.t().contiguous().chunk(2), strict=True):
            yield Ranking.of(score, truth)


def _sureness(answers: Answers, numbers: range, out: Tensor, y: Tensor) -> Tensor:
    """Return how surely rows are of some classes, then 1 where they are and else 0."""
    first, last = numbers[0], numbers[-1] + 1
    if answers.several:
        return torch.cat([out[:, first:last], y[:, first:last].to(out.dtype)], dim=1)
    if answers.is_binary:
        sure = out[:, first:last] - out[:, 1 - first : 2 - first]
    else:
        sure = out.double().softmax(dim=1)[:, first:last]
    truth = y[:, None] == torch.arange(first, last, device=y.device)
    return torch.cat([sure, truth.to(sure.dtype)], dim=1)


def _k(name: str) -> int:
    return int(name.removeprefix("recall@"))


def _ranked(ranking: Ranking, name: str) -> float:
    if name == "roc-auc":
        return ranking.roc_auc()
    if name == "average-precision":
        return ranking.average_precision()
    assert name.startswith("recall@"), name
    return ranking.recall_at(_k(name))


def _over_classes(answers: Answers, split: str, names: Sequence[str]) -> dict[str, float]:
    """Return scores of the class that is looked for, or their means over the classes there are."""
    found = [
        [_ranked(ranking, name) for name in names]
        for ranking in rankings(answers, split)
        if answers.is_binary or ranking.is_mixed
    ]
    columns = zip(*found, strict=True) if found else ((0.0,) for _ in names)
    return {name: sum(each) / len(each) for name, each in zip(names, columns, strict=True)}


def _recall_at(answers: Answers, split: str, k: int) -> float:
    """Return the share of labels among the k classes that are the likeliest of their row."""
    hits = of = 0.0
    for out, y in answers.pieces(split):
        best = out.topk(min(k, out.size(1)), dim=1).indices
        true = y > 0 if answers.several else torch.nn.functional.one_hot(y, out.size(1)) > 0
        hits += float(true.gather(1, best).sum())
        of += float(true.sum())
    table = answers.world.gather_numbers([hits, of], "metric")
    hits, of = (sum(column) for column in zip(*table, strict=True))
    return hits / of if of else 0.0


def _number_sums(answers: Answers, split: str) -> Tensor:
    """Return sum_5T: known rows, targets and their squares off the mean, errors and squares."""
    objective = answers.objective
    sums = torch.zeros(5, len(objective.mean), dtype=torch.float64)
    for out, y in answers.pieces(split):
        true, known = y.double(), ~y.isnan()
        scale, mean = (true.new_tensor(row) for row in (objective.scale, objective.mean))
        error = (out.double() * scale + mean - true).nan_to_num() * known
        off = (true - mean).nan_to_num() * known
        rows = [known, off, off**2, error.abs(), error**2]
        sums += torch.stack([row.double().sum(0) for row in rows]).cpu()
    return sums


def _of_numbers(sums_5T: Tensor, names: Sequence[str]) -> dict[str, float]:
    """Return the means over the targets of their scores."""
    found = number_scores(sums_5T)
    return {name: float(found[name].mean()) for name in names}


def number_scores(sums_5T: Tensor) -> dict[str, Tensor]:
    """Return rmse, mae and r2 of each target."""
    known, off, squares, absolute, squared = sums_5T
    count = known.clamp(min=1)
    spread = (squares - off**2 / count).clamp(min=0)
    r2 = torch.where(spread > 0, 1 - squared / spread.clamp(min=1e-300), 0.0)
    return {"rmse": (squared / count).sqrt(), "mae": absolute / count, "r2": r2}


def number_table(answers: Answers, split: str) -> dict[str, list[float]]:
    """Return the scores of each target of a split."""
    sums = _added(answers, [_number_sums(answers, split)])[0]
    return {name: found.tolist() for name, found in number_scores(sums).items()}


def best_threshold(answers: Answers) -> float:
    """Return the probability whose decision has the best F1 on validation; of equal ones the first.

    Where there is nothing to find, a half.
    """
    (ranking,) = rankings(answers, "val")
    best = ranking.best_f1()
    return 0.5 if best is None else float(torch.tensor(best, dtype=torch.float64).sigmoid())
