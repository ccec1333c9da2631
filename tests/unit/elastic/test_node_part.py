"""Parts of a model, chained by hand, equal the model itself: values and every gradient."""

import json
from dataclasses import asdict

import pytest
import torch

from siafu.elastic.compute import compute
from siafu.elastic.node_part import inspect_parts
from siafu.errors import ConfigError, TaskError
from siafu.nn import GNN, Draws, LocalNeighbours, ModelSpec
from siafu.ops import CSR

MODELS = {
    "gcn": {},
    "gcn wide": {"name": "gcn", "hidden": 24},
    "gcn residual": {"name": "gcn", "residual": True, "norm": "layer"},
    "sage": {},
    "gin": {"norm": "layer"},
    "gat": {"heads": 2},
    "transformer": {"heads": 2},
    "gcn constant": {"name": "gcn", "input_dropout": 0.0},
    "sage constant": {"name": "sage", "input_dropout": 0.0, "dropout": 0.0},
}
ROWS, CLASSES = 13, 3


def spec_of(name: str) -> ModelSpec:
    chosen = {"name": name, "hidden": 8, "layers": 3, "dropout": 0.3, **MODELS[name]}
    return ModelSpec(in_width=10, out_width=CLASSES, **chosen)


def graph() -> CSR:
    generator = torch.Generator().manual_seed(0)
    degree = torch.randint(0, 5, (ROWS,), generator=generator)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degree.cumsum(0)])
    index = torch.randint(0, ROWS, (int(indptr[-1]),), generator=generator)
    return CSR(indptr, index.int(), ROWS)


def answer_of(neighbours: LocalNeighbours, question, tensors: dict) -> torch.Tensor:
    sources = tuple(tensors[f"source{n}"] for n in range(len(question.sources)))
    rows = tuple(tensors[f"row{n}"] for n in range(len(question.rows)))
    if question.operation != "attend":
        return getattr(neighbours, question.operation)(*sources)
    return neighbours.attend(
        question.attention, sources, rows, dropout=question.dropout, loops=question.loops
    )


@pytest.mark.parametrize("name", MODELS)
def test_parts_in_a_chain_equal_the_model(name: str) -> None:
    torch.manual_seed(1)
    spec = spec_of(name)
    model = GNN(spec).double()
    draws, ids = Draws(seed=3, epoch=5), torch.arange(ROWS) * 7
    neighbours = LocalNeighbours(graph(), ids, draws)
    x0 = torch.rand(ROWS, spec.in_width, dtype=torch.float64)
    y, train = torch.randint(0, CLASSES, (ROWS,)), torch.tensor([0, 2, 3, 7, 12])
    want = torch.nn.functional.cross_entropy(model(x0, neighbours, draws)[train], y[train])
    want.backward()

    got, grads = run_chain(model, x0, neighbours, {"ids": ids, "y": y[train], "train": train})

    torch.testing.assert_close(got, want.detach(), rtol=1e-12, atol=1e-12)
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(grads[key], parameter.grad, rtol=1e-10, atol=1e-12, msg=key)


def run_chain(model: GNN, x0, neighbours, constants: dict):
    spec, parts = model.spec, inspect_parts(model.spec)
    facts = {"model": json.dumps(asdict(spec)), "seed": 3, "epoch": 5}
    weights = {name: p.detach() for name, p in model.named_parameters()}
    inputs: list[dict] = []
    answers: list = []
    x, answer = x0, None
    for number, part in enumerate(parts):
        width = spec.in_width if number < 2 else spec.hidden
        given = {f"w.{key}": weights[key] for key in part.parameters}
        given |= {"ids": constants["ids"]}
        given |= {} if answer is None else {"answer": answer.detach()}
        given |= {"x": x} if part.reads_x or number == 0 else {}
        inputs.append(given)
        told = {**facts, "part": number, "width": width, "keep_x": False}
        told["grad_of_answer"] = number > 0 and parts[number - 1].asks_for_learnt
        told["grad_of_x"] = part.reads_x and number > 1
        if number == spec.layers:
            told["loss_count"] = len(constants["y"])
            found = compute("finish", told, given | constants)
            break
        told["keep_x"] = parts[number + 1].reads_x
        made = compute("forward", told, given)
        x = made.get("x", made["source0"]) if number > 0 else x0
        leaves = {key: t.detach().requires_grad_() for key, t in made.items() if key != "x"}
        answer = answer_of(neighbours, part.question, leaves)
        answers.append((told, leaves, answer))
    loss = found["loss"]
    grads = {key: torch.zeros_like(weight) for key, weight in weights.items()}
    for number in reversed(range(spec.layers)):
        _add(grads, found)
        if not parts[number].asks_for_learnt:
            return loss, grads
        told, leaves, answer = answers[number]
        back = torch.autograd.grad(answer, list(leaves.values()), found["grad_answer"])
        given = inputs[number] | {f"grad_{key}": g for key, g in zip(leaves, back, strict=True)}
        if number > 0 and "grad_x" in found:
            given["grad_x_out"] = found["grad_x"]
        found = compute("backward", told, given)
    _add(grads, found)
    return loss, grads


def _add(grads: dict, found: dict) -> None:
    for key, grad in found.items():
        if key.startswith("g."):
            grads[key[2:]] += grad


def test_what_can_not_be_cut_is_refused_by_name() -> None:
    for changes in ({"norm": "batch"}, {"jk": "cat"}, {"name": "sage-max"}, {"name": "gatv2"}):
        spec = ModelSpec(**{"name": "gcn", "in_width": 4, "out_width": 2, **changes})
        with pytest.raises(ConfigError, match="cut into tasks"):
            inspect_parts(spec)


def test_unknown_code_is_refused() -> None:
    with pytest.raises(TaskError, match="unknown code"):
        compute("os.system", {}, {})
