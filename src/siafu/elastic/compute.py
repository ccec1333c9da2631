"""The functions a worker may be asked for, by name; nothing else can be run on one.

Each is pure: tensors and facts in, tensors out. Backward runs forward again instead of being sent
what that computed. Tensors of a node part, by name:

    ids, x, answer               of an interval's nodes; x or answer only where it is read
    w.NAME                       weights
    y, train                     targets, and which rows are trained on, for `finish`
    class_weight                 of the loss there, where classes are weighed
    source0, .. row0, ..         the question to the in-neighbours; with `grad_` its gradient
    grad_x, grad_answer, g.NAME  gradients
"""

import json
import threading
from collections.abc import Callable
from dataclasses import asdict

import torch
from torch import Tensor, nn
from torch.func import functional_call

from siafu.elastic.node_part import Question, run_part
from siafu.elastic.task import Fact, Tensors
from siafu.elastic.tensors import RAW, decode_rows, draw_of, encode_rows
from siafu.errors import TaskError
from siafu.nn import GNN, Draws, ModelSpec
from siafu.nn.losses import total_loss
from siafu.nn.precision import Precision, computing
from siafu.ops import sum_type

Compute = Callable[[dict[str, Fact], Tensors], Tensors]


def ping(facts: dict[str, Fact], tensors: Tensors) -> Tensors:
    """Return the tensors as they came: the cost of a task that does nothing."""
    return {f"out_{name}": tensor.clone() for name, tensor in tensors.items()}


class _Part(nn.Module):
    """A model whose forward is one part of it, so that weights can be given by name."""

    def __init__(self, model: GNN) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, number: int, node: tuple[Tensor, Tensor | None, Tensor], draws: Draws
    ) -> tuple[Tensor, Question | None]:
        """Return what `run_part` does."""
        return run_part(self.model, number, node, draws)


class _Skeletons(threading.local):
    """The models of a thread, by shape and type: weights are lent to one while a part runs."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, torch.dtype], _Part] = {}


_skeletons = _Skeletons()


def _skeleton(spec: str, dtype: torch.dtype) -> _Part:
    """Return a model to lend weights to.

    Weights that are not lent hold whatever was in memory: only questions that are answered already
    are computed with them, and dropped.
    """
    known = _skeletons.known
    if (spec, dtype) not in known:
        with torch.device("meta"):
            part = _Part(GNN(ModelSpec(**json.loads(spec))))
        known[spec, dtype] = part.to(dtype).to_empty(device="cpu").requires_grad_(False)
    return known[spec, dtype]


def _run(
    facts: dict[str, Fact], tensors: Tensors
) -> tuple[Tensor, Question | None, dict[str, Tensor]]:
    """Return x, the question and the leaves gradients are asked of, by the gradient's name."""
    rows = tensors["x"] if "x" in tensors else tensors["answer"]
    part = _skeleton(str(facts["model"]), sum_type(rows.dtype))
    draws = Draws(seed=int(facts["seed"]), epoch=int(facts["epoch"]), training=True)
    leaves = {name: t.detach().requires_grad_() for name, t in _leaves(facts, tensors).items()}
    weights = {
        name.replace("w.", "model.", 1): leaves.get(f"g.{name[2:]}", t)
        for name, t in tensors.items()
        if name.startswith("w.")
    }
    answer = leaves.get("grad_answer", tensors.get("answer"))
    x = leaves.get("grad_x", tensors.get("x"))
    if x is None:
        x = rows.new_zeros(0, int(facts["width"]))
    node = x, answer, tensors["ids"]
    precision: Precision = "bf16" if facts.get("precision") == "bf16" else "float32"
    with computing(precision, rows.device):
        out, question = functional_call(part, weights, (int(facts["part"]), node, draws))
    return out, question, leaves


