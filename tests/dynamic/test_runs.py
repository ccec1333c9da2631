"""Whole runs: the same on any number of ranks, after a stop, and from a raw file of events."""

import csv
import json
import os
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import siafu
from siafu.comm import World
from siafu.config import make_config
from siafu.engine.dynamic import network as dynamic_network
from siafu.engine.tasks.edges import EdgeTask
from siafu.engine.tasks.links import LinkTask, Negatives
from siafu.engine.tasks.nodes import NodeTask
from siafu.engine.tasks.task import TaskInput
from siafu.errors import SiafuError
from siafu.graph import save_dynamic
from siafu.nn import Draws, NodeLSTM, TemporalLayer
from siafu.partitioning import plan_time
from siafu.shard import NodeShare
from siafu.strategy.time.cost import Costs, choose_exchange, state_width
from tests.command import Command
from tests.dynamic.graphs import NUM_NODES, awkward_dynamic
from tests.dynamic.runs import run_engine
from tests.harness import RankPool

OWN_MODELS = Path(__file__).with_name("own_models.py").absolute()
ALL_MINE = NodeShare(NUM_NODES, World())
SETTINGS = {"epochs": 6, "checkpoint_every": 3, "hidden": 4, "bandwidth": 4, "seed": 2}


@pytest.mark.parametrize(
    ("model", "task"),
    [("tm-gcn", "edge"), ("cd-gcn", "link"), ("gcrn", "signal"), ("evolvegcn-h", "node")],
)
def test_scores_and_losses_do_not_depend_on_ranks(
    ranks: RankPool, store: Path, tmp_path: Path, model: str, task: str
) -> None:
    settings = {**SETTINGS, "model": model, "task": task, "dropout": 0.2}
    one = run_engine(World(), store, tmp_path / "one", False, settings)
    settings |= {"time_block": 4}
    many = ranks.run(run_engine, 3, store, tmp_path / "many", False, settings)
    for part in many:
        assert part["result"]["losses"] == pytest.approx(one["result"]["losses"], rel=2e-5)
        assert part["result"]["scores"] == {
            split: pytest.approx(scores, rel=1e-3)
            for split, scores in one["result"]["scores"].items()
        }
    assert many[0]["result"]["losses"][-1] < many[0]["result"]["losses"][0]


def run_with_costs(world: World, byte: float, *rest) -> dict:
    costs = Costs(byte=byte, message=1e-9, product=1e-12)
    with patch.object(dynamic_network, "exchange_costs", lambda *given: costs):
        return run_engine(world, *rest)


def test_a_resumed_run_reaches_snapshots_as_it_was_begun(
    ranks: RankPool, store: Path, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "model": "gcrn", "task": "link", "epochs": 2}
    begun = {
        byte: ranks.run(run_with_costs, 2, byte, store, tmp_path / str(byte), False, settings)
        for byte in (1e-12, 1.0)
    }
    kinds = [found[0]["result"]["choices"]["exchanges"] for found in begun.values()]
    assert kinds[0] != kinds[1], "where links are slow, fewer bytes travel"
    more = {**settings, "epochs": 3}
    again = ranks.run(run_with_costs, 2, 1e-12, store, tmp_path / "1.0", True, more)
    assert again[0]["result"]["choices"]["exchanges"] == kinds[1]


@pytest.mark.parametrize("size", [1, 2])
def test_resumed_run_ends_bit_for_bit_alike(
    ranks: RankPool, store: Path, tmp_path: Path, size: int
) -> None:
    def run(*args) -> dict:
        found = [run_engine(World(), *args)] if size == 1 else ranks.run(run_engine, size, *args)
        return found[0]

    settings = {**SETTINGS, "model": "gcrn", "task": "link", "time_block": 3}
    straight = run(store, tmp_path / "straight", False, settings)
    run(store, tmp_path / "broken", False, {**settings, "epochs": 3})
    resumed = run(store, tmp_path / "broken", True, settings)
    assert resumed["result"]["losses"] == straight["result"]["losses"]
    assert resumed["result"]["scores"] == straight["result"]["scores"]
    for name, tensor in straight["weights"].items():
        assert torch.equal(resumed["weights"][name], tensor), name


