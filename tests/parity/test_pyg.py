"""Unmodified PyG models over ranks give what PyG alone gives: output and every gradient."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from siafu.comm import World
from siafu.partition import write_parts
from siafu.shard import open_shard
from siafu.strategy import parallelize
from tests.harness import RankPool
from tests.parity.graphs import assignment, awkward_graph
from tests.parity.pyg_models import CONVS, AttentionDropout, Chebyshev, TwoLayers, WithGraphNorm

EXACT = {"rtol": 1e-10, "atol": 1e-12}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    root, graph = tmp_path_factory.mktemp("pyg"), awkward_graph()
    folders = {}
    for size in (1, 2, 3, 4):
        folders[size] = root / f"{size}.parts"
        part_of = assignment(graph, "gap" if size == 4 else "hash", size)
        write_parts(graph, part_of, folders[size], num_parts=size, method="hash", seed=0)
    return folders


def make(kind: str, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    own = {"chebyshev": Chebyshev, "graph-norm": WithGraphNorm, "attention": AttentionDropout}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG compiles its templates; not ours to judge
        model = own[kind](6, 3) if kind in own else TwoLayers(kind, 6, 3, **settings)
    return model.double()


def spread_step(world: World, folder: Path, kind: str) -> dict[str, Any]:
    shard = open_shard(folder, world)
    model = parallelize(make(kind), shard)
    x = shard.x.double().requires_grad_()
    out = model(x)
    picked = functional.cross_entropy(out[shard.train], shard.y[shard.train], reduction="none")
    loss = shard.mean(picked)
    loss.backward()
    grads = {name: p.grad for name, p in model.module.named_parameters()}
    buffers = dict(model.module.named_buffers())
    rows = {"out": out.detach(), "input": x.grad}
    return {
        "loss": float(loss.detach()),
        "grads": grads,
        "buffers": buffers,
        "rows": rows,
        "ids": shard.row_ids,
    }


def plain_step(folder: Path, kind: str) -> dict[str, Any]:
    """PyG alone, on the whole graph."""
    shard = open_shard(folder, World())
    model = make(kind)
    x = shard.x.double().requires_grad_()
    out = model(x, shard.edge_index)
    loss = functional.cross_entropy(out[shard.train], shard.y[shard.train])
    loss.backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    rows = {"out": out.detach(), "input": x.grad}
    return {
        "loss": float(loss.detach()),
        "grads": grads,
        "buffers": dict(model.named_buffers()),
        "rows": rows,
    }


def check(got: list[dict[str, Any]], want: dict[str, Any]) -> None:
    joined = {name: torch.zeros_like(rows) for name, rows in want["rows"].items()}
    for part in got:
        assert part["loss"] == pytest.approx(want["loss"], rel=1e-10)
        for group in ("grads", "buffers"):
            for name, tensor in part[group].items():
                _close(tensor, want[group][name], name)
        for name, rows in part["rows"].items():
            joined[name][part["ids"]] = rows
    for name, rows in joined.items():
        _close(rows, want["rows"][name], name)


def _close(got: Tensor | None, want: Tensor | None, name: str) -> None:
    if want is None:
        assert got is None or not got.abs().sum(), name
    else:
        torch.testing.assert_close(got, want, **EXACT, msg=lambda text: f"{name}: {text}")


CASES = [(conv, size) for conv in CONVS for size in (1, 3, 4)]
CASES.remove(("FeaStConv", 4))  # PyG's own reshape fails on a part without edges


@pytest.mark.parametrize(("conv", "size"), CASES)
def test_pyg_model_equals_pyg_alone(ranks: RankPool, parts, conv: str, size: int) -> None:
    check(ranks.run(spread_step, size, parts[size], conv), plain_step(parts[1], conv))


def test_dropout_of_features_and_attention_does_not_depend_on_ranks(ranks: RankPool, parts) -> None:
    want = ranks.run(spread_step, 1, parts[1], "attention")[0]
    for size in (2, 3):
        check(ranks.run(spread_step, size, parts[size], "attention"), want)


def refused(world: World, folder: Path, kind: str) -> str:
    shard = open_shard(folder, world)
    try:
        parallelize(make(kind), shard)(shard.x.double())
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_layer_that_sums_over_out_edges_is_refused(ranks: RankPool, parts) -> None:
    told = ranks.run(refused, 2, parts[2], "chebyshev")
    assert all("PlanError" in text and "TAGConv" in text for text in told), told


def test_norm_over_all_rows_is_refused(ranks: RankPool, parts) -> None:
    told = ranks.run(refused, 2, parts[2], "graph-norm")
    assert all("PlanError" in text and "GraphNorm" in text for text in told), told
