"""Torch's Adam without its guards from the compiler, which load it: 1.2 s in each process.

Ops have theirs when there is a compiler (`siafu.ops.compiler_guard`). Steps of ours are never
compiled, so the optimiser needs none.
"""

from inspect import unwrap
from typing import Any

import torch


class Adam(torch.optim.Adam):
    """`torch.optim.Adam`: the same numbers and the same state."""

    add_param_group: Any = unwrap(torch.optim.Adam.add_param_group)
    load_state_dict: Any = unwrap(torch.optim.Adam.load_state_dict)
    state_dict: Any = unwrap(torch.optim.Adam.state_dict)
    zero_grad: Any = unwrap(torch.optim.Adam.zero_grad)
    # What is taken off here sets gradients aside too.
    step: Any = torch.no_grad()(unwrap(torch.optim.Adam.step))
