"""Scores of the user's own pairs of nodes, by a model of links or of edges.

Shapes: P pairs, B some of this rank's, N owned rows, D width, O outputs.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from siafu.engine.edges import EdgeNetwork
from siafu.engine.infer import node_targets, prediction_columns, write_part
from siafu.engine.metrics import positive_share
from siafu.engine.networks.network import Network
from siafu.errors import ConfigError
from siafu.graph import Ids
from siafu.nn import Draws
from siafu.shard import Shard, VertexShare

_PAIRS_AT_ONCE = 1 << 18


@torch.no_grad()
def write_pairs(
    network: Network, shard: Shard, draws: Draws, ids: Ids, pairs: Path, target: Path
) -> None:
    """Write src, dst and score of each pair; a rank writes those whose destination it owns.

    `pairs` is a file of int64 [P, 2], numbers of nodes, whose ids are `ids`. Of edges, what else is
    told of them is written too; score is the probability of the class of two that is looked for.
    """
    network.module.eval()
    draws.training = False
    world = shard.world
    share = VertexShare(shard.num_vertices, world, shard.part_of if world.size > 1 else None)
    judge = _edge_judge if isinstance(network, EdgeNetwork) else _link_judge
    columns_of = judge(network, shard, share)

    def table(src_B: Tensor, dst_B: Tensor) -> pa.Table:
        named = {"src": src_B, "dst": dst_B}
        ends = {name: ids.take(rows.cpu().numpy()).to_arrow() for name, rows in named.items()}
        return pa.table(ends | columns_of(src_B, dst_B))

    write_part((table(*some) for some in _mine(pairs, share)), target, world.rank)


Columns = Callable[[Tensor, Tensor], dict[str, pa.Array]]


def _mine(pairs: Path, share: VertexShare) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the pairs with a destination of this rank, equally often on every rank."""
    whole = np.load(pairs, mmap_mode="r" if pairs.stat().st_size > 128 else None)
    for low in range(0, max(1, len(whole)), _PAIRS_AT_ONCE):
        some = torch.from_numpy(np.array(whole[low : low + _PAIRS_AT_ONCE])).to(share.world.device)
        own = some[share.is_mine(some[:, 1])]
        yield own[:, 0].contiguous(), own[:, 1].contiguous()


def _link_judge(network: Network, shard: Shard, share: VertexShare) -> Columns:
    rows_ND = network.logits().to(share.world.device)

    def columns(src_B: Tensor, dst_B: Tensor) -> dict[str, pa.Array]:
        source, target = share.fetch(rows_ND, src_B), rows_ND[share.rows(dst_B)]
        score = (source.double() * target.double()).sum(dim=1)
        return {"score": pa.array(score.cpu().numpy())}

    return columns


def _edge_judge(network: Network, shard: Shard, share: VertexShare) -> Columns:
    assert isinstance(network, EdgeNetwork)
    head, targets, objective = network.head, node_targets(shard), shard.objective
    if head.edge is not None:
        raise ConfigError(
            "The model reads features of edges, which pairs do not have.",
            seen=f"{head.edge.in_features} features of each edge",
            fix="give the pairs as the edges of --data, with their features",
        )
    rows_ND = network.embeddings()
    source_NH, target_NH = head.source(rows_ND), head.target(rows_ND)

    def columns(src_B: Tensor, dst_B: Tensor) -> dict[str, pa.Array]:
        out_BO = head.joined(share.fetch(source_NH, src_B) + target_NH[share.rows(dst_B)])
        told = prediction_columns(out_BO, objective, targets, None)
        if targets.num_classes == 2:
            score = positive_share(out_BO, objective.positive)
            told = {"score": pa.array(score.cpu().numpy())} | told
        return told

    return columns
