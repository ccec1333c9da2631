"""Whether ranks can work together: the same software, every pair reached, the same results as one.

Nothing of a run is read: each rank makes what it needs by itself, so that no disk is shared.
"""

import json
import os
import socket
import statistics
import tempfile
import time
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import psutil
import torch

from siafu.comm import World, start_exchange
from siafu.comm.devices import name_of
from siafu.config import make_config
from siafu.engine import begin
from siafu.engine.progress import synchronise
from siafu.errors import CommError
from siafu.files import write_text_atomically
from siafu.ingest import load
from siafu.memory import free_bytes
from siafu.partitioning import partition_graph
from siafu.record import RunFolder, environment
from siafu.shard import open_shard

CHECK = "check"
"""The verb of a job that checks ranks."""
ANSWER = "checked.json"
"""What rank 0 leaves in the folder of a check."""
GRAPH, _EPOCHS, _CLOSE = "planted:300", 3, 1e-3
"""Sums in another order differ by rounding; what is wrong differs by far more."""
_SETTINGS: dict[str, Any] = {"epochs": _EPOCHS, "hidden": 16, "inference": "none"}
_SETTINGS |= {"optimizer": "sgd", "lr": 0.1}
"""Steps along the gradient: Adam would make much of a gradient that is rounding alone."""
_SMALL, _LARGE, _TURNS = 8, 1 << 22, 5
"""Bytes to each other, and how often."""


def facts_of_ranks(world: World) -> list[dict[str, Any]]:
    """Return what each rank is made of; every rank calls this together."""
    told = environment()
    mine = {
        "host": socket.gethostname(),
        "interface": os.environ.get("GLOO_SOCKET_IFNAME", "by the host's name"),
        "memory_free": free_bytes(),
        "disk_free": int(psutil.disk_usage(tempfile.gettempdir()).free),
        "device": str(world.device),
        "gpu": name_of(world.device),
        "versions": {"python": told["python"], **told["packages"]},
    }
    return [json.loads(text) for text in world.gather_texts(json.dumps(mine))]


def unlike(facts: list[dict[str, Any]]) -> list[str]:
    """Return where a rank has other versions than most, a line each."""
    lines = []
    names = sorted({name for rank in facts for name in rank["versions"]})
    for name in names:
        found = [str(rank["versions"].get(name, "none")) for rank in facts]
        usual = Counter(found).most_common(1)[0][0]
        lines += [
            f"rank {rank} on {facts[rank]['host']}: {name} {version}, most have {usual}"
            for rank, version in enumerate(found)
            if version != usual
        ]
    return lines


def check_alike(world: World) -> None:
    """Raise on every rank where they have not the same software, before any data is read."""
    if lines := unlike(facts_of_ranks(world)):
        raise CommError(
            "The ranks do not have the same software.",
            seen="\n".join(lines),
            fix="install the same versions on all machines (`siafu --version`, `siafu doctor`)",
        )


def check_ranks(world: World) -> dict[str, Any]:
    """Return what ranks are, how fast each pair is, and whether they compute as one does."""
    world.step = "checking"
    facts = facts_of_ranks(world)
    seconds = {size: _pair_seconds(world, size) for size in (_SMALL, _LARGE)}
    pairs = [
        {
            "ranks": list(pair),
            "way": f"{world.backend}, {_between(*(facts[rank] for rank in pair))}",
            "latency_seconds": seconds[_SMALL][pair],
            "bytes_per_second": _LARGE / max(1e-9, seconds[_LARGE][pair]),
        }
        for pair in combinations(range(world.size), 2)
    ]
    loss, weights = _differences(world)
    problems = unlike(facts)
    if max(loss, weights) > _CLOSE:
        told = f"losses are {loss:.2g} off those of one process, weights {weights:.2g}"
        problems.append(told)
    return {
        "backend": world.backend,
        "ranks": facts,
        "pairs": pairs,
        "loss_difference": loss,
        "weight_difference": weights,
        "problems": problems,
    }


def _between(one: dict[str, Any], other: dict[str, Any]) -> str:
    """Return what two ranks have between them."""
    if one["host"] != other["host"]:
        return "network"
    on_gpu = one["gpu"] and one["gpu"] == other["gpu"]
    return "one GPU" if on_gpu else "one machine"


def _pair_seconds(world: World, size: int) -> dict[tuple[int, int], float]:
    """Return how long each pair takes to send so many bytes to each other, at the median.

    Pairs without a rank in common go at the same time, as they do in training.
    """
    rows = torch.zeros(size, dtype=torch.uint8, device=world.device)
    mine = [0.0] * world.size
    for turn in range(_rounds(world.size)):
        peer = _partner(world.rank, turn, world.size)
        counts = tuple(size if rank == peer else 0 for rank in range(world.size))
        taken = []
        for _ in range(1 + _TURNS):
            synchronise(world)
            began = time.perf_counter()
            sent = rows if peer is not None else rows[:0]
            start_exchange(sent, counts, counts, world, "control").wait(world, "a pair's bytes")
            synchronise(world)  # NCCL's wait returns before any byte has come
            taken.append(time.perf_counter() - began)
        if peer is not None:
            mine[peer] = statistics.median(taken[1:])  # the first connects
    table = world.gather_numbers(mine)
    return {(a, b): max(table[a][b], table[b][a]) for a, b in combinations(range(world.size), 2)}


def _rounds(size: int) -> int:
    return size - 1 + size % 2


def _partner(rank: int, turn: int, size: int) -> int | None:
    """Return whom a rank meets in a turn, so that each meets each once; None who rests.

    Ranks but the last go round a circle, and those opposite each other meet.
    """
    circle = _rounds(size)
    if rank == circle:  # of an even number the last, whom the one meets that is its own opposite
        return next(r for r in range(circle) if (turn - r) % circle == r)
    found = (turn - rank) % circle
    if found == rank:
        return circle if circle < size else None
    return found


def _differences(world: World) -> tuple[float, float]:
    """Return how far losses and weights of some epochs are from those of one process, at most."""
    graph, ends = load(GRAPH), []
    with tempfile.TemporaryDirectory(prefix="siafu-check-") as scratch:
        for at in (world, World(device=world.device)):
            parts = Path(scratch) / f"{at.size}.parts"
            partition_graph(graph, parts, num_parts=at.size, method="hash", overwrite=True)
            config = make_config(data=GRAPH, ranks=at.size, **_SETTINGS).resolved()
            training = begin(config, open_shard(parts, at))
            losses = torch.tensor([training.run_epoch()["loss"] for _ in range(_EPOCHS)])
            found = training.workload.module.parameters()
            weights = torch.cat([weight.detach().flatten().cpu() for weight in found])
            training.close()
            ends.append((losses, weights))
    (losses, weights), (alone, wanted) = ends
    return (
        float(((losses - alone) / alone).abs().max()),
        float((weights - wanted).abs().max() / wanted.abs().max()),
    )


def write_check(world: World, folder: RunFolder) -> None:
    """Do this rank's share of a check; rank 0 writes what was found."""
    found = check_ranks(world)
    if world.rank == 0:
        write_text_atomically(folder.path / ANSWER, json.dumps(found))
