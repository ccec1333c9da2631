"""A step of several minibatches: gradients add up, buffers end at the mean of their changes."""

import torch
from torch import nn

from siafu.engine.networks.step_state import StepState


def test_buffers_end_at_the_mean_and_constants_stay() -> None:
    module = nn.BatchNorm1d(2)
    module.register_buffer("mask", torch.tensor([-torch.inf, 0.5]))
    module.register_buffer("number", torch.tensor(16_777_217))
    state, terms = StepState(module), []
    for mean in (2.0, 6.0):
        state.rewind()
        module.running_mean += mean
        module.num_batches_tracked += 1
        module.weight.grad = torch.full((2,), mean)
        terms.append(state.flat(torch.tensor(mean), is_empty=False))
    state.rewind()
    terms.append(state.flat(torch.zeros(()), is_empty=True))
    assert state.load(torch.stack(terms).sum(0)) == 8.0
    assert module.running_mean.tolist() == [4.0, 4.0]
    assert int(module.num_batches_tracked) == 1
    assert module.weight.grad.tolist() == [8.0, 8.0]
    assert module.bias.grad is None
    assert module.mask.tolist() == [-torch.inf, 0.5]
    assert int(module.number) == 16_777_217
