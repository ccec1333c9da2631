"""A rank opens its part: where that goes, whether it fits there, and for how many threads."""

from collections.abc import Callable
from typing import Literal

from siafu.comm import World
from siafu.config import ResolvedConfig
from siafu.engine.device_memory import naming_what_is_held
from siafu.engine.forecast import HELD_SHARE
from siafu.launch.device_room import check_room
from siafu.launch.out_of_memory import note_held
from siafu.ops import num_threads, set_threads
from siafu.shard import Shard, open_shard, part_bytes

_ELEMENTS_A_THREAD = 4_000_000
"""Numbers a layer must touch before another thread is worth waking: about a millisecond of work."""


def open_part(
    config: ResolvedConfig, parts: str, world: World, say: Callable[[str], None], *, trains: bool
) -> Shard:
    """Return this rank's shard, where its strategy reads it; every rank calls this together."""
    place = _place(config, parts, world)
    if place == "device":
        check_room(config, parts, world, say, trains=trains)
    loading = "what was loaded of the part"
    with naming_what_is_held(world.device, config.chosen.unit, dict, rest=loading):
        shard = open_shard(parts, world, place=place, memory_bytes=config.memory_bytes)
    note_held(world)
    if not config.threads:
        # Threads that wait for each other at every small operation only slow it down, all the
        # more when other programs want the cores.
        elements = (shard.num_owned + shard.csr.num_edges) * config.hidden
        set_threads(min(num_threads(), 1 + elements // _ELEMENTS_A_THREAD))
    return shard


def _place(config: ResolvedConfig, parts: str, world: World) -> Literal["device", "host", "disk"]:
    """Return where a rank's edges and features lie: minibatches read few of them at a time."""
    if config.chosen.unit != "macrobatch":
        return "device"
    if config.memory_bytes is None:
        return "host"
    sizes = [float(part_bytes(parts, world.rank))]
    largest = max(row[0] for row in world.gather_numbers(sizes))
    return "disk" if largest > HELD_SHARE * config.memory_bytes else "host"
