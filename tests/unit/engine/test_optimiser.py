"""Our optimisers against torch's own, and the course of the learning rate."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from siafu.config import make_config
from siafu.engine import optimiser as ours
from siafu.engine.optimiser import Adam, make_optimiser, rate_factor


def weights_after(make: Callable[..., Any], *, resumes: bool) -> tuple[Any, Any]:
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


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD"])
def test_steps_and_state_are_those_of_torch(name: str) -> None:
    weights, state = weights_after(getattr(torch.optim, name), resumes=False)
    for resumes in (False, True):
        our_weights, our_state = weights_after(getattr(ours, name), resumes=resumes)
        torch.testing.assert_close(our_weights, weights, rtol=0, atol=0)
        torch.testing.assert_close(our_state["state"], state["state"], rtol=0, atol=0)
        assert our_state["param_groups"] == state["param_groups"]


def test_hooks_of_a_step_are_called_once() -> None:
    calls = []
    optimiser = Adam([nn.Parameter(torch.ones(1))])
    optimiser.register_step_post_hook(lambda *_: calls.append(1))
    torch.optim.Adam([nn.Parameter(torch.ones(1))])
    optimiser.step()
    assert calls == [1]


def factors(**settings: Any) -> list[float]:
    config = make_config(data="planted", **settings).resolved()
    return [round(rate_factor(config, epoch), 4) for epoch in range(1, config.epochs + 1)]


def test_learning_rate_rises_and_falls_as_asked() -> None:
    assert factors(epochs=3) == [1, 1, 1]
    assert factors(epochs=4, schedule="linear") == [1, 0.75, 0.5, 0.25]
    assert factors(epochs=4, schedule="step") == [1, 1, 0.1, 0.01]
    assert factors(epochs=4, schedule="cosine") == [1, 0.8536, 0.5, 0.1464]
    assert factors(epochs=5, schedule="linear", warmup=3) == [0.25, 0.5, 0.75, 1, 0.5]


def test_a_long_gradient_is_shortened_over_all_weights() -> None:
    config = make_config(data="planted", optimizer="sgd", lr=1, momentum=0, weight_decay=0)
    weights = [nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))]
    clipped = config.model_copy(update={"clip_norm": 1.0}).resolved()
    for settings, wanted in ((config.resolved(), [-3.0, -4.0]), (clipped, [-0.6, -0.8])):
        for weight, gradient in zip(weights, (3.0, 4.0), strict=True):
            weight.data.zero_()
            weight.grad = torch.tensor([gradient])
        make_optimiser(settings, weights).step()
        assert [float(w.detach()) for w in weights] == pytest.approx(wanted)
