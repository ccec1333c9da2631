"""A user's own model on minibatches is given of the edges what it is given on the whole graph."""

from pathlib import Path
from typing import Any

import pytest
import torch

from siafu.comm import World
from siafu.engine.networks import sampled as sampled_network
from siafu.engine.networks import trimming
from siafu.engine.networks.sampled_begin import say_hops
from siafu.errors import ConfigError, PlanError
from tests.harness import RankPool
from tests.parity.minibatch_steps import joined_logits, run_epochs
from tests.parity.own_models import OptionalWeight

EXACT = {"rtol": 1e-10, "atol": 1e-12}
MODELS = Path(__file__).with_name("own_models.py").absolute()
OWN = {"hidden": 8}


def sampled(layers: int) -> dict[str, Any]:
    fanout = ",".join(["-1"] * layers)
    return {"strategy": "batchgnn", "fanout": fanout, "layers": layers, "batch_size": 1000}


def run_double(world: World, parts: Path, settings: dict[str, Any]) -> dict[str, Any]:
    return run_epochs(world, parts, settings, double=True)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("name", "hops"),
    # GCN reads the degrees of sources, which are whole one hop further out.
    [("OptionalWeight", 2), ("RequiredWeight", 3), ("EdgeFeatures", 2), ("EdgeTypes", 2)],
)
def test_all_neighbours_in_one_minibatch_are_the_full_graph(
    ranks: RankPool, parts_of, name: str, hops: int, size: int
) -> None:
    settings = OWN | {"model": f"{MODELS}:{name}"}
    want = run_epochs(World(), parts_of("hash", 1, True), settings, double=True)
    parts = parts_of("gap" if size == 4 else "hash", size, True)
    for changes in ({}, sampled(hops)) if size == 3 else (sampled(hops),):
        got = ranks.run(run_double, size, parts, settings | changes)
        for one in got:
            torch.testing.assert_close(one["losses"], want["losses"], **EXACT)
            for weight in want["grads"]:
                torch.testing.assert_close(one["grads"][weight], want["grads"][weight], **EXACT)
                torch.testing.assert_close(one["weights"][weight], want["weights"][weight], **EXACT)
        torch.testing.assert_close(joined_logits(got), joined_logits([want]), **EXACT)


@pytest.mark.parametrize("changes", [{}, sampled(2)])
@pytest.mark.parametrize(
    ("name", "missing"),
    [("RequiredWeight", "edge_weight"), ("EdgeFeatures", "edge_dim"), ("EdgeTypes", "num_rel")],
)
def test_what_the_graph_does_not_have_is_refused_by_name(
    parts_of, changes: dict[str, Any], name: str, missing: str
) -> None:
    settings = OWN | changes | {"model": f"{MODELS}:{name}"}
    with pytest.raises((PlanError, ConfigError), match=missing) as caught:
        run_epochs(World(), parts_of("hash", 1, False), settings)
    assert "default" in caught.value.fix


def test_weights_that_are_in_the_draw_are_not_taken_twice(parts_of) -> None:
    settings = OWN | sampled(2) | {"fanout": "3,2", "sample_weighted": True}
    settings |= {"sample_replace": True, "model": f"{MODELS}:OptionalWeight"}
    with pytest.raises(ConfigError, match="in the draw"):
        run_epochs(World(), parts_of("hash", 1, True), settings)


@pytest.mark.parametrize("name", ["GraphSAGE", "GAT", "GIN", "GCN"])
def test_rows_that_no_layer_reads_are_left_out(parts_of, monkeypatch, name: str) -> None:
    settings = OWN | {"model": f"torch_geometric.nn:{name}", "dropout": 0.0, "batch_size": 8}
    settings |= {"strategy": "batchgnn", "fanout": "3,2", "inference": "none"}
    parts = parts_of("hash", 1, False)
    asked = []
    counted = trimming.hops_for
    monkeypatch.setattr(
        sampled_network, "hops_for", lambda *each: asked.append(counted(*each)) or asked[-1]
    )
    got = run_epochs(World(), parts, settings, double=True)
    # Of GCN the degrees of sources would change.
    assert all(bool(hops) == (name != "GCN") for hops in asked)
    monkeypatch.setattr(sampled_network, "hops_for", lambda module, subgraph: {})
    want = run_epochs(World(), parts, settings, double=True)
    torch.testing.assert_close(got["losses"], want["losses"], **EXACT)
    for weight in want["grads"]:
        torch.testing.assert_close(got["grads"][weight], want["grads"][weight], **EXACT)


@pytest.mark.parametrize("name", ["OptionalWeight", "RequiredWeight", "EdgeFeatures", "EdgeTypes"])
def test_float64_has_edges_in_it_too(parts_of, name: str) -> None:
    settings = OWN | sampled(2) | {"fanout": "3,2", "batch_size": 8, "model": f"{MODELS}:{name}"}
    parts = parts_of("hash", 1, True)
    narrow, wide = (
        run_epochs(World(), parts, settings | {"precision": precision})
        for precision in ("float32", "float64")
    )
    assert all(weight.dtype == torch.float64 for weight in wide["weights"].values())
    pair = joined_logits([narrow]).double(), joined_logits([wide])
    torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["OptionalWeight", "RequiredWeight", "EdgeFeatures", "EdgeTypes"])
def test_the_gpu_is_given_the_same_of_the_edges(parts_of, name: str) -> None:
    settings = OWN | sampled(2) | {"fanout": "3,2", "batch_size": 8, "model": f"{MODELS}:{name}"}
    parts = parts_of("hash", 1, True)
    want = run_epochs(World(), parts, settings)
    for place in ("device", "pinned", "host"):
        got = run_epochs(World(device=torch.device("cuda")), parts, settings | {"rows_on": place})
        torch.testing.assert_close(got["losses"], want["losses"], rtol=1e-4, atol=1e-4)
        logits = joined_logits([got]).cpu(), joined_logits([want])
        # Of a node's two loops PyG's GCNConv keeps one, on a GPU any: up to 0.01 of these logits.
        atol = 0.02 if name == "RequiredWeight" else 1e-3
        torch.testing.assert_close(*logits, rtol=1e-3, atol=atol)


@pytest.mark.parametrize(("hops", "told"), [(1, ["1 hop drawn for 2 layers"]), (2, []), (3, [])])
def test_layers_that_reach_further_than_what_is_drawn_are_told(hops: int, told: list[str]) -> None:
    said: list[str] = []
    say_hops(OptionalWeight(8, 4, 3), hops, said.append)
    assert [line.partition(" that")[0] for line in said] == told
    assert all("--fanout 10,10 draws" in line for line in said)
