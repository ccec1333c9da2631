"""A run that does not fit its GPU is refused before anything is put there, with flags that help."""

import io
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import siafu
from siafu.comm import World
from siafu.config import make_config
from siafu.errors import BudgetError
from siafu.graph import load_dynamic_store, save_dynamic
from siafu.ingest import load, load_dynamic
from siafu.launch import device_room, opening
from siafu.launch.device_room import check_room, check_room_over_time, held_to_budget
from siafu.launch.foreseen import outlook_of, setting_of
from siafu.partitioning import partition_graph
from tests.harness import RankPool

GB = 10**9


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("room") / "parts"
    partition_graph(load("planted:2k"), folder, num_parts=2, method="hash")
    return str(folder)


def told(world: World, parts: str, free: int, settings: dict[str, Any], trains: bool) -> str:
    """Return what a rank is told where so many bytes are free on its GPU."""
    said: list[str] = []
    config = make_config(data=parts, ranks=world.size, **settings).resolved()
    before = device_room.device_room
    device_room.device_room = lambda world: free
    try:
        check_room(config, parts, world, said.append, trains=trains)
    except BudgetError as error:
        return str(error)
    finally:
        device_room.device_room = before
    return "; ".join(said)


SAGE = {"model": "sage", "hidden": 256, "layers": 3}
OWN = {"model": "torch_geometric.nn:GraphSAGE"}


@pytest.mark.parametrize(
    ("settings", "trains", "kinds"),
    [
        (SAGE, True, ["graph", "features", "rows kept"]),
        (OWN, True, ["graph", "features"]),
        (SAGE, False, ["graph", "features"]),
    ],
)
def test_what_does_not_fit_is_refused_with_kinds_and_flags(
    ranks: RankPool, parts: str, settings: dict[str, Any], trains: bool, kinds: list[str]
) -> None:
    for said in ranks.run(told, 2, parts, 1000, settings, trains):
        assert "does not fit on its GPU" in said
        assert "2 ranks share the GPU" in said
        assert all(kind in said for kind in kinds)
        assert ("batchgnn --rows-on host" in said and "--strategy sar" in said) is trains
        assert ("rows kept" in said) is ("rows kept" in kinds)


def test_what_fits_passes_and_what_may_fit_is_said(ranks: RankPool, parts: str) -> None:
    assert ranks.run(told, 2, parts, 100 * GB, SAGE, True) == ["", ""]
    low, high = 1000, 100 * GB
    while high - low > low // 100:  # the least that is not refused
        free = (low + high) // 2
        refused = "does not fit" in ranks.run(told, 2, parts, free, SAGE, True)[0]
        low, high = (free, high) if refused else (low, free)
    assert "may not fit" in ranks.run(told, 2, parts, high, SAGE, True)[0]
    assert ranks.run(told, 2, parts, round(1.3 * high), SAGE, True) == ["", ""]


def test_rows_that_can_leave_for_the_host_are_no_reason_to_refuse(
    ranks: RankPool, parts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = SAGE | {"layers": 12}
    low, high = 1000, 100 * GB
    while high - low > low // 100:  # the least of which nothing is said
        free = (low + high) // 2
        low, high = (free, high) if told(World(), parts, free, deep, True) else (low, free)
    config = make_config(data=parts, **deep).resolved()
    at = setting_of(config, Path(parts), rank=0)
    assert at is not None
    assert high < 0.8 * outlook_of(at, config).memory_bytes
    monkeypatch.setattr(device_room, "host_bytes", lambda: 1000)
    assert "not fit on its GPU" in told(World(), parts, high, deep, True)


def test_a_run_is_refused_before_its_part_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_room, "device_room", lambda world: 1000)
    monkeypatch.setattr(opening, "open_shard", lambda *given, **named: pytest.fail("opened"))
    with pytest.raises(BudgetError, match="does not fit on its GPU"):
        siafu.fit("planted:100", epochs=1, strategy="halo", out=str(tmp_path / "run"))


def test_minibatches_go_by_the_place_that_they_choose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_room, "device_room", lambda world: 1000)
    run = siafu.fit("planted:100", epochs=1, strategy="batchgnn", out=str(tmp_path / "run"))
    assert run.result["epochs"] == 1


def test_dynamic_graphs_are_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = load_dynamic("drifting")
    save_dynamic(graph, tmp_path / "store")
    graph = load_dynamic_store(str(tmp_path / "store"))
    config = make_config(data="drifting", model="cd-gcn", hidden=64).resolved()
    monkeypatch.setattr(device_room, "device_room", lambda world: 1000)
    with pytest.raises(BudgetError, match="does not fit") as error:
        check_room_over_time(config, graph, World(), lambda line: None)
    assert "rows of a time block" in error.value.seen
    assert "--time-block" in error.value.fix
    monkeypatch.setattr(device_room, "device_room", lambda world: GB)
    check_room_over_time(config, graph, World(), lambda line: pytest.fail(line))


def test_a_budget_is_a_limit_on_what_torch_takes_and_ends_with_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares: list[float] = []
    cuda = torch.cuda
    monkeypatch.setattr(
        cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=10 * GB)
    )
    monkeypatch.setattr(cuda, "get_per_process_memory_fraction", lambda device: 0.9, raising=False)
    monkeypatch.setattr(
        cuda, "set_per_process_memory_fraction", lambda share, device: shares.append(share)
    )
    world = World(device=torch.device("cuda", 0))
    for memory in ("4GB", "40GB", None):
        config = make_config(data="planted", memory=memory).resolved()
        with held_to_budget(config, world):
            pass
    with held_to_budget(make_config(data="planted", memory="4GB").resolved(), World()):
        pass
    assert shares == [0.4, 0.9, 0.9, 0.9]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_a_run_is_refused_and_the_budget_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(device_room, "free_bytes", lambda device: 100_000)
        with pytest.raises(BudgetError, match="does not fit on its GPU"):
            siafu.fit(
                "planted:2k", epochs=1, strategy="halo", device="cuda", out=str(tmp_path / "no")
            )
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    said = io.StringIO()
    with redirect_stderr(said):
        run = siafu.fit(
            "planted:2k",
            epochs=2,
            strategy="halo",
            device="cuda",
            memory="1GB",
            out=str(tmp_path / "run"),
        )
    assert run.result["peak_mb"][0] <= run.result["reserved_mb"][0] <= 1e9 / 2**20
