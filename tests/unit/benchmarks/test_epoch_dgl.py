"""An epoch beside DGL's: same weights, same losses, seconds of either side."""

import pytest
import torch

from benchmarks.epoch import CLASSES, WIDTH
from benchmarks.epoch_dgl import Ours, compared, gate, take_turns
from benchmarks.epoch_peer import CHECKED_EPOCHS, _by_layer
from benchmarks.sampling import Turn, here
from siafu.ops import CSR

NAMES = {
    "sage": {"own.weight", "own.bias", "neigh.weight"},
    "gat": {"linear.weight", "left", "right", "bias"},
}
"""What the peer fills its layers with."""


@pytest.mark.parametrize("name", NAMES)
def test_the_peer_is_given_every_weight_as_it_was_before_the_first_step(name: str) -> None:
    ring = CSR(torch.arange(31), torch.arange(1, 31).remainder(30).int(), 30)
    x_ND, y_N = torch.randn(30, WIDTH), torch.arange(30) % CLASSES
    ours, again = (Ours(name, ring, x_ND, y_N) for _ in range(2))
    layers = list(_by_layer(ours.weights))
    assert [layer.keys() for layer in layers] == [NAMES[name]] * 3
    assert all(torch.equal(ours.weights[key], again.weights[key]) for key in ours.weights)
    assert len(ours.first_losses) == CHECKED_EPOCHS
    gate(ours.first_losses, again.first_losses)
    assert here(ours)(0).edges == 30


def test_sides_that_learn_different_things_are_not_timed() -> None:
    gate([3.7, 5.5, 3.8], [3.7001, 5.5, 3.8])
    for theirs in ([3.7, 5.5, 3.9], [3.7, 5.5]):
        with pytest.raises(SystemExit, match="different things"):
            gate([3.7, 5.5, 3.8], theirs)


def test_processor_seconds_are_compared_beside_wall_seconds() -> None:
    sides = {
        "siafu": lambda n: Turn(wall=9.0 if n < 0 else 1.0, cpu=0.5, edges=1),
        "dgl": lambda n: Turn(wall=3.0, cpu=2.0, edges=1),
    }
    row = compared(take_turns(sides, repeats=3))
    assert (row["dgl / siafu"], row["dgl / siafu, cpu"]) == (3.0, 4.0)
    assert row["siafu"]["samples"] == 3
    assert row["siafu"]["cpu_median_ms"] == 500.0
