"""Inference over all rows, seeds of a cache and degrees take what a budget leaves, no more."""

import re
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin, write_predictions
from siafu.engine.networks.layer_pass import LayerPass
from siafu.engine.networks.sampled import SampledNetwork
from siafu.errors import BudgetError
from siafu.graph import graph_from_edges
from siafu.ingest import load
from siafu.launch import fit
from siafu.minibatch import Feed, Room, WideRows, layerwise, node_bytes
from siafu.minibatch.feature_rows import fact_rows
from siafu.nn.normalisation import added_loop, owned_degree
from siafu.partitioning import partition_graph
from siafu.shard import ScratchRows, open_shard
from tests.harness import RankPool
from tests.unit.plan.test_alive import Alive

SAMPLED = {"strategy": "batchgnn", "batch_size": 16, "fanout": "2,2", "hidden": 64}
DEEP = {"layers": 3, "fanout": "2,2,2"}
"""Rows between the first two layers are wide; those before the last are mapped by it ahead."""
EDGES = 2_000_000


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One part of 20,000 nodes."""
    folder = tmp_path_factory.mktemp("room") / "1.parts"
    partition_graph(load("planted:20000"), folder, num_parts=1, method="hash")
    return folder


@pytest.fixture(scope="module")
def long_parts(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """One part and two, whose edge files are large beside everything else."""
    root, generator = tmp_path_factory.mktemp("long"), np.random.default_rng(0)
    src, dst = generator.integers(0, 20_000, (2, EDGES))
    kind = np.arange(20_000) % 3
    masks = {name: kind == number for number, name in enumerate(("train", "val", "test"))}
    x = generator.standard_normal((20_000, 4), np.float32)
    graph = graph_from_edges(src, dst, 20_000, x=x, y=kind.astype(np.int64), num_classes=3, **masks)
    folders = {size: root / f"{size}.parts" for size in (1, 2)}
    for size, folder in folders.items():
        partition_graph(graph, folder, num_parts=size, method="hash")
    return folders


@pytest.fixture
def only_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets are of tensors alone: nothing else is in use."""
    monkeypatch.setattr("siafu.engine.networks.sampled_memory.memory_in_use", lambda world: 0)
    monkeypatch.setattr("siafu.engine.networks.sampled_memory.RUNTIME_BYTES", 0)
    monkeypatch.setattr("siafu.minibatch.feed._READING_BYTES", 0)


def network_of(
    parts: Path, world: World | None = None, **settings: Any
) -> tuple[SampledNetwork, Any]:
    config = make_config(data="planted", **SAMPLED | settings).resolved()
    shard = open_shard(parts, world or World(), place="host")
    training = begin(config, shard)
    assert isinstance(training.workload.network, SampledNetwork)
    return training.workload.network, shard


class AtOnce:
    """Does what a thread would, here and now: while the piece before is used, at the earliest."""

    def __init__(self, *given: Any, **more: Any) -> None: ...

    def __enter__(self) -> "AtOnce":
        return self

    def __exit__(self, *error: object) -> None: ...

    def submit(self, work: Any, *given: Any) -> Any:
        done: Future[Any] = Future()
        done.set_result(work(*given))
        return done


@pytest.mark.usefixtures("only_tensors")
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        DEEP | {"model": "gcn"},
        DEEP | {"model": "gin", "jk": "max"},
        {"model": "gat", "heads": 2, "jk": "cat"},
    ],
)
def test_inference_takes_what_the_budget_leaves(
    parts: Path, monkeypatch, settings: dict[str, Any], ahead: bool
) -> None:
    monkeypatch.setattr(Feed, "is_ahead", ahead)
    budget = 6_000_000
    free, shard = network_of(parts, **settings)
    bound, _ = network_of(parts, memory=str(budget), **settings)
    rows = bound.logit_rows()
    assert isinstance(rows, ScratchRows)
    bound._inferred = None
    held = [shard.x, shard.csr.index, shard.csr.indptr, *bound.module.parameters()]
    with mock.patch.object(layerwise, "ThreadPoolExecutor", AtOnce), Alive(held) as alive:
        bound.logit_rows()
    assert 0.2 * budget < alive.peak < budget
    torch.testing.assert_close(rows.slice(0, 20_000), free.logits(), rtol=1e-5, atol=1e-6)
    bound.close()
    free.close()


