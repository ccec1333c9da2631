"""Sampled training: how much is fetched at once and by whom changes nothing, to the bit."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from siafu.comm import World
from tests.harness import RankPool
from tests.parity.minibatch_steps import joined_logits, run_epochs

SAMPLED = {
    "strategy": "batchgnn",
    "fanout": "3,2",
    "batch_size": 3,
    "seed_order": "global",
    "step_minibatches": 4,
    "hidden": 8,
    "heads": 2,
    "dropout": 0.3,
}
EVERYTHING = {"strategy": "batchgnn", "fanout": "-1,-1", "batch_size": 1000, "macrobatch": "1"}
EXACT = {"rtol": 1e-10, "atol": 1e-12}


@cache
def alone(parts: Path, *items: tuple[str, Any]) -> dict[str, Any]:
    """Return what one rank computes."""
    torch.set_num_threads(1)
    return run_epochs(World(), parts, dict(items))


def assert_identical(got: list[dict[str, Any]], want: dict[str, Any]) -> None:
    """Raise unless losses and weights are the same bits on every rank."""
    for one in got:
        assert one["losses"] == want["losses"]
        pairs = {name: (one["weights"][name], weight) for name, weight in want["weights"].items()}
        apart = {n: float((a - b).abs().max()) for n, (a, b) in pairs.items() if not a.equal(b)}
        assert not apart


@pytest.mark.parametrize(
    ("size", "macrobatch", "changes"),
    [
        (1, "2", {}),
        (1, "32", {}),
        (2, "1", {}),
        (2, "8", {"hot_rows": "1KB"}),
        (3, "1", {}),
        (3, "2", {"sample_replace": True}),
        (4, "32", {}),
        (4, "2", {"hot_rows": "900GB", "feature_bits": 8}),  # no more than there are rows
        (4, "8", {"input_cache": True, "input_dropout": 0.0}),
        (3, "8", {"model": "gcn", "input_cache": True, "input_dropout": 0.0}),
        (3, "2", {"model": "gat"}),
        (4, "2", {"model": "gin"}),  # batch norm
        (2, "2", {"model": "rgcn"}),
        (3, "2", {"sample_weighted": True, "sample_replace": True}),
        (3, "2", {"model": "transformer", "edge_features": True}),
        (2, "2", {"batch_size": 50, "step_minibatches": 3}),
        (3, "2", {"steps_per_epoch": 2}),
        (4, "2", {"share_draws": 1, "hot_rows": "1KB"}),
        (3, "8", {"share_draws": 3, "model": "gcn", "fanout": "-1,2"}),
    ],
)
def test_ranks_and_macrobatches_change_no_bit(
    ranks: RankPool, parts_of, size, macrobatch, changes
) -> None:
    settings = SAMPLED | {"model": "sage"} | changes
    reference = {name: value for name, value in settings.items() if name != "hot_rows"}
    want = alone(parts_of("hash", 1, True), *(reference | {"macrobatch": "1"}).items())
    parts = parts_of("gap" if size == 4 else "hash", size, True)
    got = ranks.run(run_epochs, size, parts, settings | {"macrobatch": macrobatch})
    assert_identical(got, want)
    torch.testing.assert_close(joined_logits(got), joined_logits([want]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "size", "cached"),
    [
        ("gcn", 3, False),
        ("gcn", 2, True),
        ("sage", 4, False),
        ("sage", 3, True),
        ("gin", 2, False),
        ("gat", 3, False),
        ("gatv2", 2, False),
        ("sage-max", 2, False),
        ("rgcn", 3, False),
    ],
)
def test_all_neighbours_of_everything_are_the_full_graph(
    ranks: RankPool, parts_of, model, size, cached
) -> None:
    settings = {"model": model, "hidden": 8, "heads": 2, "dropout": 0.0, "norm": "none"}
    settings |= {"input_cache": cached}
    want = run_epochs(World(), parts_of("hash", 1, True), settings, double=True)
    parts = parts_of("hash", size, True)
    got = ranks.run(_run_double, size, parts, settings | EVERYTHING)
    for one in got:
        torch.testing.assert_close(one["losses"], want["losses"], **EXACT)
        for name in want["grads"]:
            torch.testing.assert_close(one["grads"][name], want["grads"][name], **EXACT)
            torch.testing.assert_close(one["weights"][name], want["weights"][name], **EXACT)
    torch.testing.assert_close(joined_logits(got), joined_logits([want]), **EXACT)


def _run_double(world: World, parts: Path, settings: dict[str, Any]) -> dict[str, Any]:
    return run_epochs(world, parts, settings, double=True)


def _run_from_disk(world: World, parts: Path, settings: dict[str, Any]) -> dict[str, Any]:
    return run_epochs(world, parts, settings, place="disk")


def test_rows_on_disk_are_the_rows_in_memory(ranks: RankPool, parts_of) -> None:
    settings = SAMPLED | {"model": "sage", "macrobatch": "2", "input_cache": True}
    settings |= {"input_dropout": 0.0}
    want = alone(parts_of("hash", 1, True), *settings.items())
    got = ranks.run(_run_from_disk, 2, parts_of("hash", 2, True), settings)
    assert_identical(got, want)
    torch.testing.assert_close(joined_logits(got), joined_logits([want]), rtol=1e-5, atol=1e-5)


def test_own_nodes_train_alike_whatever_is_fetched_at_once(ranks: RankPool, parts_of) -> None:
    settings = SAMPLED | {"model": "sage", "seed_order": "local"}
    del settings["step_minibatches"]
    first = ranks.run(run_epochs, 3, parts_of("gap", 3, True), settings | {"macrobatch": "1"})
    other = ranks.run(run_epochs, 3, parts_of("gap", 3, True), settings | {"macrobatch": "auto"})
    assert_identical(other, first[0])