def test_tm_gcn_sums_over_those_that_edges_lead_to(store: Path, tmp_path: Path) -> None:
    def losses(**settings: str) -> list[float]:
        settings = {**SETTINGS, "epochs": 2, "model": "tm-gcn", **settings}
        return run_engine(World(), store, tmp_path / "run", False, settings)["result"]["losses"]

    assert losses() == losses(aggregate="out")
    assert losses() != losses(aggregate="in")


def task_of(kind: type[EdgeTask] | type[LinkTask], graph=None, **settings):
    """Return the task of a graph, with the settings of its model."""
    config = make_config(data="awkward", **settings).resolved()
    graph = graph or awkward_dynamic()
    return kind(TaskInput(graph=graph, config=config, draws=Draws(seed=0), share=ALL_MINE))


@pytest.mark.parametrize(
    ("kind", "model", "head", "linear"),
    [
        (EdgeTask, "tm-gcn", None, True),
        (EdgeTask, "tm-gcn", "mlp", False),
        (EdgeTask, "wd-gcn", None, False),
        (EdgeTask, "wd-gcn", "linear", True),
        (LinkTask, "tm-gcn", None, False),
        (LinkTask, "tm-gcn", "linear", True),
    ],
)
def test_pairs_are_judged_by_the_head_that_was_asked_for(kind, model, head, linear) -> None:
    parameters = dict(task_of(kind, model=model, head=head).make_head(4).named_parameters())
    without_bias = {"source.weight", "target.weight"}
    without_bias |= {"known.weight"} if kind is LinkTask else set()
    with_layer = {*without_bias, "source.bias", "last.weight", "last.bias"}
    assert set(parameters) == (without_bias if linear else with_layer)


def test_without_directions_a_pair_meets_both_ways() -> None:
    one_way = task_of(LinkTask, model="gcrn")
    both_ways = task_of(LinkTask, replace(awkward_dynamic(), symmetric=True), model="gcrn")
    for step in range(one_way.num_steps):
        pairs = set(zip(*map(list, one_way._positives(step)), strict=True))
        found = list(zip(*map(list, both_ways._positives(step)), strict=True))
        assert len(found) == len(set(found))
        assert set(found) == pairs | {(b, a) for a, b in pairs}


def test_negatives_do_not_depend_on_how_many_are_drawn_at_once(monkeypatch) -> None:
    task = task_of(LinkTask, model="gcrn")
    five = Negatives("uniform", 5)
    whole = [task._candidates(step, task._score_key(), five) for step in range(task.num_steps)]
    monkeypatch.setattr("siafu.engine.tasks.links._DRAWN_AT_ONCE", 7)
    for step, want in enumerate(whole):
        got = task._candidates(step, task._score_key(), five)
        assert got.num_others == want.num_others
        for mine, its in zip(got[:3], want[:3], strict=True):
            assert torch.equal(mine, its)


def write_events(file: Path) -> None:
    """Write 30 days of meetings among ten people, by name and date."""
    draw = np.random.default_rng(3)
    with file.open("w") as opened:
        writer = csv.writer(opened)
        writer.writerow(["src", "dst", "time", "label"])
        for number in range(240):
            a, b = draw.choice(10, 2, replace=False)
            when = np.datetime64("2024-03-01T08:00:00") + np.timedelta64(number * 3, "h")
            writer.writerow([f"p{a}", f"p{b}", when, "kin" if (a + b) % 3 == 0 else "other"])


