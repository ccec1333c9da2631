"""One epoch of one interval, written as it happens: a generator that yields what it waits for.

forward   tensor task -> rows to whoever reads them -> gather, layer by layer
last      a tensor task that ends forward and begins backward
backward  gradients to whoever sent rows -> gather -> tensor task, layer by layer

What all passages of a rank share comes first: the model's parts, graph work, and rows between them.
"""

from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from siafu.elastic import PartFacts, Question, Task, Tensors, compute, draws_on_input
from siafu.nn import Draws, ModelSpec
from siafu.ops import sum_type
from siafu.pipeline.gathers import Asked, Gather, Rows, Views, build_gather
from siafu.pipeline.rows import Channel, even_bounds
from siafu.pipeline.scheduler import BACKWARD, FORWARD, AwaitRows, AwaitTask, Steps, Wait
from siafu.pipeline.tasks import TaskMaker, flat_gradient
from siafu.shard import Shard
from siafu.strategy import Strategy


@dataclass(frozen=True, eq=False)
class PassageContext:
    """What the passages of a rank share."""

    gather: Gather
    tasks: TaskMaker
    channels: dict[tuple[int, int], Channel]
    """By direction and layer."""
    send: Callable[[int, int, int, int, Rows], None]
    """Gives (direction, layer, interval, epoch, rows) to whoever reads them."""
    oldest: Callable[[], int]
    """The oldest epoch that an interval is in."""
    most_age: int
    """Epochs that a row may be old when it is read."""
    ages: Counter[int] = field(default_factory=Counter)
    """Rows read, by how many epochs old they were."""

    @property
    def parts(self) -> list[PartFacts]:
        """What is known of the model's parts."""
        return self.tasks.parts

    def question(self, layer: int) -> Question:
        """Return a question like those of a layer."""
        question = self.parts[layer].question
        assert question is not None, "the last part asks nothing"
        return question

    def read(self, direction: int, layer: int, interval: int, epoch: int) -> Rows:
        """Return the rows an interval reads, all columns."""
        channel = self.channels[direction, layer]
        rows = channel.read(interval, epoch, self.oldest(), self.ages)
        oldest = max(self.ages, default=0)
        assert oldest <= self.most_age, f"rows {oldest} epochs old were read"
        return rows

    @property
    def lags(self) -> bool:
        """Whether rows may be old at all."""
        return self.most_age > 0


def most_age(strategy: Strategy) -> int:
    """Return how many epochs old a row may be when it is read."""
    return strategy.staleness + (strategy.gather == "latest")


def build_context(
    spec: ModelSpec,
    shard: Shard,
    x_ND: Tensor,
    draws: Draws,
    strategy: Strategy,
    prefix: str,
    hooks: tuple[Callable[[int, int, int, int, Rows], None], Callable[[], int]],
) -> PassageContext:
    """Return what a rank's passages share; `hooks` are `send` and `oldest`. All ranks call this."""
    send, oldest = hooks
    bounds = even_bounds(shard.num_owned, strategy.intervals)
    tasks = TaskMaker(
        spec, shard, bounds, x_ND, seed=draws.seed, prefix=prefix, bits=strategy.pool_bits
    )
    first = tasks.parts[0].question
    assert first is not None, "a model has a layer, and that asks"
    gather = build_gather(first, shard, bounds, draws, x_ND.dtype)
    channels: dict[tuple[int, int], Channel] = {}
    for layer, part in enumerate(tasks.parts[:-1]):
        assert part.question is not None, "only the last part asks nothing"
        widths = [tensor[0].numel() for tensor in part.question.sources]
        back = gather.back_widths(part.question)
        # Beside gradients, log-sum-exps go back, which are not to be rounded.
        wide = sum_type(x_ND.dtype) if len(back) > 1 else x_ND.dtype
        for direction, side, columns, dtype in (
            (FORWARD, gather.there, widths, x_ND.dtype),
            (BACKWARD, gather.back, back, wide),
        ):
            channels[direction, layer] = Channel(
                side, columns, dtype, in_flight=strategy.staleness + 1
            )
    context = PassageContext(gather, tasks, channels, send, oldest, most_age(strategy))
    if not tasks.parts[0].parameters and not draws_on_input(spec):
        _answer_once(context, x_ND, shard)
    return context


def _answer_once(context: PassageContext, x_ND: Tensor, shard: Shard) -> None:
    """Gather the constant input of the first layer."""
    there = context.gather.there
    seen = (there.extended(x_ND, shard.world),)
    for interval in range(there.num_intervals):
        asked = Asked((x_ND[there.rows(interval)],), ())
        answer, _ = context.gather.answer(context.question(0), interval, seen, asked, 0)
        context.tasks.add_constant("answer", interval, {"answer": answer})


