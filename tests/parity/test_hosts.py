"""Ranks of a host share halo rows: exact, and a row crosses the network once per host."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from siafu.comm import World
from siafu.nn import CARDS, Draws
from siafu.shard import open_shard
from siafu.strategy import BlockNeighbours, Strategy
from tests.harness import RankPool
from tests.parity.steps import Plan, assert_same, distributed_steps, single_steps
from tests.parity.test_models import EXACT, spec_of

HOSTS = ["ab", "aab", "abb", "aabb", "abab", "aaab"]
"""The host of each rank; two ranks on two hosts have nothing to share."""
STRATEGIES = {
    "halo": Strategy(),
    "two": Strategy(stages=2),
    "sar": Strategy(stages=4, recompute=True),
    "prune": Strategy(prune=True),
}
CASES: list[tuple[Plan | str, str, str]] = [("sage", "halo", hosts) for hosts in HOSTS]
CASES += [(model, "halo", "aabb") for model in (*CARDS, "softmax") if model != "sage"]
CASES += [(model, "sar", "aabb") for model in ("sage", "sage-max", "gat")]
CASES += [("gcn", "two", "abab"), ("gat", "two", "aab"), ("gcn", "sar", "aaab")]
CASES += [("gat", "prune", "aabb")]


@pytest.mark.parametrize(("model", "strategy", "hosts"), CASES)
def test_sharing_changes_nothing(ranks: RankPool, parts_of, model, strategy, hosts) -> None:
    plan = spec_of(model, "plain") if model in CARDS else model
    want = single_steps(parts_of("hash", 1, True), plan)
    parts, size = parts_of("hash", len(hosts), True), len(hosts)
    got = ranks.run(distributed_steps, size, parts, plan, STRATEGIES[strategy], hosts)
    assert_same(got, want, **EXACT)


def one_sum(world: World, folder: Path, hosts: str, strategy: Strategy) -> dict[str, Any]:
    """Return what a sum, forward and backward, sends, and who reads which rows from whom."""
    world.hosts = tuple(hosts)
    shard = open_shard(folder, world)
    neighbours = BlockNeighbours(shard, Draws(), strategy)
    x = torch.ones(shard.num_owned, 6, requires_grad=True)
    neighbours.sum(x)
    ids_R, meter = shard.column_ids[shard.num_owned :], world.meter
    for counts in (meter.bytes_sent, meter.bytes_to):
        counts.clear()
    neighbours.sum(x).sum().backward()
    owner = torch.arange(world.size).repeat_interleave(torch.tensor(shard.plan.recv_counts))
    pairs = list(zip(owner.tolist(), ids_R.tolist(), strict=True))
    return {"pairs": pairs, "sent": dict(meter.bytes_sent), "to": dict(meter.bytes_to)}


@pytest.mark.parametrize(
    ("hosts", "stages"), [("aab", 1), ("aabb", 1), ("abab", 1), ("aabb", 4), ("aaab", 4)]
)
def test_row_crosses_once_per_host(ranks: RankPool, parts_of, hosts: str, stages: int) -> None:
    parts, size, row_bytes = parts_of("hash", len(hosts), True), len(hosts), 6 * 4
    got = ranks.run(one_sum, size, parts, hosts, Strategy(stages=stages))
    apart, inside, second_hand = set(), 0, Counter[tuple[str, int]]()
    for rank, told in enumerate(got):
        for owner, node in told["pairs"]:
            if hosts[owner] == hosts[rank]:
                inside += 1
            else:
                apart.add((hosts[rank], node))
                second_hand[hosts[rank], node] += 1
    shared = sum(count - 1 for count in second_hand.values())
    between = sum(
        count
        for rank, told in enumerate(got)
        for peer, count in told["to"].items()
        if hosts[peer] != hosts[rank]
    )
    assert between == 2 * len(apart) * row_bytes
    total = {name: sum(told["sent"].get(name, 0) for told in got) for name in got[0]["sent"]}
    assert total["halo_forward"] == total["halo_backward"] == (len(apart) + inside) * row_bytes
    assert total["host"] == 2 * shared * row_bytes
    # Without sharing, each rank is sent what it reads.
    plain = ranks.run(one_sum, size, parts, hosts, Strategy(stages=stages, once_per_host=False))
    rows = sum(len(told["pairs"]) for told in plain)
    assert sum(told["sent"]["halo_forward"] for told in plain) == rows * row_bytes
    assert all("host" not in told["sent"] for told in plain)


WIRES = {
    "rounded": Strategy(wire=16),
    "changes": Strategy(wire=16, changes=True),
    "adaptive": Strategy(wire="adaptive", wire_bits=8, wire_period=3),
    "sar": Strategy(wire=16, changes=True, stages=4, recompute=True),
    "late": Strategy(staleness=1),
    "late changes": Strategy(staleness=1, wire=16, changes=True),
}


@pytest.mark.parametrize("model", ["sage", "gat"])
@pytest.mark.parametrize("wire", WIRES)
def test_sharing_goes_with_every_wire(ranks: RankPool, parts_of, model: str, wire: str) -> None:
    """The rows of forward have the same noise; gradients are added up before they are rounded."""
    parts, plan = parts_of("hash", 4, True), spec_of(model, "wide")
    strategy, tolerance = WIRES[wire], 5e-3 if wire == "adaptive" else 1e-4
    apart = strategy.with_choices(once_per_host=False)
    want = ranks.run(distributed_steps, 4, parts, plan, apart, "aabb")
    got = ranks.run(distributed_steps, 4, parts, plan, strategy, "aabb")
    for ours, theirs in zip(got, want, strict=True):
        assert ours["losses"][0] == pytest.approx(theirs["losses"][0], abs=1e-12)
        assert ours["losses"] == pytest.approx(theirs["losses"], abs=tolerance)
        for name, grad in ours["grads"].items():
            torch.testing.assert_close(grad, theirs["grads"][name], rtol=0, atol=tolerance)
