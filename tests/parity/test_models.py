"""A step over several ranks equals one process: loss, every gradient, weights after three steps."""

import itertools
from pathlib import Path

import pytest
import torch

from siafu.nn import LAYERS, ModelSpec
from siafu.partition import write_parts
from tests.harness import RankPool
from tests.parity.graphs import assignment, awkward_graph
from tests.parity.steps import distributed_steps, single_steps

EXACT = {"rtol": 1e-10, "atol": 1e-12}
"""float64 steps, so only summation order may differ."""

OPTIONS = {
    "plain": {},
    "batch-residual": {"norm": "batch", "residual": True, "layers": 3},
    "layer-jk-cat": {"norm": "layer", "jk": "cat", "layers": 3},
    "jk-max": {"jk": "max"},
    "wide": {"hidden": 4, "dropout": 0.0},
}
CASES = [
    (model, "plain", kind) for model, kind in itertools.product(LAYERS, ["hash", "metis", "gap"])
]
CASES += [(model, option, "hash") for model in LAYERS for option in OPTIONS if option != "plain"]


@pytest.fixture(scope="module")
def parts_of(tmp_path_factory: pytest.TempPathFactory):
    """Return a function that gives the parts folder for (kind, size, weighted), made once."""
    root, made = tmp_path_factory.mktemp("parts"), {}

    def make(kind: str, size: int, weighted: bool) -> Path:
        key = (kind, size, weighted)
        if key not in made:
            graph = awkward_graph(weighted=weighted)
            target = root / f"{kind}-{size}-{weighted}.parts"
            part_of = assignment(graph, kind, size)
            write_parts(graph, part_of, target, num_parts=size, method=kind, seed=0)
            made[key] = target
        return made[key]

    return make


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize(("model", "option", "kind"), CASES)
def test_steps_equal_one_process(ranks: RankPool, parts_of, model, option, kind, size) -> None:
    weighted = option in ("plain", "jk-max")
    spec = ModelSpec(
        name=model,
        in_width=6,
        out_width=3,
        **{"hidden": 8, "heads": 2, "dropout": 0.3, **OPTIONS[option]},
    )
    want = single_steps(parts_of("hash", 1, weighted), spec)
    got = ranks.run(distributed_steps, size, parts_of(kind, size, weighted), spec)
    input_grad = torch.zeros_like(want["grads"]["input"])
    for rank, part in enumerate(got):
        torch.testing.assert_close(part["losses"], want["losses"], **EXACT)
        input_grad[part["rows"]] = part["grads"].pop("input")
        for name, grad in part["grads"].items():
            _close(grad, want["grads"][name], f"rank {rank}, gradient of {name}")
        for name, weight in part["weights"].items():
            _close(weight, want["weights"][name], f"rank {rank}, weight {name}")
    _close(input_grad, want["grads"]["input"], "gradient of the input")


def _close(got, want, what: str) -> None:
    torch.testing.assert_close(got, want, **EXACT, msg=lambda text: f"{what}: {text}")
