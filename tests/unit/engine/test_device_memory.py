"""A device without memory: what it holds is told by kind, with what needs less."""

import pytest
import torch

from siafu.engine.device_memory import held_by, naming_what_is_held
from siafu.errors import BudgetError


@pytest.mark.parametrize(
    ("unit", "fix"), [("macrobatch", "--rows-on pinned"), ("graph", "batchgnn"), ("interval", "")]
)
def test_what_is_held_is_named_by_kind(unit: str, fix: str) -> None:
    held = {"features": 2 * 10**9, "edges": 0}
    naming = naming_what_is_held(torch.device("cpu"), unit, lambda: dict(held))
    with pytest.raises(BudgetError, match="no memory left") as told, naming:
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert "features 2.00 GB" in told.value.seen
    assert "edges" not in told.value.seen
    assert fix in told.value.fix


def test_other_errors_pass_and_a_cpu_holds_nothing_there() -> None:
    naming = naming_what_is_held(torch.device("cpu"), "graph", dict)
    with pytest.raises(ValueError, match="other"), naming:
        raise ValueError("other")
    weights = [torch.nn.Parameter(torch.ones(3))]
    assert set(held_by(None, torch.optim.Adam(weights)).values()) == {0}
