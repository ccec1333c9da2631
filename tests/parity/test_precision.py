"""Rows of bfloat16: N ranks do what one does, and all of it is what float32 does, but rounded."""

from pathlib import Path
from typing import Any

import pytest
import torch

from siafu.comm import World
from siafu.nn import precision
from tests.harness import RankPool
from tests.parity.minibatch_steps import joined_logits, run_epochs

SMALL = {"hidden": 8, "layers": 2, "dropout": 0.3, "epochs": 9}
BF16 = {"rtol": 0.0, "atol": 0.02}
"""A row is rounded to 8 bits (relative 2^-9 each time) some ten times in a step. Sums over other
cuts differ in the last bit of float32, so now and then a row rounds the other way; entries here are
of size 1 at most, and five roundings of 2^-8 are 0.02."""
ENGINES: dict[str, dict[str, Any]] = {
    "gcn": {"model": "gcn"},
    "sage": {"model": "sage"},
    "sage-max": {"model": "sage-max"},
    "gin": {"model": "gin", "norm": "batch"},
    "gat": {"model": "gat", "heads": 2},
    "gatv2-sar": {"model": "gatv2", "heads": 2, "strategy": "sar"},
    "transformer-sar": {"model": "transformer", "strategy": "sar", "edge_features": True},
    "rgcn": {"model": "rgcn", "norm": "layer"},
    "rgcn-columns": {"model": "rgcn", "strategy": "columns"},
    "gat-columns": {"model": "gat", "heads": 2, "strategy": "columns"},
    "pruned": {"model": "gcn", "prune": True},
    "minibatches": {
        "model": "sage",
        "strategy": "batchgnn",
        "fanout": "-1,-1",
        "batch_size": 8,
        "seed_order": "global",
        "step_minibatches": 2,
    },
    "pipeline": {"model": "gcn", "strategy": "dorylus", "pool": "none", "intervals": 2},
    "pipeline-gat": {"model": "gat", "heads": 2, "strategy": "dorylus", "pool": "none"},
}


def run_in_bf16(world: World, parts: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Return what `run_epochs` does, on a CPU that need not have instructions for it."""
    known, precision._has_bfloat16 = precision._has_bfloat16, lambda device: True
    try:
        return run_epochs(world, parts, {**SMALL, **settings})
    finally:
        precision._has_bfloat16 = known


def close(got: list[dict[str, Any]], want: list[dict[str, Any]]) -> None:
    for part in got:
        torch.testing.assert_close(part["losses"], want[0]["losses"], rtol=0.02, atol=0.0)
    torch.testing.assert_close(joined_logits(got), joined_logits(want), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_do_what_one_does(ranks: RankPool, parts_of, engine, size) -> None:
    settings = {**ENGINES[engine], "precision": "bf16"}
    want = ranks.run(run_in_bf16, 1, parts_of("hash", 1, True), settings)
    got = ranks.run(run_in_bf16, size, parts_of("hash", size, True), settings)
    close(got, want)
    for name, weight in got[0]["weights"].items():
        assert weight.dtype != torch.bfloat16, name
