"""Features of events: read from every source, kept in order, used by inputs and heads."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

import siafu
from siafu.comm import World
from siafu.config import make_config
from siafu.engine.dynamic import workload
from siafu.engine.dynamic.edge_sums import Moments, SumScale
from siafu.engine.dynamic.event_features import EventScale, event_means
from siafu.engine.dynamic.network import make_network
from siafu.engine.dynamic.step_shards import make_grid
from siafu.engine.tasks.edges import EdgeTask
from siafu.engine.tasks.task import TaskInput
from siafu.errors import ConfigError, DataError, SiafuError
from siafu.graph import DynamicGraph, load_dynamic_store, save_dynamic
from siafu.ingest import EventOptions, Events, load_dynamic
from siafu.nn import Draws
from siafu.shard import NodeShare
from siafu.strategy import TimeStrategy
from tests.dynamic.graphs import EVENT_WIDTH, NUM_NODES, NUM_STEPS, featured_dynamic
from tests.dynamic.runs import run_engine
from tests.dynamic.steps import (
    MODELS,
    Way,
    distributed_steps,
    make_model,
    runner_on,
    scale_of,
)
from tests.dynamic.steps import TRAIN as TRAIN_STEPS
from tests.dynamic.test_parity import CASES, assert_same
from tests.dynamic.threads import run_threads
from tests.harness import RankPool

OWN_MODELS = Path(__file__).with_name("own_models.py").absolute()
TRAIN = 9


def temporal_data(**more) -> SimpleNamespace:
    """Return what PyG calls TemporalData: six events, out of order, two at one time."""
    columns = {"src": [0, 1, 2, 0, 1, 2], "dst": [1, 2, 0, 2, 0, 1], "t": [5, 1, 3, 3, 9, 0]}
    arrays = {name: torch.tensor(values) for name, values in columns.items()}
    return SimpleNamespace(**arrays, **more)


def test_messages_of_pyg_follow_their_events_in_time() -> None:
    msg = torch.arange(12.0).view(6, 2)
    graph, notes = load_dynamic(temporal_data(msg=msg), window=4)
    assert "2 events out of order: sorted by time." in notes
    order = [5, 1, 2, 3, 0, 4]  # those of one time as they came
    assert graph.event_attr.tolist() == msg[order].tolist()
    assert graph.edge_events(0).attr.tolist() == msg[[5, 1, 2, 3]].tolist()
    assert graph.edge_events(1).attr.tolist() == msg[[0]].tolist()
    assert load_dynamic(temporal_data(msg=msg[:, 0]), window=4)[0].num_event_features == 1
    assert load_dynamic(temporal_data(), window=4)[0].event_attr is None


@pytest.mark.parametrize(
    ("msg", "problem"),
    [
        (torch.zeros(5, 2), "do not fit"),
        (torch.full((6, 2), torch.nan), "NaN or infinite"),
        (torch.zeros(6, 0), "do not fit"),
        (torch.zeros(6, 2, 2), "wrong shape"),
        (np.array([[1.0], [1.0, 2.0], [1], [1], [1], [1]], dtype=object), "wrong shape"),
    ],
)
def test_messages_that_can_not_be_read(msg, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        load_dynamic(temporal_data(msg=msg), window=4)


def snapshots_of(*attrs: torch.Tensor | None) -> list[SimpleNamespace]:
    """Return a snapshot of two edges for each."""
    edge_index = torch.tensor([[0, 1], [1, 2]])
    return [SimpleNamespace(edge_index=edge_index, edge_attr=attr, num_nodes=3) for attr in attrs]


def test_features_of_edges_of_a_list_of_snapshots() -> None:
    first, second = torch.ones(2, 3), torch.full((2, 3), 2.0)
    graph, _ = load_dynamic(snapshots_of(first, second))
    assert graph.edge_events(1).attr.tolist() == second.tolist()
    assert graph.event_weight is None
    for wrong, problem in [
        ((first, torch.ones(2, 4)), "differ in the features"),
        ((first[:, :1], second), "differ in the features"),
        ((first, None), "differ in the features"),
        ((first[:, 0], None), "differ in the features"),
        ((first, torch.ones(1, 3)), "does not fit the edges"),
    ]:
        with pytest.raises(DataError, match=problem):
            load_dynamic(snapshots_of(*wrong))


def test_weights_and_features_of_edges_do_not_hide_each_other() -> None:
    one, wide, weight = torch.ones(2, 1), torch.ones(2, 3), torch.tensor([1.0, 2.0])
    for attr in (one, wide):
        steps = snapshots_of(attr, attr)
        for step in steps:
            step.edge_weight = weight
        graph, _ = load_dynamic(steps)
        assert graph.event_weight.tolist() == [1, 2, 1, 2]
        assert graph.event_attr.tolist() == torch.cat([attr, attr]).tolist()
    for wrong, problem in [(None, "differ in the weights"), (torch.ones(2, 2), "differ")]:
        steps[1].edge_weight = wrong
        with pytest.raises(DataError, match=problem):
            load_dynamic(steps)
    steps[0].edge_weight = torch.ones(2, 2)
    with pytest.raises(DataError, match="several weights"):
        load_dynamic(steps)


@pytest.mark.parametrize("empty", [None, torch.ones(0), torch.ones(0, 3), torch.ones(0, 2)])
def test_a_snapshot_without_edges_has_no_features_to_tell(empty: torch.Tensor | None) -> None:
    steps = snapshots_of(empty, torch.ones(2, 3))
    steps[0].edge_index = torch.zeros(2, 0, dtype=torch.long)
    graph, _ = load_dynamic(steps)
    assert graph.event_attr.tolist() == torch.ones(2, 3).tolist()
    steps[0].edge_attr = torch.ones(1, 3)
    with pytest.raises(DataError, match="does not fit the edges"):
        load_dynamic(steps)


def test_features_of_tables(tmp_path: Path) -> None:
    rows = {"src": ["a", "b", "c"], "dst": ["b", "c", "a"], "t": [9, 1, 1]}
    pq.write_table(
        pa.table(rows | {"amount": [1, 2, 3], "fee": [0.5, 0.25, 0.125]}), tmp_path / "e.parquet"
    )
    options = EventOptions(attr=("fee", "amount"))
    graph, notes = load_dynamic(tmp_path / "e.parquet", window=3, options=options)
    assert graph.event_attr.tolist() == [[0.25, 2], [0.125, 3], [0.5, 1]]
    assert graph.event_attr_names == ("fee", "amount")
    assert not any("not used" in note for note in notes)
    (tmp_path / "e.csv").write_text("src,dst,t,amount,word\na,b,1,2,x\nb,c,2,,y\n")
    for name, problem in [
        ("amount", "A number is missing"),
        ("word", "no number"),
        ("none", "can't be used"),
        ("dst", "can't be used"),
    ]:
        with pytest.raises(DataError, match=problem):
            load_dynamic(tmp_path / "e.csv", window=1, options=EventOptions(attr=(name,)))
    with pytest.raises(DataError, match="in tables alone"):
        load_dynamic(temporal_data(), window=4, options=options)


@pytest.mark.parametrize(
    ("later", "problem"),
    [
        ({}, "no column 'fee'"),
        ({"fee": ["1", "x"]}, "should hold numbers"),
        ({"fee": [[1.0, 2.0], [3.0, 4.0]]}, "width of the features"),
        ({"fee": [1.0, None]}, "A number is missing"),
        ({"fee": [1.0, float("inf")]}, "infinite"),
    ],
)
def test_features_that_change_from_file_to_file(tmp_path: Path, later: dict, problem: str) -> None:
    rows = {"src": ["a", "b"], "dst": ["b", "c"], "t": [2, 1]}
    pq.write_table(pa.table(rows | {"fee": [0.5, 0.25]}), tmp_path / "1.parquet")
    pq.write_table(pa.table(rows | later), tmp_path / "2.parquet")
    with pytest.raises(DataError, match=problem):
        load_dynamic(tmp_path, window=1, options=EventOptions(attr=("fee",)))


def test_the_order_of_events_of_one_time_changes_nothing(tmp_path: Path) -> None:
    """Several on one pair and some out of order: a node's and an edge's means have no order."""
    draw = np.random.default_rng(3)
    columns = {"src": draw.integers(0, 6, 60), "dst": draw.integers(0, 6, 60)}
    columns |= {"t": draw.integers(0, 5, 60), "fee": draw.integers(0, 9, 60)}
    columns |= {"label": draw.integers(0, 2, 60)}
    losses = []
    for number in range(2):
        order = np.arange(60) if number == 0 else draw.permutation(60)
        rows = {name: values[order] for name, values in columns.items()}
        pq.write_table(pa.table(rows), tmp_path / f"{number}.parquet")
        run = siafu.fit(
            tmp_path / f"{number}.parquet",
            out=tmp_path / f"run{number}",
            window="each",
            edge_attr="fee",
            edge_features=True,
            model="tm-gcn",
            bandwidth=2,
            epochs=3,
            quiet=True,
        )
        losses.append(run.result["losses"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_features_of_arrays_and_their_store(tmp_path: Path) -> None:
    arrays = {"src": [0, 1], "dst": [1, 0], "t": [3, 1]}
    np.savez(tmp_path / "e.npz", **arrays, msg=[[1.0, 2.0], [3.0, 4.0]])
    graph, _ = load_dynamic(tmp_path / "e.npz", window="each")
    save_dynamic(graph, tmp_path / "store")
    found = load_dynamic_store(tmp_path / "store")
    assert found.edge_events(0).attr.tolist() == [[3, 4]]
    assert found.num_event_features == 2
    np.savez(tmp_path / "wrong.npz", **arrays, edge_attr=[[1.0, 2.0]])
    with pytest.raises(DataError, match="do not fit"):
        load_dynamic(tmp_path / "wrong.npz", window="each")


def test_means_of_a_nodes_events_by_hand() -> None:
    graph = featured_dynamic()
    scale = EventScale(graph, TRAIN)
    seen = np.concatenate([graph.edge_events(t).attr for t in range(TRAIN)]).astype(np.float64)
    deviation = np.where(seen.std(0) > 0, seen.std(0), 1)
    for step in range(NUM_STEPS):
        events, got = graph.edge_events(step), event_means(graph, step, scale)
        scaled = (events.attr - seen.mean(0)) / deviation
        for v in range(NUM_NODES):
            for number, ends in enumerate((events.dst, events.src)):
                mine = scaled[ends == v]
                want = mine.mean(0) if len(mine) else np.zeros(EVENT_WIDTH)
                part = got[v, number * EVENT_WIDTH : (number + 1) * EVENT_WIDTH].numpy()
                np.testing.assert_allclose(part, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("size", "block"), [(1, 4), (2, 0), (3, 4), (4, 4)])
@pytest.mark.parametrize(("model", "exchange"), CASES)
def test_layers_that_read_edges_equal_the_reference(ranks, model, exchange, size, block) -> None:
    """Edges live for two snapshots, pairs meet several times in one, and some are loops."""
    strategy, way = TimeStrategy(block=block, exchange=exchange, chunks=3), Way(edges=True)
    assert_same(ranks.run(distributed_steps, size, model, (strategy, way)), model, way)


@pytest.mark.parametrize(("size", "groups"), [(2, (0, 0, 1)), (3, (0, 2)), (4, (1, 0, 0))])
@pytest.mark.parametrize("model", MODELS)
def test_layers_that_read_edges_on_a_grid(ranks: RankPool, model: str, size: int, groups) -> None:
    """Groups of nodes, one of them empty; kept, and made anew from deltas with inputs brought."""
    strategy, way = TimeStrategy(block=4), Way(edges=True)
    for most in (0, 1000):
        got = ranks.run(distributed_steps, size, model, (strategy, way), most, (), 4, groups)
        assert_same(got, model, way)


@pytest.mark.parametrize(
    ("model", "size", "most", "way"),
    [
        *((model, 2, 0, Way(edges=True)) for model in MODELS),
        *((model, 3, 1000, Way(edges=True, symmetric=True)) for model in MODELS),
        *((model, 3, 1000, Way(edges=True, by_block=True)) for model in MODELS),
        ("tm-gcn", 2, 0, Way(edges=True, symmetric=True)),
        ("gcrn", 3, 1000, Way(edges=True, history=3)),
        ("evolvegcn-h", 2, 1000, Way(edges=True, history=3)),
        ("wd-gcn", 2, 0, Way(edges=True, learned=True)),
        ("tm-gcn", 3, 1000, Way(edges=True, learned=True)),
    ],
)
def test_layers_that_read_edges_in_other_ways(model: str, size: int, most: int, way: Way) -> None:
    got = run_threads(distributed_steps, size, model, (TimeStrategy(block=4), way), most)
    assert_same(got, model, way, 4)


@pytest.mark.parametrize("groups", [(), (0, 1)])
def test_layers_that_read_edges_send_no_rows_more(groups: tuple[int, ...]) -> None:
    """What a temporal layer takes and a spatial one returns is as wide without them.

    Rows of the input, which are wider, are fetched once when a run begins.
    """
    sent = []
    for way in (Way(), Way(edges=True)):
        strategy = (TimeStrategy(block=4, exchange="all-to-all"), way)
        found = run_threads(distributed_steps, 4, "gcrn", strategy, 1000, (), 4, groups)
        moved = [of_rank["sent"] for of_rank in found]
        rows = ("time_forward", "time_backward", "halo_backward")
        sent.append([[of_rank.get(name, 0) for name in rows] for of_rank in moved])
    assert sent[0] == sent[1]
    assert sum(map(sum, sent[0])) > 0


def test_a_run_begins_as_one_whose_layers_read_no_edges(tmp_path: Path, monkeypatch) -> None:
    save_dynamic(featured_dynamic(), tmp_path / "store")
    settings = {"model": "gcrn", "task": "node", "epochs": 2, "edge_features": True}
    both = siafu.fit(tmp_path / "store", out=tmp_path / "both", quiet=True, **settings).result
    with monkeypatch.context() as before:
        before.setattr(workload, "make_network", partial(make_network, edges_in_layers=False))
        one = siafu.fit(tmp_path / "store", out=tmp_path / "one", quiet=True, **settings).result
    assert both["losses"][0] == one["losses"][0]
    assert both["losses"][1] != one["losses"][1]


@pytest.mark.parametrize("size", [1, 3])
def test_sums_of_edges_are_on_the_scale_of_training(size: int) -> None:
    """Mean 0 and deviation 1 of nodes with edges, on any number of ranks; nothing at others."""
    graph = featured_dynamic()
    found = run_threads(sums_of_edges, size, graph)
    scale = found[0][1]
    sums, met = {}, {}
    for mine, of_rank in found:
        assert torch.equal(of_rank.sums.mean_F, scale.sums.mean_F)
        assert torch.equal(of_rank.sums.deviation_F, scale.sums.deviation_F)
        sums |= mine
    for step, snapshot in enumerate(graph.iterate()):
        met[step] = torch.from_numpy(np.diff(snapshot.indptr) > 0)
        assert not sums[step][~met[step]].any()
    seen = torch.cat([sums[step][met[step]] for step in range(TRAIN_STEPS)])
    torch.testing.assert_close(seen.mean(0), torch.zeros(EVENT_WIDTH).double(), atol=1e-6, rtol=0)
    deviation = seen.std(0, correction=0)
    # The second feature is the same for all events.
    torch.testing.assert_close(deviation, torch.tensor([1, 0, 1]).double(), atol=1e-6, rtol=0)
    # Edges of large weight move sums off 0, which features on one scale alone leave there.
    assert scale.sums.mean_F.abs().max() > 0.01


def sums_of_edges(world: World, graph: DynamicGraph) -> tuple[dict[int, torch.Tensor], EventScale]:
    """Return this rank's sums by snapshot, and the scale that all ranks have found."""
    scale, model = scale_of(graph), make_model("gcrn", way=Way(edges=True))
    source = runner_on(
        make_grid(world, graph, 1), model, graph, TimeStrategy(), 1000, events=scale
    ).source
    steps = [step for step in range(NUM_STEPS) if step in source._graphs]
    pairs = [(step, source.read(range(step, step + 1))[1][0]) for step in steps]
    return {step: at.edge_sum_NF for step, at in pairs}, scale


