"""What turns embeddings into answers: about vertices, or about pairs of them.

Shapes: N vertices, E pairs, D embedding width, O answers.
"""

import torch
from torch import Tensor, nn


class VertexHead(nn.Module):
    """out = W x + b for each vertex."""

    def __init__(self, width: int, out_width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out_width)

    def forward(self, x_ND: Tensor) -> Tensor:
        """Return out_NO."""
        return self.linear(x_ND)


class PairHead(nn.Module):
    """out = W [x_u | x_v] for each pair, or a hidden layer between: W' relu(W [x_u | x_v] + b).

    The two halves of W are applied to vertices, so that pairs cost additions alone. Without a
    hidden layer there is no b: it would learn how frequent classes were while trained on, which
    changes over time.
    """

    def __init__(self, width: int, out_width: int, hidden: int = 0) -> None:
        super().__init__()
        self.source = nn.Linear(width, hidden or out_width, bias=hidden > 0)
        self.target = nn.Linear(width, hidden or out_width, bias=False)
        self.last = nn.Linear(hidden, out_width) if hidden else None

    def forward(self, x_ND: Tensor, source_E: Tensor, target_E: Tensor) -> Tensor:
        """Return out_EO."""
        return self.joined(self.source(x_ND)[source_E] + self.target(x_ND)[target_E])

    def joined(self, sum_EH: Tensor) -> Tensor:
        """Return out_EO of the pairs whose halves have been added up."""
        return sum_EH if self.last is None else self.last(torch.relu(sum_EH))
