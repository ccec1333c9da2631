"""Steps in buffers of one size, as a recording has them, are the steps themselves.

On a CPU nothing is recorded: the same function runs again on the same buffers.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix as sparse_matrix

from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.engine.networks import recorded
from siafu.engine.networks.recorded import RecordedSteps, Sizes, room_for
from siafu.graph import SparseFeatures
from siafu.ingest import load
from siafu.partitioning import write_parts
from siafu.shard import open_shard
from tests.parity.graphs import awkward_graph

SETTINGS: dict[str, Any] = {
    "data": "awkward",
    "hidden": 8,
    "epochs": 3,
    "dropout": 0.3,
    "precision": "float64",
}
SAMPLED = {"strategy": "batchgnn", "batch_size": 5, "fanout": "3,2"}
EXACT = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture(scope="module", params=[6, 20], ids=["narrow", "wide"])
def parts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The awkward graph, whole; in small sub-graphs wide rows are mapped before they are summed."""
    graph = awkward_graph(width=request.param)
    folder = tmp_path_factory.mktemp("whole") / "g.parts"
    part_of = np.zeros(graph.num_nodes, np.int32)
    write_parts(graph, part_of, folder, num_parts=1, method="hash", seed=0)
    return folder


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[Sizes]:
    """Takes the CPU for a device that records; has what each replayed step had."""
    seen: list[Sizes] = []
    run = RecordedSteps.run

    def noted(self: Any, macrobatch: Any, graph: Any, num_seeds: int) -> Any:
        told = run(self, macrobatch, graph, num_seeds)
        seen.extend([] if told is None else [Sizes.of(graph)])
        return told

    monkeypatch.setattr("siafu.minibatch.placement._obstacle", lambda *asked: "")
    monkeypatch.setattr(recorded, "DEVICES", ("cpu",))
    monkeypatch.setattr(RecordedSteps, "run", noted)
    return seen


