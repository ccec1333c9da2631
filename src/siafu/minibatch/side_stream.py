"""A stream of the device for the thread that works ahead of training; nothing on a CPU."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

_Made = TypeVar("_Made")


class _Handed(Protocol):
    """What one stream makes for another."""

    @property
    def made(self) -> Any:
        """The event after which it is there."""
        ...

    @property
    def tensors(self) -> list[Tensor]:
        """What it is made of."""
        ...


_Thing = TypeVar("_Thing", bound=_Handed)


class SideStream:
    """Work beside training on one device, handed over without making the host wait."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def follow(self) -> None:
        """Begin after what this thread has asked of the device so far."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))

    def run(self, work: Callable[..., _Made], *given: Any) -> _Made:
        """Do some work on the stream."""
        if self._stream is None:
            return work(*given)
        with torch.cuda.stream(self._stream):
            return work(*given)

    def mark(self) -> Any:
        """Return when what was asked of the stream so far is done; None on a CPU."""
        return None if self._stream is None else self._stream.record_event()

    def hand_over(self, thing: _Thing) -> _Thing:
        """Return what the stream made, for use in this thread's stream from now on."""
        if self._stream is not None:
            current = torch.cuda.current_stream(self._stream.device)
            current.wait_event(thing.made)
            # Else their memory would be given to the next macrobatch while it is still read; once
            # for all slices of one tensor.
            owners = {tensor.untyped_storage().data_ptr(): tensor for tensor in thing.tensors}
            for tensor in owners.values():
                tensor.record_stream(current)
        return thing
