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
from siafu.graph import Array, Ids
from siafu.nn import Draws
from siafu.shard import NodeShare, Shard

FEATURES_OF_PAIRS = "pairs-features.npy"
"""Beside the pairs, where they have features: float32 [P, K], prepared."""
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
    share = NodeShare(shard.num_nodes, world, shard.part_of if world.size > 1 else None)
    judge = _edge_judge if isinstance(network, EdgeNetwork) else _link_judge
    columns_of = judge(network, shard, share)

    def table(src_B: Tensor, dst_B: Tensor, attr_BK: Tensor | None) -> pa.Table:
        named = {"src": src_B, "dst": dst_B}
        ends = {name: ids.take(rows.cpu().numpy()).to_arrow() for name, rows in named.items()}
        return pa.table(ends | columns_of(src_B, dst_B, attr_BK))

    write_part((table(*some) for some in _mine(pairs, share)), target, world.rank)


Columns = Callable[[Tensor, Tensor, Tensor | None], dict[str, pa.Array]]


def _mine(pairs: Path, share: NodeShare) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Yield the pairs with a destination of this rank, equally often on every rank."""
    whole, features = _opened(pairs), _opened(pairs.with_name(FEATURES_OF_PAIRS))
    assert whole is not None
    device = share.world.device
    for low in range(0, max(1, len(whole)), _PAIRS_AT_ONCE):
        rows = slice(low, low + _PAIRS_AT_ONCE)
        some = torch.from_numpy(np.array(whole[rows])).to(device)
        is_mine = share.is_mine(some[:, 1])
        own = some[is_mine]
        attr = None
        if features is not None:
            attr = torch.from_numpy(np.array(features[rows])).to(device)[is_mine]
        yield own[:, 0].contiguous(), own[:, 1].contiguous(), attr


def _opened(file: Path) -> Array | None:
    if not file.exists():
        return None
    return np.load(file, mmap_mode="r" if file.stat().st_size > 128 else None)


def _link_judge(network: Network, shard: Shard, share: NodeShare) -> Columns:
    rows_ND = network.logits().to(share.world.device)

    def columns(src_B: Tensor, dst_B: Tensor, _: Tensor | None) -> dict[str, pa.Array]:
        source, target = share.fetch(rows_ND, src_B), rows_ND[share.rows(dst_B)]
        score = (source.double() * target.double()).sum(dim=1)
        return {"score": pa.array(score.cpu().numpy())}

    return columns


def _known_features(attr_BK: Tensor | None, width: int) -> Tensor:
    if attr_BK is None or attr_BK.size(1) != width:
        raise ConfigError(
            "The model reads features of edges, which the pairs do not have.",
            seen=f"{width} features of each edge, without names",
            fix="train on tables, whose columns have names that are found in the pairs; or give "
            "the pairs as the edges of --data",
        )
    return attr_BK


def _edge_judge(network: Network, shard: Shard, share: NodeShare) -> Columns:
    assert isinstance(network, EdgeNetwork)
    head, targets, objective = network.head, node_targets(shard), shard.objective
    rows_ND = network.embeddings()
    source_NH, target_NH = head.source(rows_ND), head.target(rows_ND)

    def columns(src_B: Tensor, dst_B: Tensor, attr_BK: Tensor | None) -> dict[str, pa.Array]:
        sums = share.fetch(source_NH, src_B) + target_NH[share.rows(dst_B)]
        if head.edge is not None:
            sums = sums + head.edge(_known_features(attr_BK, head.edge.in_features))
        out_BO = head.joined(sums)
        told = prediction_columns(out_BO, objective, targets, None)
        if targets.num_classes == 2:
            score = positive_share(out_BO, objective.positive)
            told = {"score": pa.array(score.cpu().numpy())} | told
        return told

    return columns
