"""Rows that can't be sent are named, at once or, on a device, once a step."""

import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from siafu.comm import Coding, World, reduce_gradients
from siafu.comm.bad_rows import BadRows
from siafu.comm.coding import Lot
from siafu.config import make_config
from siafu.engine import begin
from siafu.errors import DataError
from siafu.ingest import load
from siafu.nn import Draws
from siafu.ops import DrawKey, Encoded, WireLayout, encode
from siafu.partitioning import partition_graph
from siafu.shard import open_shard
from siafu.strategy import BlockNeighbours, Strategy
from tests.harness import RankPool

KEY = DrawKey(seed=1, epoch=1, purpose=1)
LATER = [f"siafu.comm.{name}.looks_later" for name in ("halo", "coding", "gradients")]


def encoded_rows(bad: int | None) -> Encoded:
    x_ND = torch.ones(5, 12)
    if bad is not None:
        x_ND[bad:] = torch.nan
    layout = WireLayout.build(torch.full((5,), 4, dtype=torch.uint8), 12)
    return encode(x_ND, None, layout, KEY, torch.arange(5), check=False)


@pytest.mark.parametrize("bad", [0, 3, 4])
def test_the_first_bad_row_of_the_first_bad_message_is_named(bad: int) -> None:
    rows = BadRows()
    for number, place in enumerate([None, bad, 0]):
        rows.note(encoded_rows(place), lambda place, n=number: f"row {place} of message {n}")
    rows.note(Encoded(torch.empty(0, dtype=torch.uint8), torch.empty(0)), str)
    with pytest.raises(DataError, match=f"row {bad} of message 1"):
        rows.check()
    rows.check()  # what was told is told once


def test_rows_that_are_drawn_by_lot_have_their_own_names() -> None:
    lot = Lot(torch.tensor([2, 4]), torch.empty(0, dtype=torch.int64), 0, 2.0)
    none, rows = (lambda: torch.empty(0)), torch.arange(5)
    coding = Coding(none, none, (), (), lambda: rows, KEY, lambda at: f"row {at}", lot=lot)
    assert [coding.name_sent(place) for place in (0, 1)] == ["row 2", "row 4"]


def test_rows_that_nobody_looks_at_are_looked_at_in_the_end() -> None:
    rows = BadRows()
    rows.note(encoded_rows(2), lambda place: f"row {place}")
    for _ in range(1022):
        rows.note(encoded_rows(None), str)
    with pytest.raises(DataError, match="row 2"):
        rows.note(encoded_rows(None), str)


def looked_at(world: World, folder: Path, settings: dict[str, Any]) -> list[str]:
    """Return what a rank says of a NaN among rows, and of one among gradients of weights."""
    with ExitStack() as stack:
        for name in LATER:
            stack.enter_context(patch(name, lambda encoded: True))
        shard = open_shard(folder, world)
        neighbours = BlockNeighbours(shard, Draws(), Strategy(**settings))
        assert isinstance(shard.x, Tensor)
        x = shard.x.clone()
        weight = torch.nn.Parameter(torch.zeros(1 << 15))
        weight.grad = torch.zeros(1 << 15)
        if world.rank == 0:
            x[:, 2] = weight.grad[7] = torch.nan
        told = []
        for exchange in (
            lambda: neighbours.mean(x),
            lambda: reduce_gradients([weight], world, KEY),
        ):
            looks = patch.object(Encoded, "first_bad", lambda encoded: told.append("looked"))
            try:
                with looks:
                    exchange()
                world.bad_rows.check()
            except DataError as error:
                told.append(str(error))
        return told


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad-rows") / "2.parts"
    partition_graph(load("planted:100"), folder, num_parts=2, method="hash")
    return folder


@pytest.mark.parametrize(
    "settings", [{"wire": 4}, {"wire": 4, "changes": True}, {"staleness": 1}], ids=str
)
def test_exchanges_look_later_and_say_the_same(
    ranks: RankPool, parts: Path, settings: dict[str, Any]
) -> None:
    told = ranks.run(looked_at, 2, parts, settings)
    assert "row of node" in told[0][0]
    assert "gradients of the weights" in told[0][1]
    assert all("looked" not in each for each in told)


def test_an_epoch_ends_with_a_look(tmp_path: Path) -> None:
    partition_graph(load("planted:100"), tmp_path / "parts", num_parts=1, method="hash")
    config = make_config(data="planted", hidden=8, epochs=2).resolved()
    training = begin(config, open_shard(tmp_path / "parts", World()))
    training.step()
    training.world.bad_rows.note(encoded_rows(1), lambda place: f"row {place}")
    with pytest.raises(DataError, match="row 1"):
        training.step()
    training.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_no_host_waits_until_it_looks() -> None:
    x_ND, rows_S = torch.ones(70, 24, device="cuda"), torch.arange(60, device="cuda")
    x_ND[41, 3] = torch.nan
    layout = WireLayout.build(torch.full((60,), 4, dtype=torch.uint8, device="cuda"), 24)
    sizes = (layout.num_bytes,)
    coding = Coding(
        lambda: layout, lambda: layout, sizes, sizes, lambda: rows_S, KEY, lambda at: f"row {at}"
    )
    world = World(device=torch.device("cuda"))

    def exchange() -> None:
        encoded = coding.encode(x_ND, rows_S)
        world.bad_rows.note(encoded, coding.name_row)
        coding.decode(encoded.payload, encoded, x_ND.shape[1:])

    exchange()  # compiles
    with pytest.raises(DataError, match="row 41"):
        world.bad_rows.check()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it does not find every wait
            torch.cuda.set_sync_debug_mode("error")
        exchange()
        exchange()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    with pytest.raises(DataError, match="row 41"):
        world.bad_rows.check()
