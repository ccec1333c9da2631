"""Link prediction over ranks: the same bits, no held-out edge seen, the same scores."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.datasets import KarateClub

from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.graph import Graph
from siafu.ingest.formats.pyg_hetero import graph_from_pyg_with_notes
from siafu.minibatch import HeldOut, has_held_out, hold_out_edges, hold_out_of_shard, link_seeds
from siafu.partitioning import open_parts, write_parts
from siafu.shard import Shard, open_shard
from tests.harness import RankPool
from tests.parity.graphs import assignment, awkward_graph
from tests.parity.test_minibatch import assert_identical

LINKS = {
    "task": "link",
    "strategy": "batchgnn",
    "model": "sage",
    "fanout": "4,3",
    "batch_size": 20,
    "seed_order": "global",
    "step_minibatches": 3,
    "hidden": 8,
    "dropout": 0.3,
    "negatives": "uniform:3",
    "eval_negatives": "15",
}
EPOCHS = 2
HITS = (" hits@1", " hits@3", " hits@10", " shared hits@50")
SPLIT, SEED = "0.7,0.15", 5


def written_parts(graph: Graph, size: int, root: Path) -> Path:
    """Return parts of a graph without its held-out edges, which lie beside them."""
    graph, held = hold_out_edges(graph, SPLIT, SEED)
    target = root / f"{size}.parts"
    held.save(target)
    part_of = assignment(graph, "hash", size)
    write_parts(graph, part_of, target, num_parts=size, method="hash", seed=0)
    return target


@pytest.fixture(scope="module")
def link_parts(tmp_path_factory: pytest.TempPathFactory):
    """Return a function that gives parts of a graph without its held-out edges, made once."""
    root = tmp_path_factory.mktemp("links")

    @cache
    def make(size: int) -> Path:
        return written_parts(awkward_graph(weighted=True), size, root)

    return make


def opened(world: World, parts: Path, settings: dict[str, Any]) -> tuple[Shard, HeldOut]:
    """Return a rank's shard and held-out edges, which are drawn here if none lie beside it."""
    shard = open_shard(parts, world, place=settings.pop("place", "host"))
    if has_held_out(parts):
        return shard, HeldOut.load(parts).share(shard)
    return hold_out_of_shard(shard, SPLIT, SEED)