def _leaves(facts: dict[str, Fact], tensors: Tensors) -> Tensors:
    if not facts.get("with_grad"):
        return {}
    leaves = {f"g.{name[2:]}": t for name, t in tensors.items() if name.startswith("w.")}
    for name in ("x", "answer"):
        if facts.get(f"grad_of_{name}"):
            leaves[f"grad_{name}"] = tensors[name]
    return leaves


def _named(question: Question) -> Tensors:
    sources = {f"source{n}": tensor for n, tensor in enumerate(question.sources)}
    return sources | {f"row{n}": tensor for n, tensor in enumerate(question.rows)}


def forward(facts: dict[str, Fact], tensors: Tensors) -> Tensors:
    """Return the question, and x where the next part reads it (not where it is the question)."""
    with torch.no_grad():
        x, question, _ = _run(facts, tensors)
    assert question is not None, "the last part is for `finish`"
    named = _named(question)
    if facts["keep_x"] and named.get("source0") is not x:
        named["x"] = x
    return named


def backward(facts: dict[str, Fact], tensors: Tensors) -> Tensors:
    """Return gradients of x, answer and weights, as far as they are wanted."""
    x, question, leaves = _run({**facts, "with_grad": True}, tensors)
    assert question is not None, "the last part is for `finish`"
    outputs, grads = [], []
    for name, tensor in {**_named(question), "x": x}.items():
        grad = tensors.get(f"grad_{name}_out" if name == "x" else f"grad_{name}")
        if grad is not None and tensor.requires_grad:
            outputs.append(tensor)
            grads.append(grad)
    return _gradients(outputs, leaves, grads)


def finish(facts: dict[str, Fact], tensors: Tensors) -> Tensors:
    """Return the interval's share of the loss, and the gradients of what led to it."""
    logits, _, leaves = _run({**facts, "with_grad": True}, tensors)
    logits = logits.to(sum_type(logits.dtype))
    picked, target = logits[tensors["train"]], tensors["y"]
    kind = str(facts.get("loss", "cross-entropy"))
    total = total_loss(picked, target, kind, tensors.get("class_weight"))
    loss = total / float(facts["loss_count"])
    return {"loss": loss.detach(), **_gradients([loss], leaves, None)}


def _gradients(outputs: list[Tensor], leaves: Tensors, grads: list[Tensor] | None) -> Tensors:
    found = torch.autograd.grad(outputs, list(leaves.values()), grads, allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(leaves.items(), found, strict=True)
    }


def warm_up_worker() -> None:
    """Run a part of a small model there and back, so that a worker's first task is like others."""
    spec = ModelSpec(name="gcn", in_width=2, out_width=2, hidden=2, layers=1, dropout=0.5)
    facts: dict[str, Fact] = {"model": json.dumps(asdict(spec)), "epoch": 0, "seed": 0, "part": 0}
    facts |= {"keep_x": False, "width": 2}
    weights = {"w.layers.0.linear.weight": torch.ones(2, 2)}
    rows = {"ids": torch.arange(2), "x": torch.ones(2, 2)}
    forward(facts, rows | weights)
    facts |= {"part": 1, "loss_count": 2, "grad_of_answer": True}
    weights |= {"w.layers.0.bias": torch.ones(2)}
    labels = {"y": torch.zeros(2, dtype=torch.int64), "train": torch.arange(2)}
    finish(facts, {"ids": rows["ids"], "answer": torch.ones(2, 2)} | weights | labels)


CODES: dict[str, Compute] = {
    "ping": ping,
    "forward": forward,
    "backward": backward,
    "finish": finish,
}


def compute(code: str, facts: dict[str, Fact], tensors: Tensors) -> Tensors:
    """Return what a task's function makes of its tensors; raise TaskError for an unknown one."""
    if code not in CODES:
        raise TaskError("The task names unknown code.", seen=code, fix="use matching versions")
    tensors = decode_rows(tensors)
    made = CODES[code](facts, tensors)
    bits = int(facts.get("bits", RAW))
    if bits == RAW:
        return made
    return encode_rows(made, tensors["ids"], bits, f"{code} {facts['part']}", draw_of(facts))
