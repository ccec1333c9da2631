"""Unmodified PyG models in stages give what PyG alone gives, or say what can't be split."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch_geometric.nn import AGNNConv, EdgeConv, GATConv, GCNConv, SAGEConv

from siafu.comm import World
from siafu.shard import open_shard
from siafu.strategy import Strategy, parallelize
from tests.harness import RankPool
from tests.parity.pyg_models import AGGREGATIONS, CONVS, EDGE_CONVS, FEW, SOFTMAXES, WHOLE, OneLayer
from tests.parity.pyg_steps import check, plain_step, refused, spread_step

REFUSED = {"EdgeConv-normed": "batch norm"}
"""Convolutions that can't be split, and what is said."""
TWO = Strategy(stages=2)
EVERY = Strategy(stages=1 << 30, recompute=True)
WORLDS = [(3, EVERY), (4, TWO)]

PartsOf = Callable[[str, int, bool], Path]

CASES = [(conv, *world) for conv in CONVS if conv not in REFUSED for world in WORLDS]
CASES += [(conv, *world) for conv in FEW for world in ((1, EVERY), (2, EVERY), (4, EVERY))]


def folder(parts_of: PartsOf, size: int, weighted: bool) -> Path:
    return parts_of("gap" if size == 4 else "hash", size, weighted)


@pytest.mark.parametrize(("conv", "size", "strategy"), CASES)
def test_pyg_model_in_stages_equals_pyg_alone(
    ranks: RankPool, parts_of: PartsOf, conv: str, size: int, strategy: Strategy
) -> None:
    got = ranks.run(spread_step, size, folder(parts_of, size, False), conv, strategy)
    check(got, plain_step(folder(parts_of, 1, False), conv))


JOINED = ("mul", "powermean", "attentional", "deep-sets", "variance-preserving")


@pytest.mark.parametrize("name", JOINED)
def test_aggregation_in_stages_equals_pyg_alone(
    ranks: RankPool, parts_of: PartsOf, name: str
) -> None:
    got = ranks.run(spread_step, 4, folder(parts_of, 4, False), name, EVERY)
    check(got, plain_step(folder(parts_of, 1, False), name))


@pytest.mark.parametrize("name", sorted(AGGREGATIONS.keys() - set(JOINED) - {"train-norm"}))
def test_aggregation_that_needs_all_edges_is_refused_by_name(parts_of: PartsOf, name: str) -> None:
    assert_refused(refused(World(), folder(parts_of, 1, False), name, TWO), "aggregation (")


@pytest.mark.parametrize(("size", "strategy"), [(3, TWO), (4, EVERY)])
@pytest.mark.parametrize("conv", EDGE_CONVS)
def test_layers_with_edge_features_in_stages_equal_pyg_alone(
    ranks: RankPool, parts_of: PartsOf, conv: str, size: int, strategy: Strategy
) -> None:
    got = ranks.run(spread_step, size, folder(parts_of, size, True), conv, strategy)
    check(got, plain_step(folder(parts_of, 1, True), conv))


SPREAD = [(kind, 4, EVERY) for kind in SOFTMAXES if kind != "own dropped"]
SPREAD += [("own", 1, EVERY), ("own", 2, EVERY), ("own", 3, TWO), ("AGNNConv", 3, TWO)]


@pytest.mark.parametrize(("kind", "size", "strategy"), SPREAD)
def test_softmax_inside_a_message_equals_pyg_alone(
    ranks: RankPool, parts_of: PartsOf, kind: str, size: int, strategy: Strategy
) -> None:
    got = ranks.run(spread_step, size, folder(parts_of, size, False), kind, strategy)
    check(got, plain_step(folder(parts_of, 1, False), kind))


@pytest.mark.parametrize("kind", ["attention", "message-dropout", "own dropped"])
def test_dropout_depends_neither_on_ranks_nor_on_stages(
    ranks: RankPool, parts_of: PartsOf, kind: str
) -> None:
    want = ranks.run(spread_step, 1, folder(parts_of, 1, False), kind)[0]
    for size, strategy in ((1, TWO), (3, TWO), (4, EVERY)):
        check(ranks.run(spread_step, size, folder(parts_of, size, False), kind, strategy), want)