def test_command_line_from_a_file_of_events(command: Command) -> None:
    write_events(command.here / "events.csv")
    common = ["--model", "tm-gcn", "--window", "3d", "--epochs", 4, "--bandwidth", 3, "--json"]
    answer = command("train", "events.csv", *common, "--ranks", 2, "--out", "run")
    assert answer.code == 0, answer
    result = json.loads(answer.out.splitlines()[-1])
    assert result["task"] == "edge"
    assert result["exactness"] == "exact"
    assert result["choices"]["snapshots"] == 10
    assert result["bytes_sent"]["time_forward"] > 0
    table = pq.read_table("run/predictions")
    assert table.num_rows == 240
    row = table.to_pylist()[0]
    assert row["src"].startswith("p")
    assert row["prediction"] in ("kin", "other")
    assert row["p(kin)"] + row["p(other)"] == pytest.approx(1)
    times = sorted(table["time"].to_pylist())
    first = datetime(2024, 3, 1, 8)
    assert times == [first + timedelta(hours=3 * number) for number in range(240)]
    assert len((command.here / "run" / "metrics.jsonl").read_text().splitlines()) == 4

    # One rank needs no process of its own, so this is fast, and the answer may not change.
    assert command("train", "events.csv", *common, "--out", "alone").code == 0
    assert command("infer", "alone", "--out", "again").code == 0
    again, scores = pq.read_table("again"), sorted(table["score"].to_pylist())
    assert sorted(again["score"].to_pylist()) == pytest.approx(scores, rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("drifting", "--model", "gcn"), "graphs that do not change"),
        (("planted", "--model", "tm-gcn"), "data has no times"),
        (("planted", "--window", "14d"), "no meaning on a static graph"),
        (("planted", "--head", "linear"), "no meaning on a static graph"),
        (("drifting", "--model", "gcrn", "--stages", "2"), "no meaning on a dynamic graph"),
        (("drifting", "--model", "gcrn", "--time-exchange", "banded"), "can't be exchanged"),
        (("drifting", "--model", "gcrn", "--split", "90,20"), "can't be split"),
        (("drifting", "--model", "gcrn", "--task", "link", "--ranks", "24"), "than ranks"),
        (("drifting", "--model", "evolvegcn-o", "--dropout", "0.5"), "has no dropout"),
        (("drifting", "--model", "gcn-lstm"), "Unknown model"),
    ],
)
def test_contradictions_are_refused(command: Command, arguments, problem: str) -> None:
    answer = command("train", *arguments, "--epochs", 1)
    assert answer.code == 2
    assert problem in answer.err
    left = [run for run in command.here.glob("runs/*") if not (run / "data.parts").exists()]
    assert not left, "nothing is left behind but data that was prepared"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--negatives", "histori:5"), "negatives are not understood"),
        (("--eval-negatives", "every"), "negatives of a score"),
        (("--node-features", "onehot"), "features of nodes are not understood"),
    ],
)
def test_words_that_mean_nothing_are_refused_before_data_is_read(
    command: Command, arguments, problem: str
) -> None:
    write_events(command.here / "events.csv")
    given = ("--model", "gcrn", "--task", "link", "--window", "3d")
    answer = command("train", "events.csv", *given, *arguments)
    assert answer.code == 2
    assert problem in answer.err
    assert "Event columns" not in answer.err
    assert not list(command.here.glob("runs/*"))


def test_events_of_one_time_have_no_next_snapshot(command: Command) -> None:
    (command.here / "e.csv").write_text("src,dst,time\na,b,7\nb,c,7\nc,a,7\n")
    answer = command("train", "e.csv", "--model", "gcrn", "--ranks", 2)
    assert answer.code == 2
    assert "1 snapshot of 3 nodes, 3 events" in answer.err
    assert "can't be predicted when there is only one" in answer.err
    assert "events of several times" in answer.err


def test_own_layers_run_on_any_number_of_ranks(
    ranks: RankPool, store: Path, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "model": f"{OWN_MODELS}:OwnNet", "task": "node"}
    one = run_engine(World(), store, tmp_path / "one", False, settings)
    for exchange in ("all-to-all", "wavefront"):
        chosen = {**settings, "time_exchange": exchange, "time_block": 5}
        many = ranks.run(run_engine, 3, store, tmp_path / exchange, False, chosen)
        assert many[0]["result"]["losses"] == pytest.approx(one["result"]["losses"], rel=2e-5)