def test_sums_of_a_graph_without_edges_to_learn_from_stay_as_they_are() -> None:
    scale, rows = SumScale(2), torch.tensor([[1.0, 2.0]])
    scale.fit(Moments(2), World())
    assert torch.equal(scale(rows, torch.tensor([True])), rows)


def test_an_event_is_judged_by_its_own_features() -> None:
    graph, step = featured_dynamic(), 6
    config = make_config(data="awkward", model="gcrn", hidden=4, class_weights="none").resolved()
    share = NodeShare(NUM_NODES, World())
    task = EdgeTask(TaskInput(graph=graph, config=config, draws=Draws(), share=share))
    task.event_scale = EventScale(graph, TRAIN)
    torch.manual_seed(0)
    head, rows = task.make_head(5).double(), torch.randn(NUM_NODES, 5, dtype=torch.float64)
    events, losses = graph.edge_events(step), []
    for u, v, label, attr in zip(events.src, events.dst, events.label, events.attr, strict=True):
        known = task.event_scale(torch.from_numpy(attr)).double()
        hidden = head.source(rows[u]) + head.target(rows[v]) + head.known.weight @ known
        logits = head.last(torch.relu(hidden))
        losses.append(functional.cross_entropy(logits, torch.tensor(int(label))))
    want = torch.stack(losses).sum() / task.total
    torch.testing.assert_close(task.loss(head, step, rows), want, rtol=1e-9, atol=0)
    assert task._labelled(step) is task._labelled(step), "made once"


