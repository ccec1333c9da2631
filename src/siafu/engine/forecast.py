"""Whether a run fits into its memory, told from counts alone: before the graph is cut."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from siafu.comm import choose_device
from siafu.config import RunConfig
from siafu.errors import BudgetError, SiafuError
from siafu.nn import ModelSpec
from siafu.options import read_bytes
from siafu.plan import (
    PROCESS_BYTES,
    ROW_BYTES,
    RUNTIME_BYTES,
    Sizes,
    candidates,
    held_kinds,
    least_sampled_bytes,
    predict_bytes,
    weight_bytes,
)
from siafu.strategy import Strategy, group_rounds, smallest_piece

HELD_SHARE = 0.4
"""Of a memory budget, what edges and features may take before those of minibatches stay on disk."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What a rank's share of a graph is, as equal as shares can be."""

    rows: int
    edges: int
    row_bytes: int
    """Of the features of a node."""
    edge_bytes: int
    """Of an edge with its weight, type and features."""
    ranks: int

    @property
    def data_bytes(self) -> int:
        """Edges and features, which minibatches may leave on disk."""
        return self.rows * self.row_bytes + self.edges * self.edge_bytes

    @property
    def random_halo(self) -> int:
        """Rows of other ranks that a cut at random would have this one read."""
        others = self.rows * (self.ranks - 1)
        crossing = self.edges * (self.ranks - 1) / self.ranks
        return round(others * -math.expm1(-crossing / others)) if others else 0


def check_before_cut(config: RunConfig, spec: ModelSpec, counts: Counts) -> None:
    """Raise where full-graph training can't fit into its budget, however well the graph is cut."""
    strategy = config.chosen
    if config.memory is None or strategy.unit != "graph":
        return
    if choose_device(config.device, 0).type == "cuda":
        return
    budget = read_bytes(config.memory)
    least = min(_needs(config, spec, counts, strategy, halo=0))
    if least <= budget:
        return
    most = min(_needs(config, spec, counts, strategy, halo=counts.random_halo))
    more = f" (up to {most / 1e9:.2f} GB where it can't be cut well)" if counts.ranks > 1 else ""
    raise BudgetError(
        "The memory budget is too small for this model on so many ranks.",
        seen=f"--memory {config.memory}; a rank needs about {least / 1e9:.2f} GB at least{more}, "
        "told before the graph is cut",
        fix=f"{minibatch_remedy(config, spec, counts)}give --memory {_told(most)}GB, use more "
        "ranks, or a narrower model",
    )


def minibatch_remedy(config: RunConfig, spec: ModelSpec, counts: Counts) -> str:
    """Return advice to train on minibatches, where that fits into the budget; else nothing."""
    assert config.memory is not None
    # What belongs to full-graph training means nothing there.
    changes = {"strategy": "batchgnn", "stages": None, "recompute": None, "prune": None}
    try:
        _ = config.model_copy(update=changes).chosen
    except SiafuError:
        return ""
    need = sampled_bytes(config, spec, counts)
    if need > read_bytes(config.memory) or config.norm == "batch":
        return ""
    return f"use --strategy batchgnn (minibatches, about {need / 1e9:.2f} GB), "


def sampled_bytes(config: RunConfig, spec: ModelSpec, counts: Counts) -> float:
    """Return what a rank needs at least to train on minibatches."""
    assert config.memory is not None
    on_disk = counts.data_bytes > HELD_SHARE * read_bytes(config.memory)
    held = counts.rows * ROW_BYTES + 8 * counts.random_halo
    held += 0 if on_disk else counts.data_bytes
    nodes = counts.rows * counts.ranks
    return PROCESS_BYTES + held + least_sampled_bytes(config, spec, nodes)


def _needs(
    config: RunConfig, spec: ModelSpec, counts: Counts, named: Strategy, *, halo: int
) -> Iterator[float]:
    """Yield what a rank needs with each choice, where it reads so many rows of others."""
    held = RUNTIME_BYTES + sum(held_kinds(counts.rows, halo, 0, counts.data_bytes).values())
    held += weight_bytes(spec)
    ranks = counts.ranks
    for candidate in candidates(named, config, ranks):
        sizes = Sizes(counts.rows, counts.edges, halo, halo, 0, min(1, ranks - 1))
        if halo:
            share = halo // (ranks - 1)
            table = [[0 if p == q else share for q in range(ranks)] for p in range(ranks)]
            piece = smallest_piece([counts.rows] * ranks)
            groups = group_rounds(table, min(candidate.stages_of(ranks), ranks), piece)
            tall = [sum(share / part.of for part in group) for group in groups]
            sizes = replace(sizes, largest_stage=round(max(tall)), stages=len(groups))
        yield held + predict_bytes(spec, sizes, candidate)


def _told(need: float) -> str:
    return f"{math.ceil(1.05 * need / 1e7) / 100:.2f}"