@pytest.mark.parametrize("task", ["link", "signal"])
def test_the_next_snapshot_is_not_learnt_from_one(store: Path, tmp_path: Path, task: str) -> None:
    settings = {**SETTINGS, "model": "gcrn", "task": task, "split": "1,4"}
    with pytest.raises(SiafuError, match="two snapshots or more"):
        run_engine(World(), store, tmp_path / "run", False, settings)


@pytest.mark.parametrize("task", [EdgeTask, LinkTask])
def test_windows_that_overlap_are_refused(task) -> None:
    graph = replace(awkward_dynamic(), overlapping=True)
    config = make_config(data="awkward", model="gcrn")
    given = TaskInput(graph=graph, config=config, draws=Draws(), share=ALL_MINE)
    with pytest.raises(SiafuError, match="windows overlap"):
        task(given)


@pytest.mark.parametrize("split", ["a", "nan,0", "0.5"])
def test_nodes_are_split_by_two_fractions(split: str) -> None:
    graph = replace(awkward_dynamic(), y=np.zeros(23, np.int64))
    config = make_config(data="awkward", model="gcrn", split=split)
    given = TaskInput(graph=graph, config=config, draws=Draws(), share=ALL_MINE)
    with pytest.raises(SiafuError, match="can't be split"):
        NodeTask(given)


def test_a_state_without_a_row_a_node_is_not_handed_on() -> None:
    class Before(TemporalLayer):
        """The slice before; the state has time first and is empty at the start."""

        in_width = out_width = 3

        def begin(self, rows_ND):
            return (rows_ND.new_empty(0, *rows_ND.shape),)

        def forward(self, rows_TND, state):
            return torch.cat([rows_TND[:1], *state, rows_TND])[-len(rows_TND) :], (rows_TND[-1:],)

    plan = plan_time([1] * 4, 2, train_steps=4)
    assert choose_exchange(Before(), plan, 5, 1) == "all-to-all"
    assert state_width(NodeLSTM(3, 4)) == 8


@pytest.mark.parametrize("exchange", ["wavefront", "banded"])
def test_recurrences_that_look_back_are_dealt_out(
    store: Path, tmp_path: Path, exchange: str
) -> None:
    settings = {**SETTINGS, "model": "cd-gcn", "task": "node"}
    settings |= {"history": 4, "time_exchange": exchange}
    with pytest.raises(SiafuError, match=f"{exchange} with --history 4"):
        run_engine(World(), store, tmp_path / "run", False, settings)


def test_a_model_of_another_kind_is_refused(store: Path, tmp_path: Path) -> None:
    settings = {**SETTINGS, "model": "torch.nn:PReLU"}
    del settings["hidden"]
    with pytest.raises(SiafuError, match="not one for dynamic graphs"):
        run_engine(World(), store, tmp_path / "run", False, settings)


@pytest.mark.skipif("SIAFU_DATA" not in os.environ, reason="real graphs: set SIAFU_DATA")
def test_real_events_are_learnt(tmp_path: Path) -> None:
    data = str(Path(os.environ["SIAFU_DATA"]) / "dyn_uci_messages.npz")
    settings = {"window": "190080", "epochs": 8, "eval_every": 8, "time_block": 16}
    run = siafu.fit(data, model="gcrn", out=str(tmp_path / "run"), **settings)
    assert run.result["choices"]["snapshots"] in (88, 89)
    assert run.result["losses"][-1] < 0.9 * run.result["losses"][0]
    assert run.score["test"] > 0.02, "ten times what chance would give"


