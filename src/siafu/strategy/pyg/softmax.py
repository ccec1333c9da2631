"""A softmax over in-edges inside a PyG message, split over blocks.

Two walks: the first calls messages up to their softmax and joins its scores to a log-sum-exp for
each node; in the second, weights are exp(score - log-sum-exp). Gradients of the log-sum-exps go
back through the first walk, so scores get both parts of theirs.

The calls are found by their name: whatever the methods of a layer see as PyG's `softmax` becomes a
function that does the same, unless it is given an `InEdges` for its index.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, NoReturn

from torch import Tensor, nn

from siafu.strategy.pyg.refusal import WholeOnly, refusal

Answer = Callable[[Tensor], Tensor]
"""Takes scores with the edges first, gives weights."""


class FoundScoresError(Exception):
    """Ends a message at its softmax, with the scores it was given."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = scores


class InEdges(WholeOnly):
    """Stands for the destinations of edges, of which a message sees some; knows their softmax."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__(layer)
        self.__dict__.update(answer=as_they_are, num_asked=0)

    @contextmanager
    def answering(self, answer: Answer) -> Iterator[None]:
        """Let this be the softmax of one message."""
        self.answer, self.num_asked = answer, 0
        try:
            yield
        finally:
            self.answer = as_they_are

    def softmax(self, scores: Tensor, dim: int) -> Tensor:
        """Return what the message is told of a softmax of its scores."""
        self.num_asked += 1
        if self.num_asked > 1:
            raise refusal(self._layer, "its message takes more than one softmax over in-edges")
        return self.answer(scores.movedim(dim, 0)).movedim(0, dim)


def as_they_are(scores: Tensor) -> Tensor:
    """Return the scores; what a message is told while it is only watched."""
    return scores


def leave(scores: Tensor) -> NoReturn:
    """End the message here."""
    raise FoundScoresError(scores)


def weights_of(log_sum_exp: Tensor) -> Answer:
    """Return what gives the weights of edges, whose rows these are."""

    def answer(scores: Tensor) -> Tensor:
        return (scores.to(log_sum_exp.dtype) - log_sum_exp).exp().to(scores.dtype)

    return answer


def watch_softmax(layer: nn.Module) -> None:
    """Have the methods of a layer call a `softmax` that knows `InEdges`."""
    plain = sys.modules["torch_geometric.utils"].softmax
    methods = (each for kind in type(layer).__mro__ for each in vars(kind).values())
    spaces = {id(m.__globals__): m.__globals__ for m in methods if inspect.isfunction(m)}
    for space in spaces.values():
        for name in [name for name, value in space.items() if value is plain]:
            space[name] = _knowing(plain)


@cache
def _knowing(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(plain)
    def softmax(
        src: Tensor, index: Any = None, ptr: Any = None, num_nodes: Any = None, dim: int = 0
    ) -> Tensor:
        if isinstance(index, WholeOnly):  # any other than `InEdges` refuses
            return index.softmax(src, dim)
        return plain(src, index, ptr, num_nodes, dim)

    return softmax
