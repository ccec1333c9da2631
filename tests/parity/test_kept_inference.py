"""A pass over all nodes that was killed goes on from its last noted piece, to the same bytes."""

import os
import shutil
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.minibatch import Keeper, KeptRows, Relay, layerwise
from siafu.minibatch.layerwise import Room
from siafu.shard import open_shard
from tests.harness import RankPool

BASE = {"strategy": "batchgnn", "fanout": "3,2", "batch_size": 4, "macrobatch": "1", "hidden": 8}
SMALL: dict[str, Any] = {"_ROWS_AT_ONCE": 2, "_EDGES_AT_ONCE": 5, "_PIECES_BETWEEN": 2}
MODELS = [
    {"model": "sage"},
    {"model": "gcn", "layers": 3, "fanout": "3,2,2"},
    {"model": "sage", "jk": "cat"},
]


class Passes:
    """Passes of one network over small pieces, each as a new process would begin it."""

    def __init__(self, world: World, parts: Path, settings: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        shard = open_shard(parts, world, place="host")
        config = make_config(data="a", **(BASE | settings)).resolved()
        self.training = begin(config, shard)
        self.network = self.training.workload.network
        room = Room(on_disk=True, ahead=True)
        self.network.feed.room = lambda *given, **more: room

    def __call__(self, folder: Path | None, *, embed: bool = False) -> tuple[list[Tensor], int]:
        """Return the rows that come of it, and how many pieces were computed for them."""
        network, sampled = self.network, count()
        network._inferred = None
        network.keeper = None if folder is None else Keeper(folder)
        sample = Relay.sample_own

        def counting(relay: Relay, number: int, rows: Tensor) -> Any:
            next(sampled)
            return sample(relay, number, rows)

        few = mock.patch.multiple(layerwise, **SMALL)
        with mock.patch.object(Relay, "sample_own", counting), few:
            hidden = [network.embedding_rows()] if embed else []
            found = [rows.slice(0, rows.shape[0]) for rows in [*hidden, network.logit_rows()]]
        if network.keeper is not None:
            network.keeper._held.close()  # as the end of the process does
        return [rows.clone() for rows in found], next(sampled)


def noted_states(world: World, parts: Path, settings: dict[str, Any], place: Path) -> Any:
    """Return what passes give that go on from each state of one, and what one from the start."""
    passes, own = Passes(world, parts, settings), place / str(world.rank)
    embed = bool(settings.get("jk"))
    want, whole = passes(None, embed=embed)
    states, note = list[Path](), KeptRows.note

    def copying(kept: KeptRows, pieces: int) -> None:
        note(kept, pieces)
        states.append(own / f"state{len(states)}")
        shutil.copytree(own / "first", states[-1])

    with mock.patch.object(KeptRows, "note", copying):
        first = passes(own / "first", embed=embed)
    counts = world.gather_numbers([float(len(states))])
    told = [first]
    for at in range(int(max(row[0] for row in counts))):
        told.append(passes(states[min(at, len(states) - 1)], embed=embed))
    over = passes(own / "first", embed=embed)
    with torch.no_grad():
        next(passes.network.module.parameters()).add_(1)
    other, anew = passes(None, embed=embed), passes(own / "first", embed=embed)
    passes.training.close()
    return {
        "same": [all(map(torch.equal, rows, want)) for rows, _ in [*told, over]],
        "pieces": [pieces for _, pieces in [*told, over]],
        "whole": whole,
        "other": all(map(torch.equal, other[0], anew[0])) and other[1] == anew[1] == whole,
        "differs": not all(map(torch.equal, other[0], want)),
    }


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("settings", MODELS, ids=["sage", "gcn", "jk"])
def test_a_pass_goes_on_from_any_state_it_noted(
    ranks: RankPool, parts_of, tmp_path: Path, size: int, settings: dict[str, Any]
) -> None:
    parts = parts_of("gap" if size == 4 else "hash", size, False)
    told = ranks.run(noted_states, size, parts, settings, tmp_path)
    for one in told:
        assert all(one["same"])
        assert one["pieces"][0] == one["whole"]
        assert one["pieces"][-1] == 0  # of all that is there nothing is computed again
        assert sorted(one["pieces"], reverse=True) == one["pieces"]
        assert one["other"], "rows of other weights are not taken"
    assert any(one["differs"] for one in told)  # a rank may have no rows


def killed_pass(parts: Path, folder: Path, notes: int) -> None:
    """Infer alone, and be killed after so many states were noted; print the rows otherwise."""
    note, noted = KeptRows.note, count(1)

    def killing(kept: KeptRows, pieces: int) -> None:
        note(kept, pieces)
        if next(noted) == notes:
            os.kill(os.getpid(), signal.SIGKILL)

    with mock.patch.object(KeptRows, "note", killing), World.join(device="cpu") as world:
        passes = Passes(world, parts, {"model": "sage"})
        (rows,), pieces = passes(folder)
        passes.training.close()
    print(pieces, rows.numpy().tobytes().hex())


def test_a_killed_process_is_gone_on_with(parts_of, tmp_path: Path) -> None:
    parts, told = parts_of("hash", 1, False), []
    for folder, notes in (("plain", 0), ("kept", 3), ("kept", 3), ("kept", 0)):
        code = "from pathlib import Path; from tests.parity.test_kept_inference import killed_pass"
        code += f"; killed_pass(Path({str(parts)!r}), Path({str(tmp_path / folder)!r}), {notes})"
        command = [sys.executable, "-W", "ignore", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == (-signal.SIGKILL if notes else 0), done.stderr
        told.append(done.stdout.split())
    (pieces, rows), (left, again) = told[0], told[-1]
    assert again == rows
    assert int(left) == int(pieces) - 2 * 3 * 2  # two pieces a note, three notes, twice
