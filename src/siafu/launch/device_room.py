"""Whether a run fits its GPU: told before anything large is put there, and held to a budget."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch

from siafu.comm import World
from siafu.comm.devices import name_of
from siafu.config import ResolvedConfig
from siafu.engine import num_embedded
from siafu.engine.dynamic.snapshots import KEPT_SHARE
from siafu.errors import BudgetError
from siafu.graph import DynamicGraph
from siafu.launch.foreseen import FAILURES, outlook_of, setting_of
from siafu.memory import free_bytes as host_bytes
from siafu.minibatch.placement import free_bytes
from siafu.nn.precision import BYTES
from siafu.options import read_bytes
from siafu.partitioning import open_parts
from siafu.plan import shown_bytes
from siafu.plan.choice import OF_HOST, SURE
from siafu.plan.memory import FEATURES, GRAPH, PROCESS
from siafu.plan.outlook import FREED

_ALL = "1000TB"
Say = Callable[[str], None]
Kinds = dict[str, int]
_REFUSED = 1.25
"""Times what is free: predictions are within 15 %, so less than that may fit after all."""
_ON_HOST = (PROCESS, FREED)
_STAYS_ON_HOST = ("ids", "halo")
_LESS_ROWS = "--precision bf16 (half the bytes per row)"
_MINIBATCHES = "--strategy batchgnn --rows-on {} (minibatches, rows in memory of the host)"


def device_room(world: World) -> int | None:
    """Return the bytes that are free on this rank's GPU; None where it has none."""
    return free_bytes(world.device) if world.device.type == "cuda" else None


def check_room(config: ResolvedConfig, parts: str, world: World, say: Say, *, trains: bool) -> None:
    """Raise where a rank's part, and training on it, are far too large for its GPU.

    Where they are a little too large, that is said. All ranks call this together, before they open
    their parts. Of a model of the user's own only what lies in the part is known.
    """
    if (free := device_room(world)) is None:
        return
    kinds, away = _of_part(parts, world.rank), 0
    with suppress(*FAILURES):  # nobody is kept from training by a forecast that fails
        if trains and (at := setting_of(config, Path(parts), rank=world.rank)):
            memory = outlook_of(at, config).memory
            if config.chosen.unit == "graph" and config.offload is None:
                # Rows that wait in the host's memory are found when the part is there.
                least = outlook_of(at, config.model_copy(update={"offload": _ALL})).memory
                away = sum(memory.values()) - sum(least.values())
            kinds |= {kind: size for kind, size in memory.items() if kind not in kinds}
    _refuse_or_say(kinds, free, world, say, _remedies(config, trains=trains), away)


def check_room_over_time(
    config: ResolvedConfig, graph: DynamicGraph, world: World, say: Say
) -> None:
    """Raise or say the same of a dynamic graph: a block's rows and its edges are counted, which is
    the least that a model needs."""
    if (free := device_room(world)) is None:
        return
    spans, steps = world.size // config.node_parts, num_embedded(config, graph)
    at_once = -(-min(config.time_block or steps, steps) // spans)
    rows = -(-graph.num_nodes // config.node_parts) * at_once
    edges = graph.edges_per_snapshot().astype(np.int64)
    mine = int(edges.sum()) // world.size
    kept = (
        mine if 8 * mine <= free // KEPT_SHARE else int(edges.max(initial=0)) // config.node_parts
    )
    item = BYTES[config.precision]
    kinds = {
        GRAPH: 8 * kept,
        "rows of a time block and their gradients": 2 * item * config.hidden * rows,
    }
    remedies = [
        f"--time-block {max(1, at_once * spans // 4)} (fewer snapshots at once)",
        f"--ranks {2 * world.size}",
        f"--node-parts {2 * config.node_parts} on as many times more ranks",
        "--device cpu",
    ]
    _refuse_or_say(kinds, free, world, say, remedies)


def _of_part(parts: str, rank: int) -> Kinds:
    """Return the bytes of what a shard puts on its device, by kind."""
    kinds = {GRAPH: 0, FEATURES: 0}
    for name, entry in open_parts(parts).part(rank).entries.items():
        if not name.startswith(_STAYS_ON_HOST):
            kind = FEATURES if name == "x" or name.startswith("x_") else GRAPH
            kinds[kind] += int(np.prod(entry.shape)) * np.dtype(entry.dtype).itemsize
    return kinds | dict.fromkeys(_ON_HOST, 0)


def _remedies(config: ResolvedConfig, *, trains: bool) -> list[str]:
    if not trains:
        return ["the host's memory: CUDA_VISIBLE_DEVICES= in front of the command"]
    is_own, more = ":" in config.model, 2 * config.ranks
    found = [] if config.precision == "bf16" else [_LESS_ROWS]
    found.append(_MINIBATCHES.format("pinned" if config.ranks == 1 else "host"))
    if config.chosen.stages == 1 and not config.chosen.by_columns:
        found.append(f"--strategy sar --ranks {more} (rows of others a stage at a time)")
    else:
        found.append(f"--ranks {more}, each with a GPU")
    if not is_own and config.memory is None and config.ranks > 1:
        found.append("--strategy sar --memory BYTES (as many stages as that needs)")
    return [*found, "--device cpu"]


def _refuse_or_say(
    kinds: Kinds, free: int, world: World, say: Say, remedies: list[str], away: int = 0
) -> None:
    """Raise, say something, or nothing; `away` may leave the GPU for the host's memory."""
    mine = sum(kinds.values())
    needs, on_host = _beside(mine, world)
    if sum(needs) <= free:
        return
    if (
        away
        and mine - away <= SURE * free / len(needs)
        and away <= OF_HOST * host_bytes() / on_host
    ):
        return
    told = ", ".join(f"{name} {shown_bytes(size)}" for name, size in kinds.items() if size)
    shared = f"; {len(needs)} ranks share the GPU" if len(needs) > 1 else ""
    seen = f"{shown_bytes(mine)} predicted ({told}){shared}; {shown_bytes(free)} are free on it"
    if sum(needs) > _REFUSED * free:
        raise BudgetError(
            "The run does not fit on its GPU.",
            seen=f"{seen}, before anything is put there",
            fix=f"use {', or '.join(remedies)}",
        )
    say(f"The run may not fit on its GPU: {seen}. Less is needed with {', or '.join(remedies)}.")


def _beside(need: int, world: World) -> tuple[list[int], int]:
    """Return what each rank needs that has this rank's GPU, and how many ranks its host has.

    Every rank calls this together.
    """
    host, gpu = socket.gethostname(), name_of(world.device)
    found = [json.loads(text) for text in world.gather_texts(json.dumps([host, gpu, need]))]
    on_host = [(of, size) for at, of, size in found if at == host]
    return [int(size) for of, size in on_host if of == gpu], len(on_host)


@contextmanager
def held_to_budget(config: ResolvedConfig, world: World) -> Iterator[None]:
    """Have torch take no more of a GPU than `--memory` allows, what it keeps for later included.

    Counting alone would not do: the allocator keeps what is freed, in pieces that may not fit what
    is asked for next. With a limit it gives such pieces back before it asks for more.
    """
    if config.memory is None or world.device.type != "cuda":
        yield
        return
    total = torch.cuda.get_device_properties(world.device).total_memory
    known = getattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 1.0)
    before = float(known(world.device))
    share = min(before, read_bytes(config.memory) / total)
    torch.cuda.set_per_process_memory_fraction(share, world.device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, world.device)
