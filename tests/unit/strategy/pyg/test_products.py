"""A foreign model's products are torch's, however its code names what it multiplies."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from siafu.comm import World
from siafu.ingest import load
from siafu.ops import product
from siafu.partitioning import partition_graph
from siafu.shard import open_shard
from siafu.strategy import parallelize


class ByName(nn.Module):
    """Three ways to call one function."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = functional.linear(x, self.first.weight, bias=self.first.bias)
        x = functional.linear(input=x, weight=self.second.weight)
        return functional.linear(x, self.second.weight[0])


def test_products_by_any_of_torchs_names(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "1.parts"
    partition_graph(load("planted:300"), folder, num_parts=1, method="contiguous")
    shard = open_shard(folder, World())
    module = ByName(shard.x.size(1))
    want = module(shard.x, None)
    for is_faster in (False, torch.backends.mkldnn.is_available()):
        monkeypatch.setattr(product, "_is_faster_here", lambda is_faster=is_faster: is_faster)
        torch.testing.assert_close(parallelize(module, shard)(shard.x), want, rtol=1e-4, atol=1e-5)