def peak_of_pass(world: World, parts: Path, budget: int) -> dict[str, Any]:
    """Return the bytes alive in a pass over all nodes, and whether its rows went to a file."""
    limits: dict[str, Any] = {"memory_in_use": lambda world: 0, "RUNTIME_BYTES": 0}
    with (
        mock.patch.multiple("siafu.engine.networks.sampled_memory", **limits),
        mock.patch("siafu.minibatch.feed._READING_BYTES", 0),
        mock.patch.object(layerwise, "ThreadPoolExecutor", AtOnce),
        mock.patch.object(Feed, "is_ahead", True),
    ):
        network, shard = network_of(parts, world, memory=str(budget), model="sage", **DEEP)
        held = [shard.x, shard.csr.index, shard.csr.indptr, *network.module.parameters()]
        with Alive([*held, network.feed.whole.served.address_C]) as alive:
            rows = network.logit_rows()
        network.close()
    return {"peak": alive.peak, "on_disk": isinstance(rows, ScratchRows)}


@pytest.mark.parametrize("budget", [8_000_000, 60_000_000])
def test_rows_of_other_ranks_take_what_the_budget_leaves(
    ranks: RankPool, tmp_path: Path, budget: int
) -> None:
    partition_graph(load("planted:20000"), tmp_path / "3.parts", num_parts=3, method="hash")
    told = ranks.run(peak_of_pass, 3, tmp_path / "3.parts", budget)
    assert [one["on_disk"] for one in told] == [budget < 10_000_000] * 3
    assert all(one["peak"] < budget for one in told)


def left_beside_hot_rows(world: World, parts: Path) -> tuple[int, int]:
    """Return what is left where hot rows will take 1 kB more on each next rank, and without any."""
    network, _ = network_of(parts, world, memory="4GB", model="sage")
    with mock.patch.object(network.feed, "_left", return_value=10_000):
        without = network.feed.left()
        kept = mock.Mock(free_bytes=1000 * (world.rank + 1))
        with mock.patch.object(network.feed, "_hot", kept):
            left = network.feed.left()
    network.close()
    return left, without


def test_ranks_agree_on_what_is_left(ranks: RankPool, tmp_path: Path) -> None:
    partition_graph(load("planted:400"), tmp_path / "3.parts", num_parts=3, method="hash")
    told = ranks.run(left_beside_hot_rows, 3, tmp_path / "3.parts")
    assert told == [(7_000, 10_000)] * 3


@pytest.mark.usefixtures("only_tensors")
def test_budget_too_small_for_a_minibatch_names_one_that_works(parts: Path) -> None:
    with pytest.raises(BudgetError, match="too small to train") as caught:
        network_of(parts, memory="20KB", model="gcn")
    assert "for a minibatch" in caught.value.seen
    told = re.search(r"--memory ([0-9.]+GB)", caught.value.fix)
    assert told is not None
    network_of(parts, memory=told[1], model="gcn")[0].close()


