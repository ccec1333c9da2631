"""Rows that wait in the host's memory until backward change no bit of a step."""

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from siafu.nn import CARDS
from siafu.strategy import Offload, Strategy, leaving
from tests.harness import RankPool
from tests.parity.steps import LateCopier, distributed_steps
from tests.parity.test_models import spec_of

ALL = 1 << 40


def assert_same_bits(got: dict, want: dict) -> None:
    assert got["losses"] == want["losses"]
    for kind in ("grads", "weights"):
        for name, value in want[kind].items():
            assert torch.equal(got[kind][name], value), name


@pytest.mark.parametrize(("stages", "size"), [(1, 1), (1, 2), (4, 3), (1, 4)])
@pytest.mark.parametrize("model", CARDS)
def test_rows_in_the_hosts_memory_change_no_bit(
    ranks: RankPool, parts_of, model: str, stages: int, size: int
) -> None:
    parts, spec = parts_of("hash", size, True), spec_of(model, "plain")
    lean = Strategy(stages=stages, recompute=stages > 1)
    want = ranks.run(distributed_steps, size, parts, spec, lean)
    for most in (ALL, 4000):
        away = lean.with_choices(offload=most)
        for got, same in zip(
            ranks.run(distributed_steps, size, parts, spec, away), want, strict=True
        ):
            assert_same_bits(got, same)
            assert 0 < got["left"] <= most


def small(most: int = ALL) -> Offload:
    more = {"copier": LateCopier(), "least_bytes": 64, "chunk_bytes": 100}
    return Offload(most, torch.device("cpu"), **more)


def chain(x_ND: Tensor, layers: int, gone: list[StorageWeakRef]) -> Tensor:
    """Return rows whose layers each keep one storage, whose fate is noted."""
    for _ in range(layers):
        x_ND = torch.sigmoid(x_ND)
        gone.append(StorageWeakRef(x_ND.untyped_storage()))
    return x_ND.sum()


def test_only_what_is_in_hand_stays_on_the_device() -> None:
    offload, kept = small(), []
    x_ND = torch.randn(20, 4, requires_grad=True)
    with leaving(offload):
        loss = chain(x_ND, 6, kept)
    assert [one.expired() for one in kept] == [True] * 5 + [False], "the last one is on its way"
    assert offload.step_bytes == 6 * 320
    loss.backward()
    again = torch.zeros_like(x_ND).copy_(x_ND.detach()).requires_grad_()
    chain(again, 6, []).backward()
    assert torch.equal(x_ND.grad, again.grad)


def test_the_first_leave_and_the_rest_stays() -> None:
    offload, kept = small(3 * 320), []
    with leaving(offload):
        loss = chain(torch.randn(20, 4, requires_grad=True), 6, kept)
    assert [one.expired() for one in kept] == [True, True, False, False, False, False]
    loss.backward()


def test_memory_of_the_host_is_used_again() -> None:
    offload = small()
    for _ in range(3):
        with leaving(offload):
            loss = chain(torch.randn(20, 4, requires_grad=True), 6, [])
        taken = offload.pinned_bytes
        loss.backward()
        del loss
    assert taken == offload.pinned_bytes == 6 * 400


def test_a_storage_leaves_once_and_comes_back_as_its_views_were() -> None:
    offload, x_ND = small(), torch.randn(20, 4, requires_grad=True)
    with leaving(offload):
        wide_ND = torch.sigmoid(x_ND)
        out = (wide_ND[1:] * wide_ND[:-1]).sum()
    assert offload.step_bytes == wide_ND.nbytes
    out.backward()
    assert bool(x_ND.grad.isfinite().all())


def test_what_stays_and_what_is_no_row_of_a_node_does_not_leave() -> None:
    weight_DO = torch.randn(30, 4, requires_grad=True)
    offload = Offload(ALL, torch.device("cpu"), [weight_DO], least_bytes=64)
    edges_2E, wide_NE = torch.zeros(2, 90, dtype=torch.long), torch.randn(3, 30)
    for tensor in (weight_DO.detach(), weight_DO.t(), edges_2E, wide_NE, torch.randn(90)):
        assert isinstance(offload.pack(tensor), Tensor)
    assert offload.step_bytes == 0


def test_a_graph_that_is_given_up_leaves_nothing_behind() -> None:
    offload, kept = small(), []
    with leaving(offload):
        loss = chain(torch.randn(20, 4, requires_grad=True), 4, kept)
    del loss
    assert all(one.expired() for one in kept)
    with leaving(offload):
        chain(torch.randn(20, 4, requires_grad=True), 4, [])
    assert offload.pinned_bytes == 4 * 400


def test_two_steps_forward_before_either_goes_back() -> None:
    offload, grads = small(), []
    rows = [torch.randn(20, 4).requires_grad_() for _ in range(2)]
    losses = []
    for x_ND in rows:
        with leaving(offload):
            losses.append(chain(x_ND, 5, []))
    for loss, x_ND in zip(losses, rows, strict=True):
        loss.backward()
        again = x_ND.detach().clone().requires_grad_()
        chain(again, 5, []).backward()
        grads.append((x_ND.grad, again.grad))
    assert all(torch.equal(got, want) for got, want in grads)