class Passage:
    """An interval's way through an epoch, at one version of the weights."""

    def __init__(self, context: PassageContext, interval: int, epoch: int, version: int) -> None:
        self.context, self.interval, self.epoch, self.version = context, interval, epoch, version
        self.loss = 0.0
        self.grads: list[Tensors] = []
        """Of weights, in the order of the parts that found them."""
        self._asked: list[Asked | None] = []
        self._stamps: list[bytes] = []
        self._inputs: list[Tensors] = []
        """What parts were given, for backward to be given again."""

    def steps(self) -> Steps:
        """Yield what is waited for, take what came, until the epoch is done."""
        x: Tensor | None = None
        answer: Tensor | None = None
        parts = self.context.parts
        for layer in range(len(parts) - 1):
            if layer == 0 and self.context.tasks.has_constant_answer:
                self._asked.append(None)
                self._inputs.append({})
                self._stamps.append(b"")
                continue
            made = yield from self._question(layer, x, answer)
            question = self.context.question(layer)
            asked = Asked(
                tuple(made[f"source{n}"] for n in range(len(question.sources))),
                tuple(made[f"row{n}"] for n in range(len(question.rows))),
            )
            self.context.send(FORWARD, layer, self.interval, self.epoch, asked.sources)
            yield AwaitRows(FORWARD, layer)
            answer, kept = self._answer(layer, asked)
            self._stamps.append(self._stamps_of(layer))
            self._asked.append(Asked(asked.sources, asked.rows, kept))
            x = made.get("x", made["source0"]) if layer > 0 and parts[layer + 1].reads_x else None
        last = len(parts) - 1
        self._inputs.append(_given(x, answer))
        found = yield AwaitTask(self._task("finish", last, self._inputs[last]))
        self.loss = float(found["loss"])
        yield from self._go_back(found)

    def _task(self, code: str, part: int, once: Tensors) -> Task:
        return self.context.tasks.make(code, part, self.interval, self.epoch, self.version, once)

    def _question(
        self, layer: int, x: Tensor | None, answer: Tensor | None
    ) -> Generator[Wait, Tensors, Tensors]:
        given = _given(x, answer)
        self._inputs.append(given)
        task = self._task("forward", layer, given)
        if layer == 0 and not self.context.parts[0].parameters:
            # Nothing but dropout of the input: not worth a journey.
            return compute(task.code, task.facts | {"bits": 32}, task.tensors())
        return (yield AwaitTask(task))

    def _answer(self, layer: int, asked: Asked) -> tuple[Tensor, Rows]:
        context = self.context
        seen = context.read(FORWARD, layer, self.interval, self.epoch)
        return context.gather.answer(
            context.question(layer), self.interval, seen, asked, self.epoch
        )

    def _stamps_of(self, layer: int) -> bytes:
        channel = self.context.channels[FORWARD, layer]
        return channel.stamps(self.interval, self.epoch, self.context.oldest())

    def _go_back(self, found: Tensors) -> Steps:
        context = self.context
        for layer in reversed(range(len(context.parts) - 1)):
            self.grads.append(found)
            if not context.parts[layer].asks_for_learnt:
                return
            grad = found["grad_answer"]
            sent = context.gather.send_back(grad, self._as_of_now(layer))
            context.send(BACKWARD, layer, self.interval, self.epoch, sent)
            yield AwaitRows(BACKWARD, layer)
            grads = self._gradients(layer, grad)
            if (grad_x := found.get("grad_x")) is not None:
                grads["grad_x_out"] = grad_x
            found = yield AwaitTask(self._task("backward", layer, self._inputs[layer] | grads))
        self.grads.append(found)

    def _as_of_now(self, layer: int) -> Asked:
        """Return what was asked, with an answer from the rows that are there now.

        Newer rows may have come since it was answered. A softmax of the old ones is none of these.
        """
        asked = self._asked[layer]
        assert asked is not None, "constants have no gradient"
        stamps = self._stamps_of(layer)
        if asked.kept and self._stamps[layer] != stamps:
            kept = self._answer(layer, asked)[1]
            asked = self._asked[layer] = Asked(asked.sources, asked.rows, kept)
            self._stamps[layer] = stamps
        return asked

    def _gradients(self, layer: int, grad: Tensor) -> Tensors:
        context = self.context
        asked = self._as_of_now(layer)
        there: Rows = ()
        if asked.kept:
            there = context.read(FORWARD, layer, self.interval, self.epoch)
        back = context.read(BACKWARD, layer, self.interval, self.epoch)
        views = Views(there, back, self.epoch, context.lags)
        sent = context.gather.send_back(grad, asked)
        sources, rows = context.gather.gradients(
            context.question(layer), self.interval, asked, sent, views
        )
        grads = {f"grad_source{n}": grad for n, grad in enumerate(sources)}
        return grads | {f"grad_row{n}": grad for n, grad in enumerate(rows)}

    def gradient(self, names: list[str], like: list[Tensor]) -> Tensor:
        """Return the gradients of all weights and the loss, in one row."""
        flat = flat_gradient(self.grads, names, like)
        return torch.cat([flat, flat.new_tensor([self.loss])])


def _given(x: Tensor | None, answer: Tensor | None) -> Tensors:
    """Return the tensors of this epoch that a part reads."""
    given = {"x": x, "answer": answer}
    return {name: tensor for name, tensor in given.items() if tensor is not None}