@pytest.mark.parametrize("piece_bytes", [200_000, 2_000_000, 50_000_000])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("of_read", [True, False])
def test_pieces_are_as_large_as_there_is_room(piece_bytes: int, ahead: bool, of_read: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    degree = torch.randint(0, 40, (50_000,), generator=generator)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degree.cumsum(0)])
    wide = WideRows(64, of_read)
    spans = Room(False, piece_bytes, ahead=ahead).spans(indptr, 264, wide)
    assert [low for low, _ in spans] == [0, *(high for _, high in spans[:-1])]
    assert spans[-1][1] == 50_000
    read = [high - low + int(indptr[high] - indptr[low]) for low, high in spans]
    fits = max(1024, piece_bytes // node_bytes(264, wide, ahead))
    assert max(read) <= fits
    assert max(read) > 0.4 * min(fits, 1 << 20)
    assert max(high - low for low, high in spans) <= max(128, fits // 8)


def test_last_weights_are_inferred_with_once(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    calls, infer = [], SampledNetwork._infer

    def counted(self: SampledNetwork, *, embed: bool) -> Any:
        calls.append(embed)
        return infer(self, embed=embed)

    monkeypatch.setattr(SampledNetwork, "_infer", counted)
    run = fit("planted:300", strategy="batchgnn", epochs=1, hidden=8)
    assert calls == [False]
    assert run.predictions.num_rows == 300


@pytest.mark.parametrize("settings", [{"model": "gcn"}, {"model": "sage", "jk": "cat"}])
@pytest.mark.parametrize("layers", [1, 3])
def test_embeddings_beside_predictions_take_one_pass(
    parts: Path, tmp_path: Path, monkeypatch, settings: dict[str, Any], layers: int
) -> None:
    network, shard = network_of(parts, layers=layers, fanout="2,2,2"[: 2 * layers - 1], **settings)
    want = network.logits(), network.embeddings()
    run, one_layer = [], LayerPass._one_layer
    monkeypatch.setattr(
        LayerPass,
        "_one_layer",
        lambda self, number, *given: run.append(number) or one_layer(self, number, *given),
    )
    network._inferred = None
    network.logits()
    once = run.copy()
    network._inferred = None
    write_predictions(network, shard, network._draws, tmp_path, embeddings=True)
    assert run == once * 2
    assert torch.equal(network.logits(), want[0])
    assert torch.equal(network.embeddings(), want[1])
    assert run == once * 2
    network.close()


def test_other_weights_are_inferred_with_again(parts: Path) -> None:
    network, _ = network_of(parts, model="sage")
    first = network.logits()
    assert network.logits() is not None
    with torch.no_grad():
        next(network.module.parameters()).mul_(2)
    assert not torch.equal(network.logits(), first)
    network.close()


def test_predictions_in_pieces_are_those_of_one(parts: Path, tmp_path: Path, monkeypatch) -> None:
    network, shard = network_of(parts, model="gcn")
    write_predictions(network, shard, network._draws, tmp_path / "one", embeddings=True)
    monkeypatch.setattr("siafu.engine.infer._ROWS_AT_ONCE", 7_000)
    write_predictions(network, shard, network._draws, tmp_path / "more", embeddings=True)
    assert pq.ParquetFile(tmp_path / "more" / "part0.parquet").num_row_groups == 3
    one, more = pq.read_table(tmp_path / "one"), pq.read_table(tmp_path / "more")
    assert one.schema == more.schema
    assert one.equals(more)
    assert set(one["split"].to_pylist()) <= {"", "train", "val", "test"}
    network.close()


def resident_edges(world: World, parts: Path, settings: dict[str, Any]) -> int:
    """Return bytes of the edge files that are resident once training may start."""
    config = make_config(data="long", **SAMPLED, **settings).resolved()
    shard = open_shard(parts, world, place="disk", verify=False)
    training = begin(config, shard)
    text, total, is_edges = Path("/proc/self/smaps").read_text(), 0, False
    for line in text.splitlines():
        if re.match("[0-9a-f]+-[0-9a-f]+ ", line):
            is_edges = line.endswith("src.npy")
        elif is_edges and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    training.close()
    return total


@pytest.mark.parametrize("model", ["gcn", "gin"])
def test_edges_on_disk_do_not_stay_resident(long_parts: dict[int, Path], model: str) -> None:
    assert resident_edges(World(), long_parts[1], {"model": model}) < EDGES


def test_seeding_a_cache_leaves_edges_on_disk(ranks: RankPool, long_parts) -> None:
    settings = {"model": "sage", "hot_rows": "10KB"}
    # Compiles the kernels here, where nothing waits for two ranks to do so at once.
    resident_edges(World(), long_parts[1], settings)
    for resident in ranks.run(resident_edges, 2, long_parts[2], settings):
        assert resident < EDGES // 2, "a quarter of the file, of 4 bytes an edge"


@pytest.mark.parametrize("place", ["host", "disk"])
def test_degrees_through_pieces_are_those_of_the_whole(tmp_path: Path, monkeypatch, place) -> None:
    generator = np.random.default_rng(1)
    src, dst = generator.integers(0, 50, (2, 700))  # some are loops
    weight = generator.random(700).astype(np.float32)
    graph = graph_from_edges(src, dst, 50, edge_weight=weight)
    partition_graph(graph, tmp_path / "parts", num_parts=1, method="hash")
    shard = open_shard(tmp_path / "parts", World(), place=place)
    want = [shard.csr.degree().double(), owned_degree(shard.csr), added_loop(shard.csr)]
    monkeypatch.setattr("siafu.shard.shard._PIECE_EDGES", 60)
    assert len(list(shard.edge_pieces())) > 10
    assert torch.equal(fact_rows(shard), torch.stack(want, dim=1))
