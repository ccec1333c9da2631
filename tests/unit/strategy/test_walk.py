"""The order in which rows are sent for, waited for and used."""

from types import SimpleNamespace

import pytest
import torch

from siafu.strategy import walk

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
