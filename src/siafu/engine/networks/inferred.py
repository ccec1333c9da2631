"""What inference over all nodes has given, kept while the weights stay the same."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

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
