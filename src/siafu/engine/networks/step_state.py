"""Gradients and buffers of a step that has several minibatches."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass(slots=True)
class StepsTaken:
    """Loss and size of each step of an epoch so far."""

    earlier: list[float] = field(default_factory=list)
    """Losses of those that were taken before the epoch was left."""
    seeds: list[int] = field(default_factory=list)
    """Of all."""
    losses: list[Tensor] = field(default_factory=list)

    def __len__(self) -> int:
        """Return how many they are."""
        return len(self.seeds)

    def note(self, loss: Tensor, seeds: int) -> None:
        """Add a step."""
        self.losses.append(loss)
        self.seeds.append(seeds)

    def told(self) -> list[float]:
        """Return all losses; not after each step, since a device is waited for."""
        return [*self.earlier, *(torch.stack(self.losses).tolist() if self.losses else [])]

    def mean(self) -> float:
        """Return the mean over all seeds."""
        total = math.fsum(loss * n for loss, n in zip(self.told(), self.seeds, strict=True))
        return total / max(1, sum(self.seeds))


class StepState:
    """Gradients and buffers of a model around one step of several minibatches.

    Every minibatch starts from the same buffers (running statistics of batch norm); the step ends
    with their mean. So a step's result does not depend on which rank had which minibatch.
    """

    def __init__(self, module: nn.Module) -> None:
        self._trained = [p for p in module.parameters() if p.requires_grad]
        self._buffers = list(module.buffers())
        self._before = [buffer.clone() for buffer in self._buffers]

    def begin(self) -> None:
        """Begin another step where the last one ended."""
        self._before = [buffer.clone() for buffer in self._buffers]

    def rewind(self) -> None:
        """Go back to the start of the step."""
        for parameter in self._trained:
            parameter.grad = None
        for buffer, before in zip(self._buffers, self._before, strict=True):
            buffer.copy_(before)

    def flat(self, loss: Tensor, *, is_empty: bool) -> Tensor:
        """Return what one minibatch adds to the step, in one row."""
        first = self._trained[0]
        has = first.new_tensor([p.grad is not None for p in self._trained])
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._trained]
        # Changes, since constants (masks of -inf, large integers) must come back as they are.
        pairs = zip(self._buffers, self._before, strict=True)
        buffers = [torch.where(b == before, 0, b - before).to(first) for b, before in pairs]
        counts = first.new_tensor([float(not is_empty)])
        pieces = [loss.to(first), counts, has, *grads, *buffers]
        return torch.cat([piece.reshape(-1) for piece in pieces])

    def settle_alone(self) -> None:
        """Do what `flat` and `load` would with the only minibatch of a step: gradients stay.

        Nothing is read on the host, so a device is not waited for.
        """
        for buffer, before in zip(self._buffers, self._before, strict=True):
            change = torch.where(buffer == before, 0, buffer - before).to(self._trained[0])
            _add_change(buffer, before, change)

    def empty_terms(self) -> Tensor:
        """Return no rows, for a rank without a minibatch in the step."""
        return self.flat(torch.zeros(()), is_empty=True)[None][:0]

    def load(self, total_K: Tensor) -> Tensor:
        """Set gradients and buffers to the step's own, and return its loss."""
        sizes = [1, 1, len(self._trained)]
        sizes += [p.numel() for p in self._trained] + [b.numel() for b in self._buffers]
        loss, count, has, *pieces = total_K.split(sizes)
        for parameter, present, piece in zip(self._trained, has.tolist(), pieces, strict=False):
            parameter.grad = piece.view_as(parameter) if present else None
        changes = pieces[len(self._trained) :]
        for buffer, before, piece in zip(self._buffers, self._before, changes, strict=True):
            _add_change(buffer, before, (piece / count.clamp(min=1)).view_as(buffer))
        return loss[0]


def _add_change(buffer: Tensor, before: Tensor, change: Tensor) -> None:
    if not buffer.is_floating_point():
        change = change.round()
    buffer.copy_(torch.where(change == 0, before, before + change.to(before)))