@pytest.mark.parametrize(
    ("model", "task", "size", "more"),
    [
        ("tm-gcn", "edge", 3, {}),
        ("gcrn", "edge", 4, {"node_parts": 2, "node_features": "learned:3"}),
        ("evolvegcn-h", "link", 2, {"node_features": "learned:3"}),
    ],
)
def test_runs_with_event_features_do_not_depend_on_ranks(
    ranks: RankPool, tmp_path: Path, model: str, task: str, size: int, more: dict
) -> None:
    groups = np.resize(np.array([1, 0, 0], np.int32), NUM_NODES)
    save_dynamic(replace(featured_dynamic(), part_of=groups), tmp_path / "store")
    settings = {"model": model, "task": task, "epochs": 3, "hidden": 4, "bandwidth": 4}
    settings |= {"edge_features": True, "checkpoint_every": 0, **more}
    alone = {**settings, "node_parts": 1}
    one = run_engine(World(), tmp_path / "store", tmp_path / "one", False, alone)
    settings |= {"time_block": 4}
    many = ranks.run(run_engine, size, tmp_path / "store", tmp_path / "many", False, settings)
    assert many[0]["result"]["losses"] == pytest.approx(one["result"]["losses"], rel=2e-5)
    assert torch.equal(many[0]["weights"]["events.mean_F"], one["weights"]["events.mean_F"])
    without = {**alone, "edge_features": False}
    plain = run_engine(World(), tmp_path / "store", tmp_path / "plain", False, without)
    assert plain["result"]["losses"] != one["result"]["losses"]


