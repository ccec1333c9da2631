"""Versions of the weights: kept while used, let go of after, and never more than allowed."""

import pytest
import torch
from torch import nn

from siafu.pipeline.tasks import Stash


@pytest.fixture
def stash() -> tuple[nn.Linear, Stash, list[str]]:
    module, forgotten = nn.Linear(1, 1), []
    return module, Stash(module, [("weight",), ("bias",)], "p", forgotten.append, most=3), forgotten


def set_to(module: nn.Linear, value: float) -> None:
    with torch.no_grad():
        module.weight.fill_(value)


def test_a_version_that_was_taken_keeps_its_weights(stash) -> None:
    module, versions, forgotten = stash
    set_to(module, 1.0)
    versions.publish(0)
    taken = versions.take()
    set_to(module, 2.0)
    versions.publish(1)
    assert versions.bundle(taken, 0).tensors["w.weight"].item() == 1.0
    assert versions.bundle(versions.take(), 0).tensors["w.weight"].item() == 2.0
    assert list(versions.bundle(taken, 1).tensors) == ["w.bias"]
    assert forgotten == []


def test_it_is_let_go_of_with_its_last_use(stash) -> None:
    _, versions, forgotten = stash
    versions.publish(0)
    for _ in range(2):
        versions.take()
    versions.publish(1)
    versions.release(0)
    assert versions.versions == [0, 1]
    versions.release(0)
    assert versions.versions == [1]
    assert forgotten == ["p/w/0/0", "p/w/0/1"]


def test_an_unused_version_goes_when_the_next_comes(stash) -> None:
    _, versions, forgotten = stash
    for version in range(4):
        versions.publish(version)
    assert versions.versions == [3]
    assert len(forgotten) == 6


def test_more_versions_than_may_be_in_use_are_a_fault(stash) -> None:
    _, versions, _ = stash
    for version in range(3):
        versions.publish(version)
        versions.take()
    with pytest.raises(AssertionError, match="are kept of 3"):
        versions.publish(3)