def trained(
    parts: Path, settings: dict[str, Any], device: torch.device | None = None
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of three epochs, and the weights after them."""
    config = make_config(**SETTINGS | settings).resolved()
    world = World(device=device or torch.device("cpu"))
    place = "host" if "rows_on" in settings else "device"
    training = begin(config, open_shard(parts, world, place=place))
    losses = []
    for _ in range(3):
        losses.append(training.step())
        training.progress.epochs += 1
    network: Any = training.workload
    weights = {name: w.clone() for name, w in network.network.module.state_dict().items()}
    training.close()
    return losses, weights


@pytest.mark.parametrize("place", ["device", "pinned"])
@pytest.mark.parametrize(
    "settings",
    [
        {"model": "sage"},
        {"model": "sage-max", "input_dropout": 0.2},
        {"model": "gcn", "macrobatch": 2},
        {"model": "gin", "norm": "layer"},
        {"model": "sage", "jk": "cat", "fanout": "-1,2"},
    ],
)
def test_recorded_steps_are_the_steps(parts, replays, place, settings) -> None:
    want, weights = trained(parts, SAMPLED | settings | {"rows_on": "host"})
    assert not replays
    got, there = trained(parts, SAMPLED | settings | {"rows_on": place})
    assert len({sizes.reached for sizes in replays}) > 2  # of unlike sizes, in one room
    torch.testing.assert_close(torch.tensor(got), torch.tensor(want), **EXACT)
    for name, weight in weights.items():
        torch.testing.assert_close(there[name], weight, **EXACT, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "gat"},  # its loops have no buffers
        {"model": "sage", "norm": "batch"},
        {"model": "sage", "class_weights": "balanced"},
        {"model": "sage", "feature_bits": 8, "precision": "float32"},
        {"model": "sage", "input_cache": True, "input_dropout": 0.0},
    ],
)
def test_other_steps_are_not_recorded(parts, replays, settings) -> None:
    want, _ = trained(parts, SAMPLED | settings | {"rows_on": "host"})
    got, _ = trained(parts, SAMPLED | settings | {"rows_on": "device"})
    assert not replays
    assert got == want


def test_room_grows_and_then_no_more(parts, replays, monkeypatch) -> None:
    monkeypatch.setattr(recorded, "_SPARE", 1.0)
    monkeypatch.setattr(recorded, "_GRAIN", 1)
    want, _ = trained(parts, SAMPLED | {"model": "sage", "rows_on": "host", "macrobatch": 1})
    for most, replayed in ((1, 1), (100, 9)):
        monkeypatch.setattr(recorded, "_MOST_RECORDINGS", most)
        replays.clear()
        got, _ = trained(parts, SAMPLED | {"model": "sage", "rows_on": "device", "macrobatch": 1})
        torch.testing.assert_close(torch.tensor(got), torch.tensor(want), **EXACT)
        assert len(replays) >= replayed


@pytest.mark.parametrize("settings", [{}, SAMPLED | {"rows_on": "device"}])
@pytest.mark.parametrize("hidden", [False, True])
def test_without_memory_for_a_recording_steps_are_plain(
    parts, replays, monkeypatch, settings, hidden
) -> None:
    """Also where ending the recording fails for that, and is what is told."""

    def no_memory(*_: Any) -> None:
        try:
            raise torch.OutOfMemoryError
        except RuntimeError:
            if hidden:
                raise RuntimeError("the recording was ended") from None
            raise

    want, _ = trained(
        parts, {"model": "sage"} | settings | ({"rows_on": "host"} if settings else {})
    )
    monkeypatch.setattr(recorded.Recording, "__init__", no_memory)
    got, _ = trained(parts, {"model": "sage"} | settings)
    assert not replays
    assert got == want


def test_other_errors_of_a_recording_are_told(parts, replays, monkeypatch) -> None:
    def wrong(*_: Any) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(recorded.Recording, "__init__", wrong)
    with pytest.raises(RuntimeError, match="something else"):
        trained(parts, SAMPLED | {"model": "sage", "rows_on": "device"})


def test_room_is_for_all() -> None:
    small: Any = type("G", (), {"reached": (4, 9, 30), "ends": (8, 20), "num_seeds": 4})
    large: Any = type("G", (), {"reached": (5, 300, 301), "ends": (9, 10), "num_seeds": 5})
    room = room_for([small, large])
    assert room == Sizes((5, 512, 512), (256, 256))
    assert Sizes.of(small).fit(room)
    assert not Sizes((6, 9, 30), (8, 20)).fit(room)
    assert not Sizes((4, 9, 513), (8, 20)).fit(room)
    assert room.joined(Sizes((9, 1, 1), (1, 999))) == Sizes((9, 512, 512), (256, 999))


def test_minibatches_of_unlike_sizes_share_a_recording(parts, replays, monkeypatch) -> None:
    seeds = len(open_shard(parts, World()).train)
    batch = next(size for size in range(4, seeds) if seeds % -(-seeds // size))
    made = []
    init = recorded.Recording.__init__
    monkeypatch.setattr(
        recorded.Recording, "__init__", lambda self, *given: made.append(1) or init(self, *given)
    )
    settings = SAMPLED | {"model": "sage", "batch_size": batch, "macrobatch": 100}
    want, _ = trained(parts, settings | {"rows_on": "host"})
    got, _ = trained(parts, settings | {"rows_on": "device"})
    torch.testing.assert_close(torch.tensor(got), torch.tensor(want), **EXACT)
    assert len({sizes.reached[0] for sizes in replays}) > 1
    assert len(made) == 1
    assert len(replays) % 3 == 0  # all steps of three epochs


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("model", ["gcn", "sage", "sage-max", "gin", "gat", "gatv2", "transformer"])
def test_recorded_epochs_of_the_whole_graph_are_the_epochs(
    tmp_path, monkeypatch, model, sparse
) -> None:
    graph = awkward_graph()
    if sparse:
        x = sparse_matrix(np.where(graph.x > 0, graph.x, 0))
        graph = replace(graph, x=SparseFeatures(x.indptr, x.indices, x.data, x.shape[1]))
    part_of = np.zeros(graph.num_nodes, np.int32)
    write_parts(graph, part_of, tmp_path / "g.parts", num_parts=1, method="hash", seed=0)
    settings = {"model": model, "strategy": "halo", "norm": "none"}
    want, weights = trained(tmp_path / "g.parts", settings)
    replays = []
    replay = recorded.Recording.replay
    monkeypatch.setattr(recorded, "DEVICES", ("cpu",))
    monkeypatch.setattr(
        recorded.Recording, "replay", lambda self: replays.append(1) or replay(self)
    )
    got, there = trained(tmp_path / "g.parts", settings)
    assert len(replays) == 2  # the first epoch is not
    assert got == want
    assert all(torch.equal(there[name], weight) for name, weight in weights.items())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    "settings",
    [
        {"model": "gcn"},
        {"model": "sage", "norm": "layer"},
        {"model": "gat", "norm": "none"},
        {"model": "gatv2", "norm": "layer"},
        {"model": "transformer", "norm": "none"},
        SAMPLED | {"model": "sage", "rows_on": "device", "batch_size": 40},
        SAMPLED | {"model": "sage-max", "rows_on": "pinned", "batch_size": 40, "macrobatch": 3},
        SAMPLED | {"model": "gcn", "rows_on": "device", "batch_size": 40, "macrobatch": 1},
        SAMPLED | {"model": "gin", "norm": "none", "rows_on": "device", "batch_size": 40},
    ],
)
def test_a_gpu_replays_what_it_recorded(tmp_path, monkeypatch, settings) -> None:
    graph = load("planted:2000")
    part_of = np.zeros(graph.num_nodes, np.int32)
    write_parts(graph, part_of, tmp_path / "g.parts", num_parts=1, method="hash", seed=0)
    replays = []
    replay = recorded.Recording.replay
    monkeypatch.setattr(
        recorded.Recording, "replay", lambda self: replays.append(1) or replay(self)
    )
    device = torch.device("cuda")
    got, there = trained(tmp_path / "g.parts", settings | {"device": "cuda"}, device)
    assert len(replays) > 1
    monkeypatch.setattr(recorded, "DEVICES", ())
    want, weights = trained(tmp_path / "g.parts", settings | {"device": "cuda"}, device)
    torch.testing.assert_close(torch.tensor(got), torch.tensor(want), **EXACT)
    for name, weight in weights.items():
        torch.testing.assert_close(there[name], weight, **EXACT, msg=lambda m, n=name: f"{n}: {m}")
