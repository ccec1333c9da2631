"""Minibatches of sparse features, which stay sparse: equal to the full graph, and on any ranks."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from siafu.comm import World
from siafu.graph import SparseFeatures
from siafu.partitioning import write_parts
from tests.harness import RankPool
from tests.parity.graphs import assignment, awkward_graph
from tests.parity.minibatch_steps import joined_logits, run_epochs
from tests.parity.test_minibatch import (
    EVERYTHING,
    EXACT,
    SAMPLED,
    _run_double,
    alone,
    assert_identical,
)

WIDTH = 50


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The awkward graph with a few words a node, in 1, 2 and 3 parts."""
    graph = awkward_graph(weighted=True)
    draw = np.random.default_rng(3)
    counts = draw.integers(0, 6, graph.num_nodes)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    index = draw.integers(0, WIDTH, indptr[-1]).astype(np.int32)
    value = draw.uniform(0.5, 2.0, indptr[-1]).astype(np.float32)
    graph = replace(graph, x=SparseFeatures(indptr, index, value, WIDTH))
    root = tmp_path_factory.mktemp("words")
    for size in (1, 2, 3):
        part_of = assignment(graph, "hash", size)
        target = root / str(size)
        write_parts(graph, part_of, target, num_parts=size, method="hash", seed=0)
    return {size: root / str(size) for size in (1, 2, 3)}


@pytest.mark.parametrize(
    ("size", "changes"),
    [
        (2, {}),
        (3, {"hot_rows": "1KB", "normalize_features": True}),
        (3, {"model": "gcn"}),
        (2, {"model": "gat"}),
    ],
)
def test_ranks_and_macrobatches_change_no_bit(ranks: RankPool, parts, size, changes) -> None:
    settings = SAMPLED | {"model": "sage"} | changes
    reference = {name: value for name, value in settings.items() if name != "hot_rows"}
    want = alone(parts[1], *(reference | {"macrobatch": "1"}).items())
    got = ranks.run(run_epochs, size, parts[size], settings | {"macrobatch": "8"})
    assert_identical(got, want)
    torch.testing.assert_close(joined_logits(got), joined_logits([want]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model", ["gcn", "sage", "gin", "gat", "sage-max", "rgcn"])
def test_all_neighbours_of_everything_are_the_full_graph(ranks: RankPool, parts, model) -> None:
    settings = {"model": model, "hidden": 8, "heads": 2, "dropout": 0.0, "norm": "none"}
    want = run_epochs(World(), parts[1], settings, double=True)
    for one in ranks.run(_run_double, 2, parts[2], settings | EVERYTHING):
        torch.testing.assert_close(one["losses"], want["losses"], **EXACT)
        for name in want["grads"]:
            torch.testing.assert_close(one["grads"][name], want["grads"][name], **EXACT)