def test_a_resumed_run_reads_edges_as_before(ranks: RankPool, tmp_path: Path) -> None:
    save_dynamic(featured_dynamic(), tmp_path / "store")
    settings = {"model": "tm-gcn", "epochs": 4, "hidden": 4, "bandwidth": 4, "time_block": 3}
    settings |= {"edge_features": True, "checkpoint_every": 2}
    straight = ranks.run(run_engine, 2, tmp_path / "store", tmp_path / "a", False, settings)[0]
    ranks.run(run_engine, 2, tmp_path / "store", tmp_path / "b", False, {**settings, "epochs": 2})
    again = ranks.run(run_engine, 2, tmp_path / "store", tmp_path / "b", True, settings)[0]
    assert again["result"]["losses"] == straight["result"]["losses"]
    for name, tensor in straight["weights"].items():
        assert torch.equal(again["weights"][name], tensor), name
    assert "model.parts.3.edges.weight" in straight["weights"]


def test_a_model_of_ones_own_reads_edges_in_the_layers_it_likes(tmp_path: Path) -> None:
    save_dynamic(featured_dynamic(), tmp_path / "store")
    settings = {"model": f"{OWN_MODELS}:EdgeNet", "epochs": 2, "checkpoint_every": 0}
    named = {**settings, "edge_features": True}
    found = run_engine(World(), tmp_path / "store", tmp_path / "run", False, named)
    assert found["weights"]["model.parts.1.edges.weight"].shape == (5, EVENT_WIDTH)
    with pytest.raises(ConfigError, match="not given"):
        run_engine(World(), tmp_path / "store", tmp_path / "no", False, settings)


