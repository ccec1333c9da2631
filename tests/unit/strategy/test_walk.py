"""The order in which rows are sent for, waited for and used."""

from types import SimpleNamespace

import pytest
import torch

from siafu.strategy import sums, walk

OVERLAPPED = ["start 1", "use own", "wait 1", "start 2", "use 1", "wait 2", "use 2"]
WAITING = ["start 1", "wait 1", "use own", "start 2", "wait 2", "use 1", "use 2"]


@pytest.mark.parametrize(("overlap", "order"), [(True, OVERLAPPED), (False, WAITING)])
def test_owned_rows_are_used_while_others_travel(monkeypatch, overlap: bool, order: list) -> None:
    seen: list[str] = []

    def start_fetch(rows, plan, world, purpose, coding):
        seen.append(f"start {plan}")
        return SimpleNamespace(wait=lambda *_: seen.append(f"wait {plan}") or rows)

    monkeypatch.setattr(walk, "start_fetch", start_fetch)
    stages = [SimpleNamespace(plan=number) for number in (1, 2)]
    own = SimpleNamespace(plan="own")
    reach = SimpleNamespace(own=own, stages=stages, world=None, overlap=overlap)
    walk.visit(reach, (torch.ones(2, 3),), lambda block, _: seen.append(f"use {block.plan}"), None)
    assert seen == order


@pytest.mark.parametrize("overlap", [True, False])
def test_gradients_travel_until_they_are_needed(monkeypatch, overlap: bool) -> None:
    seen: list[str] = []

    def start_return(grad, plan, world, purpose, coding):
        seen.append(f"start {plan}")
        return SimpleNamespace(wait=lambda *_: seen.append(f"wait {plan}") or grad)

    monkeypatch.setattr(walk, "start_return", start_return)
    monkeypatch.setattr(walk, "add_returned", lambda rows, plan, grad: seen.append(f"add {plan}"))
    stages = [SimpleNamespace(plan=number) for number in (1, 2)]
    homeward = walk.Homeward(SimpleNamespace(stages=stages, world=None, overlap=overlap), None)
    rows = (torch.ones(2, 3),)
    homeward.send(stages[0], rows, ())
    seen.append("own")
    homeward.send(stages[1], rows, rows)
    homeward.settle(rows)
    late = ["start 1", "own", "wait 1", "add 1", "start 2", "wait 2", "add 2"]
    early = ["start 1", "wait 1", "own", "add 1", "start 2", "wait 2", "add 2"]
    assert seen == (late if overlap else early)


class Recorded:
    """Stands for an exchange: notes what has been written when rows leave and gradients come."""

    def __init__(self, needed: torch.Tensor) -> None:
        self.needed, self.sent = needed, torch.empty(0)

    def start(self, rows: torch.Tensor) -> None:
        self.sent = rows[self.needed].clone()

    def note(self, rows: torch.Tensor) -> torch.Tensor:
        return rows

    def settle(self, grad: torch.Tensor) -> None:
        grad[self.needed] += 2.0  # from other ranks


def test_rows_that_others_need_are_mapped_first_and_get_their_gradients_last() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(7, 3).double(), torch.randn(4, 3).double()
    needed = torch.tensor([1, 4, 5]), torch.tensor([0, 2, 3, 6])
    mine = [tensor.clone().requires_grad_() for tensor in (x, weight)]
    exchange = Recorded(needed[0])
    out = sums.depart(*mine, needed, exchange)
    want = [tensor.clone().requires_grad_() for tensor in (x, weight)]
    plain = torch.nn.functional.linear(*want)
    torch.testing.assert_close(out, plain)
    torch.testing.assert_close(exchange.sent, plain[needed[0]])
    out.sum().backward()
    factor = torch.ones(7, 1).double()
    factor[needed[0]] = 3.0
    (plain * factor).sum().backward()
    for got, whole in zip(mine, want, strict=True):
        torch.testing.assert_close(got.grad, whole.grad)


def test_what_is_computed_in_between_is_computed_while_rows_and_gradients_travel() -> None:
    seen: list[str] = []

    class Departure(Recorded):
        def start(self, rows: torch.Tensor) -> None:
            seen.append("rows leave")

        def settle(self, grad: torch.Tensor) -> None:
            seen.append("gradients are waited for")

    class Note(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, what):
            ctx.what = what
            seen.append(what)
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            seen.append(f"{ctx.what} backward")
            return grad, None

    x = torch.ones(4, 3, requires_grad=True)
    sent = sums.depart(x, None, None, Departure(torch.tensor([0])))
    own = Note.apply(x, "own rows")
    (own + Note.apply(sent, "sum")).sum().backward()
    assert seen[:3] == ["rows leave", "own rows", "sum"]
    assert seen[3:] == ["sum backward", "own rows backward", "gradients are waited for"]
