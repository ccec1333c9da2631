"""Every setting, in every kind of run: it changes something, is refused, or is listed as idle here.

A new setting fails here until it has an entry in OTHERS, and in IDLE where it has no effect.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import siafu
import siafu.plan
from siafu.config import RunConfig, owner_of, scopes_of, settings_of
from siafu.errors import SiafuError
from siafu.ingest.options import TableColumns
from tests.harness import RankPool
from tests.unit.launch.walk import ENGINES, MODELS, Engine, refusing_pool, seen_of, small_events
from tests.unit.launch.walk import small_graph as small

LEARNT = ("losses", "weights", "predictions", "scores")


@dataclass(frozen=True, slots=True)
class Other:
    """Another value of a setting, and what it must change where it is not refused."""

    value: Any
    changes: tuple[str, ...] = LEARNT
    by_engine: dict[str, Any] = field(default_factory=dict)
    beside: dict[str, Any] = field(default_factory=dict)
    """Settings of both runs that are compared, where the setting needs them."""


PLANNED = ("plan", "bytes")
OTHERS: dict[str, Other] = {
    "data": Other(1),
    "model": Other(
        "sage",
        by_engine={
            "sar": "gatv2",
            "adaqp": "gcn",
            "columns": "gcn",
            "batchgnn": "gcn",
            "links": "gcn",
            "own": f"{MODELS}:Other",
            "tm-gcn": "gcrn",
            "groups": "gcrn",
            "evolvegcn": "evolvegcn-h",
            "signal": "cd-gcn",
            "node over time": "cd-gcn",
        },
    ),
    "ranks": Other(
        1,
        ("bytes",),
        {"links": 2, "dorylus": 2, "own": 2}
        | dict.fromkeys(("evolvegcn", "signal", "node over time"), 2),
    ),
    "task": Other(
        "link", by_engine={"links": "node", "edges": "node", "evolvegcn": "edge", "signal": "node"}
    ),
    "epochs": Other(1),
    "seed": Other(1),
    "layers": Other(3),
    "lr": Other(0.1),
    "weight_decay": Other(0.1),
    "optimizer": Other("sgd"),
    "momentum": Other(0.5, beside={"optimizer": "sgd", "epochs": 3, "lr": 0.1}),
    "schedule": Other("cosine", beside={"epochs": 3}),
    "warmup": Other(1),
    "clip_norm": Other(1e-3),
    "dropout": Other(0.3),
    "patience": Other(1, ("losses",), beside={"epochs": 3, "lr": 1e-9}),
    "checkpoint_every": Other(1, ("files",)),
    "checkpoint_minutes": Other(1.0),
    "keep_checkpoints": Other(1, ("files",), beside={"checkpoint_every": 1}),
    "max_restarts": Other(1),
    "min_ranks": Other(1, beside={"max_restarts": 1}),
    "undirected": Other(True),
    "split": Other("0.4,0.2"),
    "device": Other("cpu"),
    "backend": Other("gloo"),
    "threads": Other(2),
    "deadline": Other(200.0),
    "launcher": Other("ray"),
    "out": Other("elsewhere", ("folder",)),
    "strategy": Other("sar", PLANNED, {"sar": "halo"}),
    "allow": Other("sampled"),
    "stages": Other("2", PLANNED, {"sar": "1"}),
    "memory": Other("1MB"),
    "recompute": Other(True, PLANNED, {"sar": False}),
    "offload": Other("1MB"),
    "prune": Other(True, PLANNED),
    "keep": Other("loss", ("scores", "bytes", "predictions"), beside={"epochs": 6, "lr": 0.3}),
    "inference": Other("none", ("files",)),
    "evaluate": Other("train", ("bytes", "scores")),
    "normalize_features": Other(True),
    "prices": Other("prices.toml", ("bill",)),
    "instance": Other("c5.large", ("bill",)),
    "max_dollars": Other(1e-9, ("losses",), beside={"epochs": 3}),
    "max_calls": Other(1, ("losses",), beside={"epochs": 3}),
    "metric": Other("roc-auc", ("scores",)),
    "eval_every": Other(2, ("evaluated",)),
    "input_cache": Other(True, PLANNED, beside={"input_dropout": 0.0}),
    "by_columns": Other(True, PLANNED, {"columns": False}),
    "overlap": Other(False, ("plan",)),
    "once_per_host": Other(False, ("plan",)),
    "macrobatch": Other("1", PLANNED, beside={"macrobatch": "2"}),  # auto may take 1, too
    "fanout": Other("2,2"),
    "steps_per_epoch": Other(1),
    "batch_size": Other(5, by_engine={"links": 20}),
    "seed_order": Other("global"),
    "step_minibatches": Other(3, beside={"seed_order": "global"}),
    "sample_replace": Other(True),
    "sample_weighted": Other(True, beside={"sample_replace": True}),
    "share_draws": Other(2, beside={"fanout": "1,1"}),
    "hot_rows": Other("1MB", PLANNED),
    "rows_on": Other("host"),
    "feature_bits": Other(8),
    "exclude_targets": Other(False),
    "negatives": Other("uniform:3"),
    "eval_negatives": Other("7"),
    "intervals": Other(3),
    "staleness": Other(1, ("plan",)),
    "gather": Other("latest", ("plan",)),
    "pool": Other("process"),
    "pool_workers": Other("3"),
    "pool_bits": Other(8),
    "trace": Other(True, ("files",)),
    "exact_from": Other(0.0),
    "cloud": Other("1ms"),
    "lambda_function": Other("f"),
    "lambda_endpoint": Other("http://127.0.0.1:1"),
    "pool_address": Other("tcp://127.0.0.1:7000"),
    "pool_encryption": Other(False),
    "ray_address": Other("local"),
    "precision": Other("float64", ("plan",)),
    "wire": Other("4", ("bytes",)),
    "boundary": Other(0.5, ("bytes",)),
    "wire_bits": Other(3.0, ("plan",)),
    "wire_period": Other(3, ("plan",)),
    "changes": Other(True, ("plan",), beside={"wire": "4"}),
    "kept_bits": Other(16, ("plan",), beside={"wire": "4", "changes": True}),
    "smoothing": Other(0.5, ("plan",), beside={"staleness": 1}),
    "hidden": Other(24),
    "heads": Other(4),
    "edge_features": Other(True),
    "input_dropout": Other(0.2),
    "jk": Other("cat"),
    "norm": Other("layer"),
    "residual": Other(True),
    "partition": Other("contiguous"),
    "window": Other("2"),
    "columns": Other("src=a"),
    "time_unit": Other("ms"),
    "partial_window": Other("drop"),
    "edge_life": Other(2),
    "time_block": Other(2, ("plan",)),
    "node_parts": Other(2, ("bytes",), {"groups": 1}),
    "node_features": Other("random:3"),
    "history": Other(2),
    "pair_history": Other(False),
    "step_every": Other("block", beside={"time_block": 2}),
    "aggregate": Other("out", by_engine={"tm-gcn": "in", "groups": "in"}),
    "time_exchange": Other("all-to-all", ("plan",)),
    "bandwidth": Other(2),
    "head": Other("linear", by_engine={"tm-gcn": "mlp", "groups": "mlp"}),
    "lags": Other(2),
    "class_weights": Other(
        "1,3", by_engine=dict.fromkeys(("tm-gcn", "groups", "evolvegcn"), "none")
    ),
    "loss": Other("focal"),
    # Refused where its package is not installed.
    "sink": Other("tensorboard", ("files",)),
    "threshold": Other(
        "0.9",
        ("scores", "predictions"),
        dict.fromkeys(("adaqp", "columns", "batchgnn", "own", "edges"), "0.1"),
    ),
    # Of tables; tests/unit/cli/test_columns.py has their effects.
    **{name: Other("a") for name in settings_of(TableColumns)},
    "id_type": Other("text"),
    "label_as": Other("classes"),
    "drop_unknown": Other(True),
    # Of columns with names; tests/unit/launch/test_learnt.py has their effects.
    "scale": Other("robust"),
    "schema": Other("changes.yaml"),
}

IDLE: dict[str, str] = {
    "device": "auto is the CPU on a machine without a GPU",
    "backend": "auto is gloo on a machine without a GPU: tests/unit/comm/test_devices",
    "rows_on": "auto is the host on a machine without a GPU",
    "threads": "how fast, not what",
    "deadline": "how long a wait may last, where nothing waits for so long",
    "checkpoint_minutes": "no epoch takes so long: tests/unit/engine/test_resume",
    "max_restarts": "what to do where a rank is lost, and none is: tests/faults/test_processes",
    "min_ranks": "what to do where a rank is lost, and none is: tests/faults/test_restarts",
    "pool_workers": "how many tasks at once, not what they compute",
}
"""Settings without an effect on what a run learns, sends or writes; why."""
IDLE_ALONE = ("stages", "seed_order", "wire", "boundary", "hot_rows", "partition")
"""Settings about other ranks: one has nobody to send to; the same command on more uses them."""
NOT_RUN: dict[str, str] = {
    "exact_from": "which rows lag until then is a matter of timing: tests/unit/engine",
    "launcher": "the same ranks on a Ray cluster: tests/ray",
    "pool": "the same tasks in processes, which take seconds to start: tests/parity/test_pipeline",
}
COMMON = frozenset(
    {
        "data",
        "seed",
        "epochs",
        "lr",
        "weight_decay",
        "momentum",
        "schedule",
        "warmup",
        "checkpoint_every",
        "checkpoint_minutes",
        "keep_checkpoints",
        "max_restarts",
        "min_ranks",
        "split",
        "undirected",
        "device",
        "backend",
        "threads",
        "deadline",
        "out",
        "patience",
        "keep",
        "inference",
        "metric",
        "eval_every",
        "prices",
        "instance",
        "max_dollars",
        "sink",
    }
)
"""Settings that engines share the code of: some engines stand for the others."""
OF_NETWORK = frozenset(
    {
        "layers",
        "hidden",
        "dropout",
        "input_dropout",
        "jk",
        "norm",
        "residual",
        "optimizer",
        "clip_norm",
        "loss",
        "class_weights",
        "normalize_features",
        "bandwidth",
        "head",
        "aggregate",
        "history",
        "node_features",
        "edge_life",
    }
)
"""Settings that one network reads however its rows are exchanged: `halo` and `tm-gcn` stand for
engines without a network of their own."""


@pytest.fixture(scope="module", autouse=True)
def here(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder with files that settings name, and ranks that outlive a refusal."""
    with pytest.MonkeyPatch.context() as patched, refusing_pool(ranks):
        patched.chdir(tmp_path_factory.mktemp("walk"))
        prices = Path(siafu.plan.__file__).with_name("prices.toml").read_text()
        Path("prices.toml").write_text(prices.replace("0.17", "0.34"))
        yield