def test_weights_of_before_layers_read_edges_still_infer(tmp_path: Path, monkeypatch) -> None:
    save_dynamic(featured_dynamic(), tmp_path / "store")
    settings = {"model": "gcrn", "task": "node", "epochs": 2, "edge_features": True}
    with monkeypatch.context() as before:
        before.setattr(workload, "make_network", partial(make_network, edges_in_layers=False))
        run = siafu.fit(tmp_path / "store", out=tmp_path / "run", quiet=True, **settings)
    assert not any("edges" in name for name in load_file(tmp_path / "run" / "weights.safetensors"))
    told = siafu.infer(run, out=tmp_path / "told")
    assert told.num_rows == run.predictions.num_rows


def test_weights_of_before_sums_had_a_scale_still_infer(tmp_path: Path, monkeypatch) -> None:
    save_dynamic(featured_dynamic(), tmp_path / "store")
    settings = {"model": "gcrn", "task": "node", "epochs": 2, "edge_features": True}
    with monkeypatch.context() as before:
        before.setattr(workload, "make_network", partial(make_network, scaled_sums=False))
        run = siafu.fit(tmp_path / "store", out=tmp_path / "run", quiet=True, **settings)
    names = list(load_file(tmp_path / "run" / "weights.safetensors"))
    assert "events.sums.mean_F" not in names
    assert any(name.endswith(".edges.weight") for name in names)
    told = siafu.infer(run, out=tmp_path / "told")
    assert told["score"].equals(run.predictions["score"])


