"""Ranks that have the whole graph on their devices train as ranks that draw for each other do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from siafu.comm import World, everywhere, rows_of_all
from siafu.engine.networks import recorded
from siafu.minibatch import placement
from siafu.partitioning import open_parts
from tests.harness import RankPool
from tests.parity.minibatch_steps import joined_logits, run_epochs
from tests.parity.strict import strict_nccl

SAMPLED = {
    "model": "sage",
    "strategy": "batchgnn",
    "fanout": "3,2",
    "batch_size": 3,
    "hidden": 8,
    "heads": 2,
    "dropout": 0.3,
}


def run_everywhere(
    world: World, parts: Path, settings: dict[str, Any], records: bool = False
) -> dict[str, Any]:
    """Take the CPU for a device that has the whole graph, and one whose steps are recorded."""
    replays = []
    run = recorded.RecordedSteps.run

    def noted(*step: Any) -> torch.Tensor | None:
        told = run(*step)
        replays.append(told is not None)
        return told

    with pytest.MonkeyPatch.context() as patch:
        if settings["rows_on"] != "host":
            patch.setattr(placement, "_obstacle", lambda *asked: "")
            patch.setattr(everywhere, "_PIECE_BYTES", 100)
            patch.setattr(recorded, "DEVICES", ("cpu",) if records else ())
            patch.setattr(recorded.RecordedSteps, "run", noted)
        return run_epochs(world, parts, settings) | {"replays": sum(replays)}


@pytest.mark.parametrize(
    ("size", "settings"),
    [
        (2, {}),
        (3, {"seed_order": "global", "step_minibatches": 4}),
        (4, {"seed_order": "global", "step_minibatches": 3}),  # some ranks have none
        (4, {"model": "gcn", "norm": "batch"}),
        (3, {"model": "gat", "share_draws": 2}),
        (2, {"model": "rgcn"}),
        (3, {"model": "transformer", "edge_features": True, "sample_replace": True}),
        (3, {"sample_weighted": True, "sample_replace": True, "feature_bits": 8}),
        (4, {"model": "gin", "input_cache": True, "input_dropout": 0.0}),
        (2, {"model": "torch_geometric.nn:GraphSAGE"}),
    ],
)
def test_training_is_the_same_to_the_bit(ranks: RankPool, parts_of, size, settings) -> None:
    parts = parts_of("gap" if size == 4 else "hash", size, True)
    settings = SAMPLED | settings
    want = ranks.run(run_everywhere, size, parts, settings | {"rows_on": "host"})
    got = ranks.run(run_everywhere, size, parts, settings | {"rows_on": "device"})
    for ours, theirs in zip(got, want, strict=True):
        assert ours["losses"] == theirs["losses"]
        for name, weight in theirs["weights"].items():
            assert torch.equal(ours["weights"][name], weight), name
    assert torch.equal(joined_logits(got), joined_logits(want))


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("order", ["local", "global"])
def test_recorded_steps_of_several_ranks_are_the_steps(
    ranks: RankPool, parts_of, size, order
) -> None:
    parts = parts_of("hash", size, False)
    settings = SAMPLED | {"precision": "float64", "seed_order": order, "step_minibatches": None}
    want = ranks.run(run_everywhere, size, parts, settings | {"rows_on": "host"})
    got = ranks.run(run_everywhere, size, parts, settings | {"rows_on": "device"}, True)
    assert sum(one["replays"] for one in got) > size
    for ours, theirs in zip(got, want, strict=True):
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-12)
        for name, weight in theirs["weights"].items():
            torch.testing.assert_close(ours["weights"][name], weight, rtol=1e-10, atol=1e-12)


def bytes_to_train(
    world: World, parts: Path, settings: dict[str, Any]
) -> tuple[dict[str, int], int]:
    """What a rank has sent after its epochs, and what it owns."""
    sent = run_everywhere(world, parts, settings)["bytes"]
    own = open_parts(parts).part(world.rank)
    nodes, edges = int(own.facts["num_owned"]), int(own.facts["num_local_edges"])
    # Of an edge its source and weight; of a node its edges and id, then features, label and id.
    width = own.entry("x").shape[1]
    return sent, 8 * edges + 16 * nodes + nodes * (4 * width + 8 + 8)


def test_nothing_but_gradients_travels_once_training_goes_on(ranks: RankPool, parts_of) -> None:
    settings = SAMPLED | {"rows_on": "device", "evaluate": "train"}
    for sent, held in ranks.run(bytes_to_train, 3, parts_of("hash", 3, True), settings):
        assert sent.get("sample", 0) + sent["feature"] >= 2 * held
        assert sent["gradient"] > 0


def spread(world: World, shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
    counts = [5 * rank for rank in range(world.size)][::-1]  # the last has none
    own = torch.arange(counts[world.rank]) + 100 * world.rank
    rows = own.reshape(-1, *(1 for _ in shape)).expand(-1, *shape).to(kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(everywhere, "_PIECE_BYTES", 40)
        return rows_of_all(lambda low, high: rows[low:high], counts, world, "feature")


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("shape", "kind"), [((), torch.int64), ((3,), torch.float32), ((7,), torch.uint8)]
)
def test_rows_of_all_ranks_stand_one_ranks_after_anothers(
    ranks: RankPool, size, shape, kind
) -> None:
    want = np.concatenate([np.arange(5 * (size - 1 - r)) + 100 * r for r in range(size)])
    for got in ranks.run(spread, size, shape, kind):
        assert got.dtype == kind
        assert got.shape[1:] == shape
        first = got.reshape(len(want), -1)[:, 0] if len(want) else got
        assert torch.equal(first, torch.from_numpy(want).to(kind).reshape(first.shape))


def under_nccl(world: World, parts: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Train where NCCL's rules are kept by a stand-in."""
    with strict_nccl(world) as (strict_world, strict):
        found = run_everywhere(strict_world, parts, settings)
    assert strict.batches
    return found


@pytest.mark.parametrize("settings", [{}, {"feature_bits": 8, "model": "gcn"}])
def test_over_nccl_it_is_the_same(ranks: RankPool, parts_of, settings) -> None:
    parts = parts_of("hash", 3, True)
    settings = SAMPLED | {"rows_on": "device"} | settings
    want = ranks.run(run_everywhere, 3, parts, settings)
    for ours, theirs in zip(ranks.run(under_nccl, 3, parts, settings), want, strict=True):
        assert ours["losses"] == theirs["losses"]
