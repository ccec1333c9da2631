"""Functions of edges that users write: what they capture, and what they may not do.

A function is called with the rows of some edges at a time, several times over, on any rank. So it
must treat each edge by itself. The tensors it captures (its weights) are found by watching one
call; dropout is drawn by the two ends of an edge; what mixes edges or draws numbers of its own is
refused.

Shapes: S edges of a call.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from siafu.errors import PlanError
from siafu.nn.draws import Draws
from siafu.nn.precision import computing_as_now
from siafu.ops import DrawKey, dropout_pairs, dropout_rows

RANDOM_CALLS = (
    torch.rand,
    torch.rand_like,
    torch.randn,
    torch.randn_like,
    torch.randint,
    torch.randperm,
    torch.bernoulli,
    torch.multinomial,
    Tensor.bernoulli,
    Tensor.bernoulli_,
    Tensor.uniform_,
    Tensor.normal_,
    Tensor.multinomial,
)
"""Draws of torch's own, which differ between ranks."""

Rows = tuple[Tensor, ...]
Ends = tuple[Tensor, Tensor]
"""int64 [S] twice: numbers in the whole graph of the edges' sources and destinations."""


def refuse_draw(call: Any, *args: Any, **kwargs: Any) -> Any:
    """Raise: a model may not draw random numbers of its own."""
    raise PlanError(
        "The model draws random numbers of its own, which would differ between ranks.",
        seen=f"torch's {call.__name__} in its forward pass",
        fix="use dropout, which siafu draws alike on any number of ranks, or train on one rank",
    )


def _refuse_norm(*args: Any, **kwargs: Any) -> Any:
    raise PlanError(
        "A message function mixes edges, but it is given a few edges at a time.",
        seen="batch norm inside the message",
        fix="use nn.LayerNorm in the message, or batch norm on the nodes before or after",
    )


class _EdgeMode(TorchFunctionMode):
    """Active while a function of edges runs: dropout by edge, nothing that mixes edges."""

    def __init__(self, ends: Ends, key: Callable[[int], DrawKey]) -> None:
        super().__init__()
        self._ends, self._key = ends, key
        self.sites = 0
        self._handlers: dict[Any, Callable[..., Any]] = {
            functional.dropout: self._dropout,
            functional.batch_norm: _refuse_norm,
        }
        self._handlers |= {call: partial(refuse_draw, call) for call in RANDOM_CALLS}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Route dropout and what is refused."""
        return self._handlers.get(func, func)(*args, **(kwargs or {}))

    def _dropout(
        self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0.0:
            return x
        self.sites += 1
        key = self._key(self.sites - 1)
        flat = x.reshape(x.size(0), math.prod(x.shape[1:]))
        if x.size(0) == len(self._ends[0]):
            return dropout_pairs(flat, *self._ends, key, p).view_as(x)
        # What has no row per edge is the same on every rank: keyed by place.
        return dropout_rows(flat, torch.arange(len(flat), device=x.device), key, p).view_as(x)


class _Watch(_EdgeMode):
    """Notes which tensors with a gradient enter from outside, during one small call."""

    def __init__(self, ends: Ends) -> None:
        super().__init__(ends, lambda site: DrawKey(seed=0, epoch=0, purpose=site))
        self.captured: list[Tensor] = []
        # Kept alive, so that no other tensor takes their identity.
        self._made: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Note what is neither known nor made here."""
        known = {id(tensor) for tensor in (*self._made, *self.captured)}
        for tensor in _tensors((args, kwargs)):
            if tensor.requires_grad and id(tensor) not in known:
                self.captured.append(tensor)
                known.add(id(tensor))
        out = super().__torch_function__(func, types, args, kwargs)
        self._made.extend(_tensors(out))
        return out


