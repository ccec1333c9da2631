"""What the passages of a rank share: the model's parts, graph work, and rows between them."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from siafu.elastic import PartFacts, Question, draws_on_input
from siafu.nn import Draws, ModelSpec
from siafu.pipeline.gathers import Asked, Gather, Rows, build_gather
from siafu.pipeline.rows import Channel
from siafu.pipeline.settings import Settings
from siafu.pipeline.sides import even_bounds
from siafu.pipeline.tasks import TaskMaker
from siafu.shard import Shard

FORWARD, BACKWARD = 0, 1


@dataclass(frozen=True, eq=False)
class Works:
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


def build_works(
    spec: ModelSpec,
    shard: Shard,
    x_ND: Tensor,
    draws: Draws,
    settings: Settings,
    prefix: str,
    hooks: tuple[Callable[[int, int, int, int, Rows], None], Callable[[], int]],
) -> Works:
    """Return a rank's works; `hooks` are `send` and `oldest`. Every rank calls this together."""
    send, oldest = hooks
    bounds = even_bounds(shard.num_owned, settings.intervals)
    tasks = TaskMaker(spec, shard, bounds, x_ND, seed=draws.seed, prefix=prefix, bits=settings.bits)
    first = tasks.parts[0].question
    assert first is not None, "a model has a layer, and that asks"
    gather = build_gather(first, shard, bounds, draws, x_ND.dtype)
    channels: dict[tuple[int, int], Channel] = {}
    for layer, part in enumerate(tasks.parts[:-1]):
        assert part.question is not None, "only the last part asks nothing"
        widths = [tensor[0].numel() for tensor in part.question.sources]
        back = gather.back_widths(part.question)
        for direction, side, columns in (
            (FORWARD, gather.there, widths),
            (BACKWARD, gather.back, back),
        ):
            channels[direction, layer] = Channel(
                side, columns, x_ND.dtype, in_flight=settings.staleness + 1
            )
    works = Works(gather, tasks, channels, send, oldest, settings.most_age)
    if not tasks.parts[0].parameters and not draws_on_input(spec):
        _answer_once(works, x_ND, shard)
    return works


def _answer_once(works: Works, x_ND: Tensor, shard: Shard) -> None:
    """Gather the constant input of the first layer."""
    there = works.gather.there
    seen = (there.extended(x_ND, shard.world),)
    for interval in range(there.num_intervals):
        asked = Asked((x_ND[there.rows(interval)],), ())
        answer, _ = works.gather.answer(works.question(0), interval, seen, asked, 0)
        works.tasks.add_constant("answer", interval, {"answer": answer})
