"""Rows that could not be sent, noted where they are encoded and looked at once a step.

On a CPU that is known at once. A device would make the host wait at every exchange, behind all that
was asked of it before; so flags stay there until the engine reads the loss, and waits anyway.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from siafu.ops import Encoded, bad_row

_MOST_NOTED = 1024
"""Messages whose flags are kept where nobody looks, such as in a loop of the user's own."""


@dataclass(slots=True)
class BadRows:
    """What was encoded since somebody looked, with what its rows are called."""

    _noted: list[tuple[Tensor, Callable[[int], str]]] = field(default_factory=list)

    def note(self, encoded: Encoded, name_row: Callable[[int], str]) -> None:
        """Have rows of a message be looked at later; `name_row` is told their place in it."""
        if not len(encoded.range_S):
            return
        self._noted.append((encoded.first_bad_place(), name_row))
        if len(self._noted) >= _MOST_NOTED:
            self.check()

    def check(self) -> None:
        """Raise where a row could not be sent; the host waits for the device, if any were noted."""
        noted, self._noted = self._noted, []
        if not noted:
            return
        places = torch.stack([place for place, _ in noted]).tolist()
        for place, (_, name_row) in zip(places, noted, strict=True):
            if place >= 0:
                raise bad_row(name_row(place))


def looks_later(encoded: Encoded) -> bool:
    """Return whether rows of a message are better looked at once a step than now."""
    return encoded.range_S.is_cuda
