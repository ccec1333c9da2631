"""What inference over all nodes has given, kept while the weights stay the same."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from siafu.minibatch import KeptRows, Relay, Room
from siafu.ops import sum_type
from siafu.shard import PickedRows, WrittenRows

LayerRows = WrittenRows | PickedRows

_OWN = "own"
"""What rows beside those of a layer are called in its folder."""


@dataclass(eq=False)
class Inferred:
    """Rows of all owned nodes, as far as they were asked for."""

    weights: list[Tensor]
    logits: WrittenRows | None = None
    embeddings: WrittenRows | None = None
    hidden: list[LayerRows] = field(default_factory=list)
    """Of the layers that the embeddings took, what those after them read."""
    layers: int = 0
    """How many those were."""
    key: str = ""
    """Of the files that these are in, where they outlast the process."""

    @classmethod
    def by(cls, module: nn.Module) -> "Inferred":
        """Return nothing yet, by the present weights."""
        return cls([tensor.detach().clone() for tensor in module.state_dict().values()])

    def is_by(self, module: nn.Module) -> bool:
        """Return whether the weights are still those."""
        pairs = zip(module.state_dict().values(), self.weights, strict=True)
        return all(torch.equal(now, before) for now, before in pairs)


class OwnRows:
    """What a map makes of own rows: written piece after piece, then read so."""

    kept: KeptRows | None = None
    """The layer that writes them, where its rows outlast the process."""

    def __init__(self, num_owned: int, relay: Relay, room: Room) -> None:
        self._num_owned, self._relay, self._on_disk = num_owned, relay, room.on_disk
        self._rows: WrittenRows | None = None

    def write(self, low: int, rows_MO: Tensor | None) -> None:
        """Keep rows from `low` on; None of a layer that has no such map."""
        if rows_MO is None:
            return
        if self._found() is None:
            kind = sum_type(rows_MO.dtype) if self._on_disk else rows_MO.dtype
            shape = (self._num_owned, rows_MO.size(1))
            if self.kept is not None:
                self._rows = self.kept.new(_OWN, shape, kind)
            else:
                self._rows = self._relay.new_rows(shape, kind, on_disk=self._on_disk)
        self.rows.write(low, rows_MO)

    def _found(self) -> WrittenRows | None:
        if self._rows is None and self.kept is not None:
            self._rows = self.kept.found(_OWN)
        return self._rows

    @property
    def rows(self) -> WrittenRows:
        """All of them."""
        assert self._rows is not None, "some were added"
        return self._rows

    def read(self, low: int, count: int, device: torch.device) -> Tensor | None:
        """Return so many rows from `low` on, on a device."""
        rows = self._found()
        return None if rows is None else rows.slice(low, low + count).to(device)
