"""Ranks in a grid: each holds some snapshots (a stretch of every time block) of some vertices."""

from dataclasses import dataclass

from siafu.comm import World
from siafu.errors import ConfigError
from siafu.graph import DynamicGraph
from siafu.shard import VertexShare


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """This rank's place, among those with its vertices and among those with its snapshots."""

    world: World
    """All ranks."""
    times: World
    """The ranks with the same vertices, in order of time: rows travel along time among them."""
    share: VertexShare
    """The vertices, and the ranks with the same snapshots: halo rows travel among those."""


def make_grid(world: World, graph: DynamicGraph, num_parts: int) -> Grid:
    """Return this rank's place; ranks that share snapshots follow one another."""
    if num_parts == 1:
        share = VertexShare(graph.num_nodes, World(device=world.device))
        return Grid(world, world, share)
    assert graph.part_of is not None, "vertices are cut before a run starts"
    check_grid(world.size, num_parts)
    stretch, part = divmod(world.rank, num_parts)
    times = world.part(range(part, world.size, num_parts))
    vertices = world.part(range(stretch * num_parts, (stretch + 1) * num_parts))
    return Grid(world, times, VertexShare(graph.num_nodes, vertices, graph.part_of))


def check_grid(num_ranks: int, num_parts: int) -> None:
    """Raise unless every group of vertices gets as many ranks."""
    if num_ranks % num_parts:
        raise ConfigError(
            "The ranks can't be shared out among groups of nodes.",
            seen=f"--ranks {num_ranks} --node-parts {num_parts}",
            fix="use a number of ranks that the groups divide",
        )