class _StandIns(_EdgeMode):
    """Gives a function other tensors in place of those it captures.

    Gradients are asked of the stand-ins: what a captured tensor was computed from is none of the
    function's business, and is gone back through once, by the caller.
    """

    def __init__(
        self, ends: Ends, key: Callable[[int], DrawKey], rows: Rows, captured: Rows, given: Rows
    ) -> None:
        super().__init__(ends, key)
        self._given = {id(old): new for old, new in zip(captured, given, strict=True)}
        self._known = WeakTensorKeyDictionary()
        for tensor in (*rows, *given):
            self._known[tensor] = True

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Put the stand-ins in; refuse what was not there in the first call."""
        args, kwargs = self._replaced(args), self._replaced(kwargs or {})
        out = super().__torch_function__(func, types, args, kwargs)
        for tensor in _tensors(out):
            if tensor.requires_grad:
                self._known[tensor] = True
        return out

    def _replaced(self, nest: Any) -> Any:
        if isinstance(nest, Tensor):
            if not nest.requires_grad or nest in self._known:
                return nest
            if id(nest) not in self._given:
                raise PlanError(
                    "A message function depends on a tensor that it did not read at first.",
                    seen=f"one of shape {tuple(nest.shape)}, in a later call",
                    fix="read the same weights for all edges, and don't rebind what the function "
                    "reads before backward has run",
                )
            return self._given[id(nest)]
        if isinstance(nest, list | tuple) and any(True for _ in _tensors(nest)):
            members = [self._replaced(member) for member in nest]
            return type(nest)(members) if type(nest) in (list, tuple) else type(nest)(*members)
        if isinstance(nest, dict):
            return {name: self._replaced(member) for name, member in nest.items()}
        return nest


def _tensors(nest: Any) -> Iterable[Tensor]:
    if isinstance(nest, Tensor):
        yield nest
    elif isinstance(nest, list | tuple):
        for member in nest:
            yield from _tensors(member)
    elif isinstance(nest, dict):
        yield from _tensors(list(nest.values()))


@dataclass(frozen=True, eq=False)
class EdgeFunction:
    """A user's function of edges, with what it captures and which draws are its own."""

    function: Callable[..., Any]
    captured: Rows
    dtype: torch.dtype
    """Of its results."""
    width: int
    """Numbers an edge brings forth."""
    shapes: tuple[tuple[int, ...], ...]
    """Of each result, without the edges."""
    seed: int
    epoch: int
    first_site: int
    num_sites: int
    computing: AbstractContextManager[object]
    """Products are of the type that they had when it was watched."""

    @classmethod
    def watch(cls, function: Callable[..., Any], rows: Rows, draws: Draws) -> "EdgeFunction":
        """Return the function after one call with two edges of zeros, made like `rows`."""
        zeros = tuple(tensor.new_zeros(2, *tensor.shape[1:]) for tensor in rows)
        device = rows[0].device if rows else torch.device("cpu")
        ends = torch.zeros(2, dtype=torch.int64, device=device)
        mode = _Watch((ends, ends))
        with torch.enable_grad(), mode:
            results = _results(function(*zeros), 2)
        return cls(
            function,
            tuple(mode.captured),
            results[-1].dtype,
            sum(math.prod(result.shape[1:]) for result in results),
            tuple(tuple(result.shape[1:]) for result in results),
            draws.seed,
            draws.epoch,
            draws.take_sites(mode.sites),
            mode.sites,
            computing_as_now(device),
        )

    def stand_ins(self) -> Rows:
        """Return the captured tensors anew, as leaves that gradients can be asked of."""
        return tuple(tensor.detach().requires_grad_() for tensor in self.captured)

    def __call__(self, rows: Rows, ends: Ends, given: Rows | None = None) -> Rows:
        """Return the results for some edges, with the same draws every time.

        `given` take the place of what the function captures.
        """
        given = self.captured if given is None else given
        with self.computing, _StandIns(ends, self._key, rows, self.captured, given):
            results = _results(self.function(*rows), len(ends[0]))
        if tuple(tuple(result.shape[1:]) for result in results) != self.shapes:
            raise PlanError(
                "A message function changes its shape from call to call.",
                seen=f"{[tuple(r.shape) for r in results]}, before {list(self.shapes)} an edge",
                fix="let the shape of a message depend on the widths of its inputs only",
            )
        return results

    def _key(self, site: int) -> DrawKey:
        return DrawKey(seed=self.seed, epoch=self.epoch, purpose=self.first_site + site)


def _results(value: Any, num_edges: int) -> tuple[Tensor, ...]:
    results = value if isinstance(value, tuple) else (value,)
    for result in results:
        fits = isinstance(result, Tensor) and result.dim() > 0 and result.size(0) == num_edges
        if not fits or not result.is_floating_point():
            got = f"{tuple(result.shape)} {result.dtype}" if isinstance(result, Tensor) else result
            raise PlanError(
                "A message function must return one row of floats for each edge.",
                seen=f"{got} for {num_edges} edges",
                fix="return a tensor whose first dimension is that of its inputs",
            )
    return results
