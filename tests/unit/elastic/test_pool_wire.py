"""Rows on their way to a pool in fewer bits: right on average, and back in their old form."""

import pytest
import torch

from siafu.elastic.tensors import decode_rows, encode_rows
from siafu.errors import TaskError
from siafu.ops import DrawKey

ROWS = 6


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "answer": torch.randn(ROWS, 2, 5),
        "x": torch.randn(ROWS, 3, dtype=torch.float64),
        "w.weight": torch.randn(ROWS, 4),
        "ids": torch.arange(ROWS),
        "few": torch.randn(ROWS - 1, 4),
    }


def sent(epoch: int, bits: int = 4) -> dict[str, torch.Tensor]:
    return encode_rows(tensors(), torch.arange(ROWS), bits, "to forward 1", DrawKey(3, epoch, 0))


def test_only_rows_of_nodes_are_rounded_and_the_form_comes_back() -> None:
    got, want = decode_rows(sent(1, 8)), tensors()
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        assert (got[name].shape, got[name].dtype) == (tensor.shape, tensor.dtype)
        assert torch.equal(got[name], tensor) == (name not in ("answer", "x")), name


def test_the_mean_of_many_draws_is_the_row() -> None:
    want, draws = tensors()["answer"], 400
    decoded = torch.stack([decode_rows(sent(epoch, 8))["answer"] for epoch in range(draws)])
    step = (want.flatten(1).amax(1) - want.flatten(1).amin(1)) / 255
    error = (decoded.mean(0) - want).abs().flatten(1).amax(1)
    # Rounding moves an entry by half a step at most on either side: 5 standard errors of a mean.
    assert bool((error < 5 * 0.5 * step / draws**0.5).all())


def test_the_same_task_is_rounded_alike_and_another_epoch_is_not() -> None:
    assert torch.equal(sent(1)["q.answer"], sent(1)["q.answer"])
    assert not torch.equal(sent(1)["q.answer"], sent(2)["q.answer"])


def test_whole_floats_are_left_as_they_are() -> None:
    given = tensors()
    assert encode_rows(given, torch.arange(ROWS), 32, "", DrawKey(0, 0, 0)) is given


@pytest.mark.parametrize("form", [None, [5, 0, 6, 10], [4, 9, 6, 10], [4, 0, 6], [4, 0, 10**9, 10]])
def test_a_payload_without_a_form_that_makes_sense_is_refused(form: list[int] | None) -> None:
    coded = sent(1)
    del coded["form.answer"]
    if form is not None:
        coded["form.answer"] = torch.tensor(form)
    with pytest.raises(TaskError, match="form that makes sense"):
        decode_rows(coded)