def run_links(world: World, parts: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Return losses, weights and scores after some epochs."""
    torch.set_num_threads(1)
    settings = dict(settings)
    shard, held = opened(world, parts, settings)
    training = begin(
        make_config(data="awkward", **settings).resolved(),
        shard,
        held_out=held,
        parts=lambda: open_parts(parts),
    )
    losses = []
    for _ in range(EPOCHS):
        losses.append(training.step())
        training.progress.epochs += 1
    result = {
        "losses": losses,
        "weights": {n: t.clone() for n, t in training.workload.module.state_dict().items()},
        "scores": training.workload.evaluate().scores,
    }
    training.close()
    return result


def sampled_pairs(world: World, parts: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the pairs that messages passed over in an epoch, and leaks of targets."""
    shard, held = opened(world, parts, settings)
    training = begin(
        make_config(data="awkward", **settings).resolved(),
        shard,
        held_out=held,
        parts=lambda: open_parts(parts),
    )
    feed, pairs, leaks, edges = training.workload.network.feed, set(), 0, 0
    for macrobatch in feed.sampler.macrobatches(1, 2):
        for step, subgraphs in zip(macrobatch.steps, macrobatch.subgraphs, strict=True):
            for batch, subgraph in zip(step.mine, subgraphs, strict=True):
                ids = macrobatch.columns_of(subgraph)["id"]
                found = set(map(tuple, ids[subgraph.edge_index()].T.tolist()))
                count = feed.links.num_edges(batch)
                number = dict(zip(subgraph.addresses.tolist(), ids.tolist(), strict=True))
                src, dst = batch.seeds[: 2 * count].view(2, count).tolist()
                targets = {(number[u], number[v]) for u, v in zip(src, dst, strict=True)}
                leaks += len(found & (targets | {(v, u) for u, v in targets}))
                edges += len(targets)
                pairs |= found
    training.close()
    return {"pairs": pairs, "leaks": leaks, "edges": edges}


@pytest.mark.parametrize(
    ("size", "macrobatch", "changes"),
    [
        (1, "4", {}),
        (2, "1", {}),
        (3, "3", {}),
        (3, "2", {"negatives": "in-batch", "model": "gcn"}),
        (2, "auto", {"model": "gat", "heads": 2, "exclude_targets": False}),
    ],
)
def test_ranks_and_macrobatches_change_no_bit(
    ranks: RankPool, link_parts, size, macrobatch, changes
) -> None:
    settings = LINKS | changes
    want = run_links(World(), link_parts(1), settings | {"macrobatch": "1"})
    got = ranks.run(run_links, size, link_parts(size), settings | {"macrobatch": macrobatch})
    assert_identical(got, want)
    for one in got:
        assert one["scores"] == pytest.approx(want["scores"], abs=1e-12)
    assert 0 < want["scores"]["val"] < 1
    assert want["scores"]["val hits@1"] <= want["scores"]["val hits@10"]


def run_in_small_pieces(world: World, parts: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Return what `run_links` does where edges are read from disk, a few at a time."""
    sizes = link_seeds.PIECE_EDGES, link_seeds.BUCKET_EDGES
    link_seeds.PIECE_EDGES, link_seeds.BUCKET_EDGES = 30, 11
    try:
        return run_links(world, parts, settings | {"place": "disk"})
    finally:
        link_seeds.PIECE_EDGES, link_seeds.BUCKET_EDGES = sizes


@pytest.mark.parametrize(("size", "macrobatch"), [(1, "2"), (4, "3")])
def test_edges_on_disk_are_those_in_memory(
    ranks: RankPool, link_parts, size: int, macrobatch: str
) -> None:
    want = run_links(World(), link_parts(1), LINKS | {"macrobatch": "1"})
    settings = LINKS | {"macrobatch": macrobatch}
    got = ranks.run(run_in_small_pieces, size, link_parts(size), settings)
    assert_identical(got, want)
    for one in got:
        assert one["scores"] == pytest.approx(want["scores"], abs=1e-12)


@pytest.fixture(scope="module")
def karate_parts(tmp_path_factory: pytest.TempPathFactory):
    """Return a function that gives parts of Zachary's karate club without its held-out edges."""
    root = tmp_path_factory.mktemp("karate")
    graph, _ = graph_from_pyg_with_notes(KarateClub()[0])
    return lambda size: written_parts(graph, size, root)


def test_ranking_of_a_real_graph_is_the_same_on_1_and_4_ranks(
    ranks: RankPool, karate_parts
) -> None:
    settings = LINKS | {"macrobatch": "2", "eval_negatives": "20"}
    want = run_links(World(), karate_parts(1), settings)
    got = ranks.run(run_links, 4, karate_parts(4), settings)
    assert_identical(got, want)
    # The same bits of rows give the same ranks, so the same counts of them.
    names = {f"{split}{name}" for split in ("val", "test") for name in ("", *HITS)}
    for one in got:
        assert set(one["scores"]) == names
        assert one["scores"] == want["scores"]


def test_own_edges_train_alike_whatever_is_fetched_at_once(ranks: RankPool, link_parts) -> None:
    settings = LINKS | {"seed_order": "local"}
    del settings["step_minibatches"]
    first = ranks.run(run_links, 3, link_parts(3), settings | {"macrobatch": "1"})
    other = ranks.run(run_links, 3, link_parts(3), settings | {"macrobatch": "5"})
    assert_identical(other, first[0])


def test_nothing_passes_over_held_out_edges_or_targets(ranks: RankPool, link_parts) -> None:
    held = HeldOut.load(link_parts(3))
    secret = {tuple(pair) for pair in [*held.val.tolist(), *held.test.tolist()]}
    secret |= {(v, u) for u, v in secret}
    settings = LINKS | {"fanout": "-1,-1", "macrobatch": "2"}
    found = ranks.run(sampled_pairs, 3, link_parts(3), settings)
    for one in found:
        assert len(one["pairs"]) > 50
        assert not one["pairs"] & secret
        assert one["leaks"] == 0
    # The test would see them: messages pass over every target where that is allowed.
    open_ones = ranks.run(sampled_pairs, 3, link_parts(3), settings | {"exclude_targets": False})
    assert all(one["leaks"] >= one["edges"] for one in open_ones)


@pytest.mark.parametrize("place", ["host", "disk"])
def test_edges_of_a_cut_graph_are_held_out_alike(
    ranks: RankPool, link_parts, parts_of, place: str
) -> None:
    settings = LINKS | {"model": "rgcn", "macrobatch": "2"}
    want = run_links(World(), link_parts(1), settings)
    got = ranks.run(run_links, 3, parts_of("gap", 3, True), settings | {"place": place})
    assert_identical(got, want)
    for one in got:
        assert one["scores"] == pytest.approx(want["scores"], abs=1e-12)


@pytest.mark.parametrize("size", [1, 3])
def test_held_out_edges_by_their_own_flow_rank_the_same(
    ranks: RankPool, link_parts, size: int
) -> None:
    want = ranks.run(run_links, size, link_parts(size), LINKS | {"evaluate": "exact"})
    got = ranks.run(run_links, size, link_parts(size), LINKS | {"evaluate": "split"})
    for one in got:
        assert one["scores"] == pytest.approx(want[0]["scores"])


def run_sample(world: World, parts: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Return scores and errors by a few of the held-out edges."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("siafu.engine.link_test._MOST_NODES", 0)
        patched.setattr("siafu.engine.link_test._LEAST_EDGES", 9)
        shard, held = opened(world, parts, settings)
        training = begin(
            make_config(data="awkward", **settings).resolved(),
            shard,
            held_out=held,
            parts=lambda: open_parts(parts),
        )
        found = training.workload.evaluate()
        some, every = training.workload._drawn_links().totals, training.workload.links.totals
        training.close()
    return {"scores": found.scores, "errors": found.errors, "some": some, "every": every}


def test_a_sample_of_held_out_edges_is_the_same_on_any_ranks(ranks: RankPool, link_parts) -> None:
    settings = LINKS | {"evaluate": "sampled"}
    want = run_sample(World(), link_parts(1), settings)
    got = ranks.run(run_sample, 3, link_parts(3), settings)[0]
    assert 0 < want["some"]["val"] < want["every"]["val"]
    assert got["some"] == want["some"]
    assert got["scores"] == pytest.approx(want["scores"])
    assert got["errors"] == pytest.approx(want["errors"])
    assert 0 < want["errors"]["val"] < 0.5


def test_short_epochs_of_edges_are_the_same_bits(ranks: RankPool, link_parts) -> None:
    # Three steps per pass over all edges, so that a macrobatch has the end of one and a beginning.
    settings = LINKS | {"steps_per_epoch": 2, "macrobatch": "2"}
    want = run_links(World(), link_parts(1), settings | {"macrobatch": "1"})
    assert_identical(ranks.run(run_links, 3, link_parts(3), settings), want)
    whole = run_links(World(), link_parts(1), settings | {"steps_per_epoch": 99})
    assert whole["losses"] != want["losses"]
