"""Scores against cases worked out by hand."""

import pytest
import torch

from siafu.engine.tasks.edges import class_weights
from siafu.engine.tasks.scores import (
    average_precision,
    confusion,
    f1_by_class,
    mean_reciprocal_rank,
)
from siafu.engine.tasks.task import split_steps
from siafu.errors import ConfigError


def test_f1_of_each_class() -> None:
    truth, said = torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([0, 1, 0, 1, 0, 0])
    counts = confusion(truth, said, 3)
    assert counts.tolist() == [[2, 1, 0], [1, 1, 0], [1, 0, 0]]
    torch.testing.assert_close(f1_by_class(counts), torch.tensor([4 / 7, 0.5, 0.0]).double())


def test_average_precision() -> None:
    score, truth = torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([1, 0, 1, 0])
    assert average_precision(score, truth) == pytest.approx((1 + 2 / 3) / 2)
    tied = torch.tensor([0.5, 0.5, 0.5, 0.1])
    assert average_precision(tied, truth) == pytest.approx(2 / 3), "ties are one threshold"
    assert average_precision(score, torch.zeros(4)) == 0.0


def test_mean_reciprocal_rank_is_by_source() -> None:
    source = torch.tensor([5, 5, 5, 2, 2, 9])
    score = torch.tensor([0.3, 0.9, 0.5, 0.1, 0.7, 0.4])
    truth = torch.tensor([1, 0, 1, 1, 0, 0])
    # Source 5: its true pairs are 2nd and 3rd; source 2: 2nd; source 9 has none.
    assert mean_reciprocal_rank(source, score, truth) == pytest.approx(
        ((1 / 2 + 1 / 3) / 2 + 0.5) / 2
    )
    level = torch.zeros(6)
    assert mean_reciprocal_rank(source, level, truth) == pytest.approx((1 / 2 + 1 / 1.5) / 2)
    assert mean_reciprocal_rank(source, score, torch.zeros(6)) == 0.0


def test_snapshots_are_split_in_order_of_time() -> None:
    splits = split_steps(20, None)
    assert [len(splits[name]) for name in ("train", "val", "test")] == [14, 2, 4]
    assert split_steps(135, "95,20")["test"] == range(115, 135)
    for wrong in ("0.9,0.3", "0,5", "21,1", "half", "1.5,2", "nan,0", "inf,0"):
        with pytest.raises(ConfigError, match="can't be split"):
            split_steps(20, wrong)


def test_class_weights() -> None:
    counts = torch.tensor([10.0, 30.0]).numpy()
    assert class_weights("balanced", counts).tolist() == [2.0, pytest.approx(2 / 3)]
    assert class_weights("0.9,0.1", counts).tolist() == [0.9, 0.1]
    with pytest.raises(ConfigError, match="weights of the classes"):
        class_weights("1,2,3", counts)
