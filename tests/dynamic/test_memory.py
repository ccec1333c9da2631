"""What backward keeps grows with a time block, not with the number of snapshots."""

import weakref

import pytest
import torch
from torch import Tensor

from siafu.comm import World
from siafu.engine.dynamic.snapshots import Snapshots
from siafu.ingest import drifting, graph_from_events
from siafu.nn import Draws, DynamicSpec, build_dynamic
from siafu.partitioning import plan_time
from siafu.shard import NodeShare
from siafu.strategy import TimeRunner, TimeStrategy


class Kept:
    """A tensor that autograd keeps, and one number for all of them together."""

    now = most = 0

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, size = tensor, tensor.nbytes
        Kept.now += size
        Kept.most = max(Kept.most, Kept.now)
        weakref.finalize(self, Kept.give_back, size)

    @staticmethod
    def give_back(size: int) -> None:
        Kept.now -= size


def most_kept(model: str, steps: int, block: int) -> int:
    """Return the most bytes that autograd keeps at once in a training step."""
    graph = graph_from_events(drifting(64, num_steps=steps, width=4), window="each")[0]
    torch.manual_seed(0)
    net = build_dynamic(DynamicSpec(name=model, in_width=4, hidden=8, band=3))
    plan = plan_time([1] * steps, 1, train_steps=steps, block_steps=block)
    source = Snapshots(graph, range(steps), net, Draws(), NodeShare(graph.num_nodes, World()))
    runner = TimeRunner(net, source, plan, World(), TimeStrategy(block=block))
    Kept.now = Kept.most = 0
    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        runner.train(lambda block, rows: rows.square().mean())
    assert all(p.grad is not None for p in net.parameters())
    return Kept.most


@pytest.mark.parametrize("model", ["tm-gcn", "cd-gcn", "evolvegcn-h"])
def test_blocks_bound_what_is_kept(model: str) -> None:
    whole, long = most_kept(model, 16, 0), most_kept(model, 32, 0)
    assert long > 1.8 * whole, "without blocks it grows with time"
    blocked, longer = most_kept(model, 16, 4), most_kept(model, 32, 4)
    assert blocked < 0.4 * whole
    assert longer <= 1.05 * blocked
