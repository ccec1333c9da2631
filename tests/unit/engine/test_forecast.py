"""A budget that is too small is refused before the graph is cut, with numbers that hold."""

import re
from pathlib import Path
from typing import Any

import pytest

from siafu.comm import World
from siafu.config import make_config
from siafu.engine import Counts, check_before_cut, make_spec
from siafu.engine.forecast import sampled_bytes
from siafu.engine.networks.network import model_spec
from siafu.errors import BudgetError
from siafu.ingest import load
from siafu.launch import fit, resume_run
from siafu.options import read_bytes
from siafu.partitioning import partition_graph
from siafu.plan import choose_strategy
from siafu.shard import open_shard

LARGE = Counts(rows=2_500_000, edges=25_000_000, row_bytes=256, edge_bytes=4, ranks=2)
"""5 M nodes and 50 M edges on two ranks."""


def check(counts: Counts, **settings: Any) -> None:
    config = make_config(data="large", ranks=counts.ranks, **settings).resolved()
    widths = {"in_width": 64, "out_width": 16, "edge_width": 0, "num_types": 0}
    check_before_cut(config, make_spec(config, **widths), counts)


def test_refusal_names_minibatches_and_a_budget_that_works() -> None:
    with pytest.raises(BudgetError, match="too small") as caught:
        check(LARGE, model="sage", memory="3GB")
    assert "before the graph is cut" in caught.value.seen
    assert "use --strategy batchgnn" in caught.value.fix
    told = re.search(r"give --memory ([0-9.]+GB)", caught.value.fix)
    assert told is not None
    check(LARGE, model="sage", memory=told[1])


def test_minibatches_are_not_named_where_they_do_not_fit() -> None:
    with pytest.raises(BudgetError) as caught:
        check(LARGE, model="sage", memory="500MB")
    assert "batchgnn" not in caught.value.fix


def test_minibatches_of_a_model_need_less_than_the_whole() -> None:
    config = make_config(data="large", ranks=2, memory="3GB", model="sage").resolved()
    spec = make_spec(config, in_width=64, out_width=16, edge_width=0, num_types=0)
    assert sampled_bytes(config, spec, LARGE) < read_bytes("1.7GB")


def test_prune_does_not_ask_for_more() -> None:
    (least,) = {_least(model="sage"), _least(model="sage", prune=True)}
    assert least > 1


def _least(**settings: Any) -> float:
    with pytest.raises(BudgetError) as caught:
        check(LARGE, memory="600MB", **settings)
    found = re.search(r"about ([0-9.]+) GB at least", caught.value.seen)
    assert found is not None
    return float(found[1])


def test_prune_is_left_out_aloud_where_only_that_fits(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("siafu.plan.choice.memory_in_use", lambda world: 0)
    monkeypatch.setattr("siafu.plan.choice.RUNTIME_BYTES", 0)
    partition_graph(load("planted:2000"), tmp_path / "parts", num_parts=1, method="hash")
    shard, said = open_shard(tmp_path / "parts", World()), []

    def chosen(memory: str) -> bool:
        config = make_config(data="planted", prune=True, hidden=8, memory=memory).resolved()
        return choose_strategy(config, model_spec(config, shard), shard, say=said.append).prune

    with pytest.raises(BudgetError) as caught:
        chosen("1KB")
    found = re.search(r"give --memory ([0-9.]+GB)", caught.value.fix)
    assert found is not None
    assert chosen("1GB")
    budgets = [f"{kilobytes}KB" for kilobytes in range(100, 10_000, 100)]
    for memory in budgets:
        try:
            if not chosen(memory):
                break
        except BudgetError:
            continue
    assert "--prune is left out" in said[-1]


def test_graph_is_not_cut_for_a_run_that_can_not_fit(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("siafu.launch.cut.partition_in_steps", lambda *args, **given: 1 / 0)
    with pytest.raises(BudgetError, match="too small"):
        fit("planted:300", memory="50MB", epochs=1)


def test_cut_of_a_refused_run_is_used_by_the_next(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("siafu.plan.choice.memory_in_use", lambda world: 3 * 10**9)
        with pytest.raises(BudgetError, match="too small") as caught:
            fit("planted:300", memory="2GB", epochs=1, out="run")
    assert "go on with siafu.resume('run') and a larger memory" in caught.value.fix
    monkeypatch.setattr("siafu.launch.cut.partition_in_steps", lambda *args, **given: 1 / 0)
    run = resume_run(Path("run"), {"memory": "64GB"})
    assert run.result["epochs"] == 1


def test_weights_count_before_and_after_the_cut(tmp_path: Path) -> None:
    wide = {"model": "sage", "hidden": 20_000, "layers": 3, "memory": "6GB", "device": "cpu"}
    few = Counts(rows=300, edges=3000, row_bytes=256, edge_bytes=4, ranks=1)
    with pytest.raises(BudgetError, match="too small"):
        check(few, **wide)
    partition_graph(load("planted:300"), tmp_path / "parts", num_parts=1)
    config = make_config(data="planted:300", **wide).resolved()
    shard = open_shard(tmp_path / "parts", World())
    with pytest.raises(BudgetError, match="too small") as caught:
        choose_strategy(config, model_spec(config, shard), shard)
    assert re.search(r"needs 1\d\.\d\d GB", caught.value.seen), "16 bytes of 800 M numbers"