@pytest.mark.parametrize(
    ("model", "task", "more"),
    [
        ("tm-gcn", "edge", {}),
        ("cd-gcn", "link", {}),
        ("evolvegcn-o", "link", {"eval_negatives": "all"}),
        ("gcrn", "signal", {}),
        ("evolvegcn-h", "node", {}),
    ],
)
def test_runs_of_a_grid_of_ranks_are_those_of_one(
    ranks: RankPool, tmp_path: Path, model: str, task: str, more: dict
) -> None:
    """Two stretches of time, two groups of nodes."""
    graph = awkward_dynamic()
    groups = np.resize(np.array([1, 0, 0], np.int32), graph.num_nodes)
    save_dynamic(replace(graph, part_of=groups), tmp_path / "store")
    settings = {**SETTINGS, "model": model, "task": task, "dropout": 0.2, **more}
    settings |= {"dropout": 0.0} if model.startswith("evolvegcn") else {}
    one = run_engine(World(), tmp_path / "store", tmp_path / "one", False, settings)
    settings |= {"time_block": 5, "node_parts": 2}
    many = ranks.run(run_engine, 4, tmp_path / "store", tmp_path / "many", False, settings)
    for part in many:
        assert part["result"]["losses"] == pytest.approx(one["result"]["losses"], rel=2e-5)
        assert part["result"]["scores"] == {
            split: pytest.approx(scores, rel=1e-3)
            for split, scores in one["result"]["scores"].items()
        }


@pytest.mark.usefixtures("runs_on_pool")
def test_a_grid_through_the_launcher(command: Command) -> None:
    """Cut, trained on two ranks, gone on with, inferred with embeddings of every snapshot."""
    flags = ["--model", "gcrn", "--task", "link", "--hidden", 4, "--node-parts", 2]
    refused = command("train", "drifting:60", *flags, "--ranks", 3, "--epochs", 2)
    assert refused.code == 2
    assert "--node-parts 2" in refused.out + refused.err
    run = ["--ranks", 2, "--epochs", 2, "--checkpoint-every", 1, "--out", "run"]
    assert command("train", "drifting:60", *flags, *run).code == 0
    assert command("train", "--resume", "run", "--epochs", 3).code == 0
    assert command("infer", "run", "--out", "rows", "--embeddings").code == 0
    table = pq.read_table("rows")
    result = json.loads(Path("run/result.json").read_text())
    assert result["choices"]["node_parts"] == 2
    assert len(table) == 60 * result["choices"]["snapshots"]
    assert len(set(table["id"].to_pylist())) == 60


def test_adaptive_widths_of_uneven_groups_are_told_together(
    ranks: RankPool, tmp_path: Path
) -> None:
    """With adaptive widths all ranks tell theirs, whatever size their group has."""
    graph = awkward_dynamic()
    groups = np.zeros(graph.num_nodes, np.int32)
    groups[:3] = 1
    save_dynamic(replace(graph, part_of=groups), tmp_path / "store")
    settings = {**SETTINGS, "model": "cd-gcn", "task": "node", "hidden": 16, "epochs": 8}
    settings |= {"wire": "adaptive", "wire_period": 3, "node_parts": 2}
    settings |= {"time_exchange": "all-to-all"}
    many = ranks.run(run_engine, 4, tmp_path / "store", tmp_path / "run", False, settings)
    assert many[0]["result"]["exactness"] == "unbiased"
    assert many[0]["result"]["widths"] == many[3]["result"]["widths"] != []


def test_columns_of_events_may_have_any_name(command: Command) -> None:
    write_events(Path("events.csv"))
    text = Path("events.csv").read_text().replace("src,dst,time,label", "who,whom,moment,kind")
    Path("named.csv").write_text(text)
    common = ["--model", "gcrn", "--window", "5d", "--epochs", 1, "--hidden", 4]
    refused = command("train", "named.csv", *common)
    assert refused.code == 2
    assert "--columns src=COLUMN" in refused.err
    named = ["--columns", "src=who,dst=whom,time=moment,label=kind"]
    assert command("train", "named.csv", *common, *named, "--out", "run").code == 0
    assert "f1" in json.loads(Path("run/result.json").read_text())["metric"]
    assert command("train", "named.csv", *common, "--columns", "when=x").code == 2
    static = command("train", "events.csv")
    assert static.code == 2
    assert "tm-gcn" in static.err
