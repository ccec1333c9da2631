"""Kinds of runs that the walk over all settings goes through, and what is seen of a run."""

import hashlib
import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

import siafu
from siafu.comm import World
from siafu.errors import ConfigError, SiafuError
from siafu.graph import Graph, graph_from_edges
from siafu.ingest.datasets.drifting import drifting
from siafu.ingest.events.events import Events
from siafu.launch.rank import Job, work
from siafu.record import RunFolder
from tests.harness import RankPool

launch = importlib.import_module("siafu.launch.ranks")

MODELS = Path(__file__).with_name("own_net.py").absolute()
OWN = MODELS.read_text()


STATIC = {"epochs": 2, "hidden": 16, "layers": 2, "checkpoint_every": 0}
TIMED = {"epochs": 2, "checkpoint_every": 0}
PAIR = {"ranks": 2, "partition": "hash"}


@dataclass(frozen=True, slots=True)
class Engine:
    """One kind of run."""

    settings: dict[str, Any]
    over_time: bool = False
    walks_common: bool = True
    """Whether settings that the engines share code for are walked over too."""
    has_own_network: bool = True
    """False where the network is that of another engine, and only how it exchanges rows differs."""

    @property
    def has_peers(self) -> bool:
        """Whether there are several ranks."""
        return self.settings.get("ranks", 1) > 1


def _static(*, walks_common: bool = True, has_own_network: bool = True, **settings: Any) -> Engine:
    return Engine(
        {**STATIC, **settings}, walks_common=walks_common, has_own_network=has_own_network
    )


def _timed(*, walks_common: bool = True, has_own_network: bool = True, **settings: Any) -> Engine:
    return Engine(
        {**TIMED, **settings},
        over_time=True,
        walks_common=walks_common,
        has_own_network=has_own_network,
    )


SAME = {"walks_common": False, "has_own_network": False}


ENGINES: dict[str, Engine] = {
    "halo": _static(strategy="halo", model="gcn", **PAIR),
    "sar": _static(strategy="sar", model="gat", **SAME, **PAIR),
    "adaqp": _static(strategy="adaqp", model="sage", **SAME, **PAIR),
    "columns": _static(strategy="columns", model="sage", **SAME, **PAIR),
    "batchgnn": _static(
        strategy="batchgnn", model="sage", batch_size=10, walks_common=False, **PAIR
    ),
    "links": _static(
        strategy="batchgnn", task="link", model="sage", batch_size=40, walks_common=False
    ),
    "edges": _static(strategy="halo", task="edge", model="gcn", walks_common=False, **PAIR),
    "dorylus": _static(strategy="dorylus", pool="none", intervals=2, walks_common=False),
    "own": _static(strategy="halo", model=f"{MODELS}:Net", walks_common=False),
    "tm-gcn": _timed(model="tm-gcn", ranks=2),
    "groups": _timed(model="tm-gcn", ranks=2, node_parts=2, partition="hash", **SAME),
    "evolvegcn": _timed(model="evolvegcn-o", task="link", walks_common=False),
    "signal": _timed(model="gcrn", task="signal", walks_common=False),
    "node over time": _timed(model="gcrn", task="node", walks_common=False),
}


def small_graph(seed: int = 0) -> Graph:
    """Return a directed graph with everything that settings may be about."""
    draw = np.random.default_rng(seed)
    src, dst = draw.integers(0, 60, (2, 240))
    rank = draw.permutation(60)
    return graph_from_edges(
        src,
        dst,
        60,
        name="small",
        x=draw.random((60, 16), dtype=np.float32),
        y=draw.integers(0, 2, 60),
        num_classes=2,
        edge_attr=draw.random((240, 3), dtype=np.float32),
        edge_weight=draw.random(240, dtype=np.float32) + 0.5,
        train=rank < 30,
        val=(rank >= 30) & (rank < 45),
        test=rank >= 45,
        edge_y=draw.integers(0, 2, 240),
        num_edge_classes=2,
    )


def small_events(seed: int = 0) -> Events:
    """Return events of six steps with classes of edges and nodes, and a signal."""
    return drifting(24, num_steps=6, events_per_node=2, width=8, seed=seed)


def seen_of(run: siafu.Run) -> dict[str, str]:
    """Return what a user could tell two runs apart by, time and memory aside."""
    result, folder = run.result, RunFolder(run.path)
    rows = folder.read_metrics()
    told = {
        "losses": result["losses"],
        "scores": [result["best_epoch"], result["score"], result.get("scores")],
        "evaluated": [row["epoch"] for row in rows if "score" in row or "scores" in row],
        "bytes": result["bytes_sent"],
        "plan": [result["choices"], result["exactness"], result.get("sampling")],
        "bill": _price(result.get("bill")),
        "files": sorted(str(p.relative_to(run.path)) for p in run.path.rglob("*") if p.is_file()),
        "predictions": [_digest(p.read_bytes()) for p in sorted(run.path.glob("predictions/*"))],
        "weights": {
            name: _digest(tensor.numpy().tobytes())
            for name, tensor in load_file(folder.weights).items()
        },
        "folder": run.path.name,
    }
    return {name: json.dumps(value, sort_keys=True) for name, value in told.items()}


def _price(bill: dict[str, Any] | None) -> list[Any]:
    """Return what a second costs on which machines."""
    if not bill:
        return []
    return [bill["servers"], round(3600 * bill["dollars"] / bill["seconds"], 3)]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _work_or_say(world: World, run: str, job: str) -> tuple[str, str, str] | None:
    """Do a rank's work; a refusal, which is alike on all ranks, is returned."""
    try:
        work(RunFolder(Path(run)), Job.from_text(job), world)
    except SiafuError as error:
        return error.problem, error.seen, error.fix
    return None


@contextmanager
def refusing_pool(ranks: RankPool) -> Iterator[None]:
    """Let runs have ranks of the pool, which outlive a refusal."""

    def run_ranks(num_ranks: int, run: Path, job: str, **settings: Any) -> None:
        told = ranks.run(_work_or_say, num_ranks, str(Path(run).absolute()), job)
        if told[0] is not None:
            raise ConfigError(told[0][0], seen=told[0][1], fix=told[0][2])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(launch, "run_ranks", run_ranks)
        patched.setattr(launch, "warm_process", lambda variables: None)
        patched.setattr(launch, "warm_up", lambda: None)
        patched.setattr(launch, "warm_up_wire", lambda: None)
        patched.setattr(launch, "warm_up_sampling", lambda: None)
        yield