_numbers = count()


def run(engine: Engine, **settings: Any) -> dict[str, str]:
    """Return what is seen of a run of that kind."""
    folder = settings.setdefault("out", f"runs/{next(_numbers)}")
    data = (small_events if engine.over_time else small)(settings.pop("data", 0))
    try:
        return seen_of(siafu.fit(data, **{**engine.settings, **settings}))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def verdict(setting: str, name: str, base: dict[str, str]) -> str:
    """Return what became of a setting: changed, idle, or refused by its name."""
    engine, other = ENGINES[name], OTHERS[setting]
    asked = {setting: other.by_engine.get(name, other.value)}
    refusal = ""
    for beside in (other.beside, {}) if other.beside else ({},):
        try:
            after = run(engine, **{"out": "runs/b", **beside, **asked})
            before = run(engine, out="runs/b", **beside) if beside else base
        except SiafuError as error:
            refusal = str(error).replace("-", "_")
            if setting in refusal:
                return "refused"
        else:
            is_changed = any(before[key] != after[key] for key in other.changes)
            return "changed" if is_changed else "idle"
    return f"refused for another reason: {refusal}"


def test_every_setting_has_a_scope_and_another_value() -> None:
    for name in RunConfig.model_fields:
        assert owner_of(name).panel, name
        assert isinstance(scopes_of(name), tuple), name
    assert set(OTHERS) == set(RunConfig.model_fields)
    assert set(IDLE) | set(IDLE_ALONE) | set(NOT_RUN) | COMMON | OF_NETWORK <= set(OTHERS)


@pytest.mark.parametrize("name", ENGINES)
def test_no_setting_is_passed_over_in_silence(name: str) -> None:
    engine = ENGINES[name]
    base = run(engine, out="runs/b")
    wrong = {}
    for setting in OTHERS:
        if setting in NOT_RUN or (setting in COMMON and not engine.walks_common):
            continue
        if setting in OF_NETWORK and not engine.has_own_network:
            continue
        found = verdict(setting, name, base)
        listed = setting in IDLE or (setting in IDLE_ALONE and not engine.has_peers)
        if found not in ("refused", "idle" if listed else "changed", "changed"):
            wrong[setting] = found
        if found == "changed" and setting in IDLE:
            wrong[setting] = "listed as idle, yet not so"
    assert not wrong, f"settings of {name} that are neither used nor refused: {wrong}"