def test_other_data_is_read_on_the_scale_that_was_trained_with(tmp_path: Path) -> None:
    """Data that begins later has other sums, and the run's own scale is kept."""
    save_dynamic(featured_dynamic(), tmp_path / "store")
    settings = {"model": "gcrn", "task": "node", "epochs": 2, "edge_features": True}
    run = siafu.fit(tmp_path / "store", out=tmp_path / "run", quiet=True, **settings)
    graph = featured_dynamic()
    moved = replace(graph, event_attr=graph.event_attr + np.float32(5))
    save_dynamic(moved, tmp_path / "moved")
    told = siafu.infer(run, data=tmp_path / "moved", out=tmp_path / "told")
    assert not told["score"].equals(run.predictions["score"])


def test_events_whose_class_is_a_feature_are_learnt(tmp_path: Path) -> None:
    """From raw events to predictions of other data, on the scale that was trained with."""
    draw = np.random.default_rng(0)
    count = 400
    events = Events(
        name="signed",
        ids=siafu.graph.IntegerIds(np.arange(20)),
        src=draw.integers(0, 20, count),
        dst=draw.integers(0, 20, count),
        time=np.sort(draw.integers(0, 10, count)),
        label=(label := draw.integers(0, 2, count)),
        num_edge_classes=2,
        attr=np.stack([1000 + 50.0 * label, draw.normal(size=count)], axis=1).astype(np.float32),
    )
    settings = {"model": "gcrn", "window": "each", "epochs": 40, "hidden": 8, "lr": 0.05}
    run = siafu.fit(events, out=tmp_path / "run", edge_features=True, quiet=True, **settings)
    assert run.result["scores"]["test"]["accuracy"] > 0.95
    with pytest.raises(ConfigError, match="have no features"):
        siafu.fit(replace(events, attr=None), out=tmp_path / "no", edge_features=True, **settings)
    again = siafu.infer(run, data=events, out=tmp_path / "again")
    # Classes that are not known are those to tell; weights would be summed where there are none.
    unknown = replace(events, label=None, num_edge_classes=0, weight=10 + draw.random(count))
    told = siafu.infer(run, data=unknown, out=tmp_path / "unknown")
    assert told["score"].equals(again["score"])
    assert told["label"].null_count == count
    with pytest.raises(ConfigError, match="have no features"):
        siafu.infer(run, data=replace(events, attr=None), out=tmp_path / "missing")
    with pytest.raises(SiafuError, match="features do not fit"):
        siafu.infer(run, data=replace(events, attr=events.attr[:, :1]), out=tmp_path / "narrow")
