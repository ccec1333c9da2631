"""What inference over all nodes has given, kept while the weights stay the same."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from siafu.minibatch import Relay, Room
from siafu.ops import sum_type
from siafu.shard import PickedRows, WrittenRows

LayerRows = WrittenRows | PickedRows


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

    @classmethod
    def by(cls, module: nn.Module) -> "Inferred":
        """Return nothing yet, by the present weights."""
        return cls([tensor.detach().clone() for tensor in module.state_dict().values()])

    def is_by(self, module: nn.Module) -> bool:
        """Return whether the weights are still those."""
        pairs = zip(module.state_dict().values(), self.weights, strict=True)
        return all(torch.equal(now, before) for now, before in pairs)


class OwnRows:
    """What a map makes of own rows: added piece after piece, then taken so."""

    def __init__(self, num_owned: int, relay: Relay, room: Room) -> None:
        self._num_owned, self._relay, self._on_disk = num_owned, relay, room.on_disk
        self._rows: WrittenRows | None = None
        self._added = self._taken = 0

    def add(self, rows_MO: Tensor | None) -> None:
        """Keep the rows that come next; None of a layer that has no such map."""
        if rows_MO is None:
            return
        if self._rows is None:
            kind = sum_type(rows_MO.dtype) if self._on_disk else rows_MO.dtype
            shape = (self._num_owned, rows_MO.size(1))
            self._rows = self._relay.new_rows(shape, kind, on_disk=self._on_disk)
        self._rows.write(self._added, rows_MO)
        self._added += len(rows_MO)

    @property
    def rows(self) -> WrittenRows:
        """All of them."""
        assert self._rows is not None, "some were added"
        return self._rows

    def take(self, count: int, device: torch.device) -> Tensor | None:
        """Return the next rows, on a device."""
        if self._rows is None:
            return None
        self._taken += count
        return self._rows.slice(self._taken - count, self._taken).to(device)
