"""Where rows lie: what is chosen, and that training is the same to the bit wherever they do."""

import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.engine.networks.network import build_network
from siafu.errors import BudgetError, ConfigError
from siafu.minibatch import hold_out_of_shard
from siafu.minibatch.placement import Load, PinnedRows, Place, choose_place, free_here
from siafu.nn import Draws
from siafu.partitioning import open_parts, write_parts
from siafu.shard import HeldRows, Shard, open_shard
from tests.parity.graphs import awkward_graph

SETTINGS: dict[str, Any] = {
    "data": "awkward",
    "strategy": "batchgnn",
    "batch_size": 5,
    "fanout": "3,2",
    "hidden": 8,
    "epochs": 2,
    "dropout": 0.3,
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """The awkward graph, whole, with and without weights of edges."""
    found = {}
    for weighted in (False, True):
        graph = awkward_graph(weighted=weighted)
        folder = tmp_path_factory.mktemp("whole") / "g.parts"
        part_of = np.zeros(graph.num_nodes, np.int32)
        write_parts(graph, part_of, folder, num_parts=1, method="hash", seed=0)
        found[weighted] = folder
    return found


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the CPU for a device that has rows of its own."""
    monkeypatch.setattr("siafu.minibatch.placement._obstacle", lambda *asked: "")


def trained(parts: Path, settings: dict[str, Any]) -> tuple[Any, list[float], torch.Tensor]:
    """What was bound, the losses of two epochs, and the logits after them."""
    config = make_config(**SETTINGS | settings).resolved()
    shard = open_shard(parts, World(), place="host")
    held = None
    if config.task == "link":
        shard, held = hold_out_of_shard(shard, "0.6,0.2", 1)
    training = begin(config, shard, held_out=held, parts=lambda: open_parts(parts))
    losses = []
    for _ in range(2):
        losses.append(training.step())
        training.progress.epochs += 1
    network: Any = training.workload.network
    logits = network.logits()
    training.close()
    return network, losses, logits


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("place", ["device", "pinned"])
@pytest.mark.parametrize(
    ("weighted", "settings"),
    [
        (False, {"model": "sage"}),
        (True, {"model": "gcn", "norm": "batch"}),
        (False, {"model": "gat"}),
        (False, {"model": "sage", "share_draws": 2, "fanout": "3,2"}),
        (False, {"model": "sage", "feature_bits": 8, "sample_replace": True}),
        (True, {"model": "sage", "sample_replace": True, "sample_weighted": True}),
        (True, {"model": "gin", "input_cache": True, "input_dropout": 0.0}),
        (False, {"model": "sage", "normalize_features": True, "jk": "cat"}),
        (False, {"model": "sage", "task": "link"}),
        (False, {"model": "torch_geometric.nn:GraphSAGE"}),
    ],
)
def test_training_is_the_same_wherever_rows_lie(parts, place, weighted, settings) -> None:
    _, losses, logits = trained(parts[weighted], settings | {"rows_on": "host"})
    network, there, logits_there = trained(parts[weighted], settings | {"rows_on": place})
    assert network.feed.place.rows == place
    assert there == losses
    assert torch.equal(logits_there, logits)
    hits = network.feed.device_hits
    assert hits is None if place == "device" else hits == 1.0


FITS = Load(graph=10, rows=40)


def placed_in(wanted: Any, room: int, load: Load = FITS, hot: int = 0) -> Place:
    return choose_place(wanted, a_shard(), load, lambda: room, hot)


def a_shard(**world: Any) -> Shard:
    device = torch.device("cuda", 0)
    told: Any = SimpleNamespace(
        world=SimpleNamespace(**{"size": 1, "device": device} | world), is_mapped=False
    )
    return told


@pytest.mark.usefixtures("anywhere")
def test_rows_lie_as_near_as_there_is_room_for() -> None:
    assert placed_in("auto", 100).rows == "device"
    near = placed_in("auto", 60)
    assert (near.rows, near.hot_bytes) == ("pinned", 26)  # what is left beside the edges
    assert placed_in("auto", 60, hot=5).hot_bytes == 5
    assert placed_in("pinned", 1000).hot_bytes == 40  # no more than there are
    assert placed_in("auto", 10).rows == "host"
    assert placed_in("host", 1000).rows == "host"
    assert placed_in("auto", 60, Load(graph=10, rows=40, is_dense=False)).rows == "host"
    assert "0.00 GB of edges" in placed_in("auto", 100).told


@pytest.mark.usefixtures("anywhere")
def test_what_does_not_fit_is_told_before_it_is_tried() -> None:
    with pytest.raises(BudgetError, match="do not fit on the device") as told:
        placed_in("device", 60)
    assert "--rows-on pinned" in told.value.fix
    with pytest.raises(BudgetError, match="edges do not fit") as told:
        placed_in("pinned", 10)
    assert "--rows-on host" in told.value.fix


@pytest.mark.parametrize(
    ("world", "why"),
    [({"device": torch.device("cpu")}, "on a CPU"), ({"size": 2}, "with 2 ranks that deal")],
)
def test_rows_stay_on_the_host_where_they_must(world, why) -> None:
    dealt = replace(FITS, deals_edges=True)
    assert choose_place("auto", a_shard(**world), dealt, lambda: 100, 0).rows == "host"
    with pytest.raises(ConfigError, match="can't lie") as told:
        choose_place("device", a_shard(**world), dealt, lambda: 100, 0)
    assert why in told.value.seen


@pytest.mark.usefixtures("anywhere")
def test_several_ranks_have_the_whole_graph_each_or_nothing() -> None:
    place = choose_place("auto", a_shard(size=2), FITS, lambda: 100, 0)
    assert (place.rows, place.everywhere) == ("device", True)
    assert choose_place("auto", a_shard(size=2), FITS, lambda: 60, 0).rows == "host"
    with pytest.raises(BudgetError, match="do not fit on the device") as full:
        choose_place("device", a_shard(size=2), FITS, lambda: 60, 0)
    assert "--rows-on host" in full.value.fix
    with pytest.raises(ConfigError, match="can't lie") as told:
        choose_place("pinned", a_shard(size=2), FITS, lambda: 100, 0)
    assert "2 ranks, which would hold it once each" in told.value.seen


def test_ranks_that_share_a_gpu_share_what_is_free() -> None:
    def told(*others: str) -> int:
        world: Any = SimpleNamespace(
            rank=0,
            device=torch.device("cpu"),
            gather_texts=lambda mine: [mine, *others],
            gather_numbers=lambda mine: [mine, [30.0]],
        )
        return free_here(world, 50)

    here = f"{socket.gethostname()} "
    assert told("elsewhere ") == 30
    assert told(f"{here}another") == 30
    assert told(here) == 25


def test_inference_takes_what_there_is(parts: dict[bool, Path]) -> None:
    """A run that had its rows on a device may infer where there is none."""
    config = make_config(**SETTINGS | {"rows_on": "device"}).resolved()
    shard = open_shard(parts[False], World(), place="host")
    network: Any = build_network(config, shard, Draws(), training=False)
    assert network.feed.place.rows == "host"
    network.close()


def test_copies_of_hot_rows_are_counted() -> None:
    rows = torch.arange(12.0).view(6, 2)
    reader = PinnedRows(rows, torch.device("cpu"), torch.tensor([4, 1]))
    assert torch.equal(reader.read(torch.tensor([1, 5, 4, 0])), rows[[1, 5, 4, 0]])
    assert reader.hits == 0.5
    assert type(reader.to(torch.device("cpu"))) is HeldRows  # whose rows come on the host
