"""An interval's epoch, where newer rows come between its forward and its backward."""

import pytest
import torch

from siafu.pipeline.gathers import Asked
from siafu.pipeline.passage import Passage


def test_an_answer_is_renewed_once_when_newer_rows_have_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passage = Passage(None, 0, 2, 0)
    old, new = torch.zeros(1), torch.ones(1)
    passage._asked, passage._stamps = [Asked((), (), (old,))], [b"1"]
    stamps, answers = [b"1"], []

    def answer(layer: int, asked: Asked) -> tuple[torch.Tensor, tuple[torch.Tensor]]:
        answers.append(layer)
        return new, (new,)

    monkeypatch.setattr(passage, "_stamps_of", lambda layer: stamps[0])
    monkeypatch.setattr(passage, "_answer", answer)
    assert passage._as_of_now(0).kept == (old,)
    stamps[0] = b"2"
    for _ in range(2):
        assert passage._as_of_now(0).kept == (new,)
    assert answers == [0]
