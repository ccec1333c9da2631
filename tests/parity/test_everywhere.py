"""Ranks that have the whole graph on their devices train as ranks that draw for each other do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from siafu.comm import World, everywhere, rows_of_all
from siafu.config import make_config
from siafu.engine import begin
from siafu.engine.networks import recorded
from siafu.engine.networks.network import build_network
from siafu.minibatch import placement, relays
from siafu.nn import Draws
from siafu.shard import open_shard
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
        (1, {"feature_bits": 8, "normalize_features": True}),
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


def bytes_sent(world: World, parts: Path, settings: dict[str, Any]) -> list[dict[str, int]]:
    """What a rank has sent once training can begin, and after two epochs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "_obstacle", lambda *asked: "")
        shard = open_shard(parts, world, place="host")
        training = begin(make_config(data="awkward", **settings).resolved(), shard)
        sent = [dict(world.meter.bytes_sent)]
        for _ in range(2):
            training.step()
            training.progress.epochs += 1
        sent.append(dict(world.meter.bytes_sent))
        training.close()
    return sent


@pytest.mark.parametrize("place", ["device", "host"])
def test_only_gradients_travel_once_ranks_have_the_graph(
    ranks: RankPool, parts_of, place: str
) -> None:
    settings = SAMPLED | {"rows_on": place}
    for before, after in ranks.run(bytes_sent, 3, parts_of("hash", 3, True), settings):
        grown = {name for name, sent in after.items() if sent > before.get(name, 0)}
        assert ({"sample", "feature"} & grown == set()) == (place == "device")
        assert "gradient" in grown


def bytes_to_infer(world: World, parts: Path, settings: dict[str, Any]) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "_obstacle", lambda *asked: "")
        config = make_config(data="awkward", **settings).resolved()
        network = build_network(
            config, open_shard(parts, world, place="host"), Draws(0), training=False
        )
        sent = world.meter.bytes_sent.get("feature", 0)
        network.close()
    return sent


def test_inference_does_not_send_the_graph(ranks: RankPool, parts_of) -> None:
    assert ranks.run(bytes_to_infer, 3, parts_of("hash", 3, True), SAMPLED) == [0, 0, 0]


def load_of(world: World, parts: Path, settings: dict[str, Any]) -> tuple[int, int]:
    """What was told of rows, and what they take."""
    told: list[int] = []
    choose = placement.choose_place

    def noted(wanted: Any, shard: Any, load: Any, *more: Any) -> Any:
        told.append(load.rows)
        return choose(wanted, shard, load, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "_obstacle", lambda *asked: "")
        patch.setattr(relays, "choose_place", noted)
        shard = open_shard(parts, world, place="host")
        training = begin(make_config(data="awkward", **settings).resolved(), shard)
        readers = training.workload.network.feed.relay.served.node_columns
        held = sum(readers[name].nbytes for name in ("x", "aggregate") if name in readers)
        training.close()
    return told[-1], held


@pytest.mark.parametrize("model", ["gcn", "gin"])  # one reads the sums alone
def test_a_cached_input_is_counted_before_it_is_there(ranks: RankPool, parts_of, model) -> None:
    settings = SAMPLED | {"rows_on": "device", "model": model, "input_cache": True}
    settings |= {"input_dropout": 0.0}
    for told, held in ranks.run(load_of, 3, parts_of("hash", 3, True), settings):
        assert told == held


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
