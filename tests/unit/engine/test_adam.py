"""Our Adam against torch's own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from siafu.engine.adam import Adam


def weights_after(make: Callable[..., torch.optim.Adam], *, resumes: bool) -> tuple[Any, Any]:
    torch.manual_seed(0)
    layer, x = nn.Linear(3, 2), torch.randn(5, 3)
    optimiser = make(layer.parameters(), lr=0.1, weight_decay=0.01)
    for step in range(6):
        if resumes and step == 3:
            state = optimiser.state_dict()
            optimiser = make(layer.parameters(), lr=1.0)
            optimiser.load_state_dict(state)
        optimiser.zero_grad()
        layer(x).square().sum().backward()
        optimiser.step()
    return layer.state_dict(), optimiser.state_dict()


def test_steps_and_state_are_those_of_torch() -> None:
    weights, state = weights_after(torch.optim.Adam, resumes=False)
    for resumes in (False, True):
        ours, our_state = weights_after(Adam, resumes=resumes)
        torch.testing.assert_close(ours, weights, rtol=0, atol=0)
        torch.testing.assert_close(our_state["state"], state["state"], rtol=0, atol=0)
        assert our_state["param_groups"] == state["param_groups"]


def test_hooks_of_a_step_are_called_once() -> None:
    calls = []
    optimiser = Adam([nn.Parameter(torch.ones(1))])
    optimiser.register_step_post_hook(lambda *_: calls.append(1))
    torch.optim.Adam([nn.Parameter(torch.ones(1))])
    optimiser.step()
    assert calls == [1]
