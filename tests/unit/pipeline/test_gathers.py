"""Graph tasks of intervals, where what others sent is of older rows."""

from pathlib import Path

import pytest
import torch

from siafu.comm import World
from siafu.elastic import inspect_parts
from siafu.ingest import load
from siafu.nn import Draws, ModelSpec
from siafu.partitioning import partition_graph
from siafu.pipeline.gathers import Asked, AttentionGather
from siafu.pipeline.rows import even_bounds
from siafu.shard import Shard, open_shard


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    folder: Path = tmp_path_factory.mktemp("gathers") / "planted.parts"
    partition_graph(load("planted:120"), folder, num_parts=1)
    return open_shard(folder, World())


def test_weights_by_an_older_softmax_add_up_to_no_more_than_one(shard: Shard) -> None:
    spec = ModelSpec(name="gat", in_width=4, out_width=4, hidden=8, heads=2, dropout=0.0)
    question = inspect_parts(spec)[0].question
    assert question is not None
    whole = even_bounds(shard.num_owned, 1)
    gather = AttentionGather(question, shard, whole, Draws())
    torch.manual_seed(0)
    z, left, right = (
        torch.randn(shard.num_owned, *t.shape[1:]) for t in (*question.sources, *question.rows)
    )
    asked = Asked((z, left), (right,))
    seen = (z.flatten(1), left)
    _, (_, true_NH) = gather.answer(question, 0, seen, asked, 1)

    # One interval has all sources, so the least that is possible is the softmax of these rows.
    bounded = gather._bounded(question, 0, asked, (right,), true_NH - 50)
    torch.testing.assert_close(bounded, true_NH)
    assert torch.equal(gather._bounded(question, 0, asked, (right,), true_NH + 5), true_NH + 5)