def assert_refused(text: str, *words: str) -> None:
    assert all(word in text for word in ("PlanError", "stages=1", *words)), text


@pytest.mark.parametrize(("kind", "words"), REFUSED.items())
def test_convolution_that_cannot_be_split_is_refused_on_every_rank(
    ranks: RankPool, parts_of: PartsOf, kind: str, words: str
) -> None:
    for text in ranks.run(refused, 3, folder(parts_of, 3, False), kind, TWO):
        assert_refused(text, kind.split("-")[0], words)


@pytest.mark.parametrize("kind", WHOLE)
def test_what_needs_all_edges_at_once_is_refused_by_name(parts_of: PartsOf, kind: str) -> None:
    assert_refused(refused(World(), folder(parts_of, 1, False), kind, TWO), kind.split()[0])


def test_softmax_of_rounded_rows_is_refused(ranks: RankPool, parts_of: PartsOf) -> None:
    strategy = Strategy(stages=2, wire=8)
    for text in ranks.run(refused, 3, folder(parts_of, 3, False), "AGNNConv", strategy):
        assert_refused(text, "AGNNConv", "--wire 32")


@pytest.mark.parametrize("kind", ["turned", "reversed"])
def test_messages_to_nodes_of_other_ranks_are_refused(
    ranks: RankPool, parts_of: PartsOf, kind: str
) -> None:
    told = ranks.run(refused, 3, folder(parts_of, 3, False), kind, TWO)
    assert all("PlanError" in text and "other ranks" in text for text in told), told


def counted_step(world: World, parts: Path, kind: str, strategy: Strategy) -> dict[str, int]:
    """Return the bytes of a second step by purpose, and the rows that cross."""
    torch.manual_seed(0)
    shard, layer = open_shard(parts, world), LAYERS[kind]().double()
    model = parallelize(OneLayer(layer), shard, strategy)
    for _ in range(2):
        world.meter.bytes_sent.clear()
        model(shard.x.double().requires_grad_()).sum().backward()
    left = set(vars(layer)) & {"propagate", "edge_updater"}
    assert not left, "the user's layer is not as it was"
    sent = {name: world.meter.bytes_sent.get(name, 0) for name in PURPOSES}
    plan = shard.plan
    return sent | {"sent_rows": sum(plan.send_counts), "halo_rows": sum(plan.recv_counts)}


LAYERS = {
    "gcn": lambda: GCNConv(6, 5),
    "sage": lambda: SAGEConv(6, 5, aggr="max"),
    "gat": lambda: GATConv(6, 4, heads=2),
    "edge": lambda: EdgeConv(nn.Linear(12, 5)),
    "softmax": lambda: AGNNConv(),
}
PURPOSES = ("halo_forward", "halo_refetch", "halo_backward")
WIDTHS = {"gcn": (5 + 1, 0, 5), "sage": (6, 0, 6), "gat": (10, 10, 10), "edge": (6, 6, 6)}
WIDTHS["softmax"] = (2 * 12, 2 * 12, 2 * 12)
"""Columns that cross, by purpose: GCN's inverse degrees once, GAT's scores beside its rows, rows
and their directions once for AGNN's softmax and once for its messages."""


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("kind", LAYERS)
def test_rows_cross_twice_or_three_times(
    ranks: RankPool, parts_of: PartsOf, kind: str, size: int
) -> None:
    for strategy in (EVERY, TWO):
        for got in ranks.run(counted_step, size, folder(parts_of, size, False), kind, strategy):
            forward, again, back = (8 * width for width in WIDTHS[kind])
            assert got["halo_forward"] == got["sent_rows"] * forward
            assert got["halo_refetch"] == got["sent_rows"] * again * strategy.recompute
            assert got["halo_backward"] == got["halo_rows"] * back
