"""Intervals in a pipeline whose gathers wait equal one process: loss, every gradient, weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from siafu.comm import World
from siafu.elastic import Deliver, LocalPool
from siafu.nn import GNN, Draws, ModelSpec
from siafu.pipeline import Pipeline
from siafu.shard import open_shard
from siafu.strategy import Strategy
from tests.harness import RankPool
from tests.parity.steps import STEPS, make_model, single_steps
from tests.parity.test_models import EXACT

MODELS: dict[str, dict[str, Any]] = {
    "gcn": {},
    "sage": {},
    "gin": {"norm": "layer"},
    "gat": {"heads": 2},
    "transformer": {"heads": 2},
    "deep": {"name": "gcn", "layers": 4, "residual": True, "norm": "layer"},
    "wide": {"name": "sage", "hidden": 4, "layers": 3},
    "constant": {"name": "gcn", "input_dropout": 0.0},
    "constant-sage": {"name": "sage", "input_dropout": 0.0, "dropout": 0.0, "layers": 3},
}
CASES = [(model, 3, "hash", size) for model in list(MODELS)[:5] for size in (1, 2, 3, 4)]
CASES += [(model, 3, "hash", 3) for model in list(MODELS)[5:]]
CASES += [(model, 5, "gap", 4) for model in MODELS]
CASES += [(model, 1, "metis", 3) for model in list(MODELS)[:5]]


def spec_of(model: str) -> ModelSpec:
    chosen = {"name": model, "hidden": 8, "dropout": 0.3, **MODELS[model]}
    return ModelSpec(in_width=6, out_width=3, **chosen)


class PlainRunner(LocalPool):
    """Threads, and nobody who watches them."""

    def observe(self, graph_waiting: int) -> None:
        """Do nothing."""

    def tick(self) -> float:
        """Do nothing."""
        return 1.0


def pipelined_steps(
    world: World, parts: Path, spec: ModelSpec, strategy: Strategy
) -> dict[str, Any]:
    """Return what one rank sees of the steps."""
    torch.set_default_dtype(torch.float64)
    try:
        shard, model = open_shard(parts, world), make_model(spec)
        assert isinstance(model, GNN)
        assert isinstance(shard.x, Tensor)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.05, eps=1e-3)
        grads: list[dict[str, Tensor]] = []

        def note(*_: Any) -> None:
            named = model.named_parameters()
            grads.append({name: p.grad.clone() for name, p in named if p.grad is not None})

        optimiser.register_step_pre_hook(note)
        pipeline = Pipeline(model, shard.x.double(), shard, Draws(seed=3), strategy, runner)
        pipeline.begin(0)
        losses = [pipeline.run_epoch(optimiser, e, STEPS) for e in range(1, STEPS + 1)]
        pipeline.close()
    finally:
        torch.set_default_dtype(torch.float32)
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    sent = {name: n for name, n in world.meter.bytes_sent.items() if name.startswith("halo")}
    return {
        "losses": losses,
        "grads": grads[0],
        "weights": weights,
        "ages": dict(pipeline.ages),
        "sent": sent,
    }


def runner(deliver: Deliver) -> PlainRunner:
    return PlainRunner(deliver, workers=2)


@pytest.mark.parametrize(("model", "intervals", "kind", "size"), CASES)
def test_waiting_gathers_equal_one_process(
    ranks: RankPool, parts_of, model, intervals, kind, size
) -> None:
    spec, weighted = spec_of(model), model not in ("deep", "constant")
    want = single_steps(parts_of("hash", 1, weighted), spec, 1)
    strategy = Strategy(unit="interval", intervals=intervals)
    got = ranks.run(pipelined_steps, size, parts_of(kind, size, weighted), spec, strategy)
    for rank, part in enumerate(got):
        torch.testing.assert_close(part["losses"], want["losses"], **EXACT)
        assert set(part["ages"]) <= {0}
        for kind_of in ("grads", "weights"):
            for name, tensor in part[kind_of].items():
                torch.testing.assert_close(
                    tensor,
                    want[kind_of][name],
                    **EXACT,
                    msg=lambda text, n=name, r=rank, k=kind_of: f"rank {r}, {k} of {n}: {text}",
                )
    assert all(part["grads"].keys() == want["weights"].keys() for part in got)


@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_taking_turns_changes_nothing(ranks: RankPool, parts_of, model) -> None:
    parts, spec = parts_of("hash", 3, True), spec_of(model)
    overlapped = Strategy(unit="interval", intervals=4)
    want = ranks.run(pipelined_steps, 3, parts, spec, overlapped)
    got = ranks.run(pipelined_steps, 3, parts, spec, replace(overlapped, overlap=False))
    for one, other in zip(got, want, strict=True):
        assert one["losses"] == other["losses"]
        for name, weight in one["weights"].items():
            assert torch.equal(weight, other["weights"][name])


@pytest.mark.parametrize(("staleness", "latest"), [(1, False), (2, False), (0, True), (1, True)])
@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_no_row_is_older_than_the_bound(
    ranks: RankPool, parts_of, model, staleness, latest
) -> None:
    gather = "latest" if latest else "wait"
    strategy = Strategy(unit="interval", intervals=4, staleness=staleness, gather=gather)
    got = ranks.run(pipelined_steps, 3, parts_of("hash", 3, True), spec_of(model), strategy)
    for part in got:
        assert set(part["ages"]) <= set(range(staleness + latest + 1))
        assert part["losses"] == pytest.approx(got[0]["losses"], abs=0)
        for name, weight in part["weights"].items():
            assert torch.equal(weight, got[0]["weights"][name]), name
