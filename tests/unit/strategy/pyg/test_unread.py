"""What a model of the user's own passes over of the edges is known by its forward."""

from typing import Any

import pytest
from torch import Tensor, nn

from siafu.strategy import unread_of_edges


class Plain(nn.Module):
    """Reads nothing of edges."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return x


class Weighing(nn.Module):
    """Reads weights."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return x


class HasTwo:
    """As much of a shard as is asked."""

    def reader(self, name: str) -> object | None:
        return None if name == "edge_type" else self


@pytest.mark.parametrize(
    ("model", "unread"), [(Plain, ["edge_weight", "edge_attr"]), (Weighing, ["edge_attr"])]
)
def test_columns_that_forward_does_not_name(model: type[nn.Module], unread: list[str]) -> None:
    shard: Any = HasTwo()
    assert unread_of_edges(model(), shard) == unread
