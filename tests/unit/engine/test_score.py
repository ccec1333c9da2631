"""Scores over ranks against a count by hand."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from siafu.comm import World
from siafu.engine.metrics import node_answers, scores_of
from siafu.engine.scores import gather_rows, training_loss
from siafu.graph import Graph, graph_from_edges
from siafu.partitioning import assign_hash, write_parts
from siafu.shard import HeldRows, open_shard
from tests.harness import RankPool

NUM_NODES = 37


def graph(y: np.ndarray, num_classes: int) -> Graph:
    generator = np.random.default_rng(3)
    ends = generator.integers(0, NUM_NODES, (2, 80))
    kind = generator.permutation(np.arange(NUM_NODES) % 4)
    masks = {"train": kind < 2, "val": kind == 2, "test": kind == 3}
    return graph_from_edges(*ends, NUM_NODES, y=y, num_classes=num_classes, **masks)


def make_parts(root: Path, whole: Graph, size: int) -> Path:
    part_of = assign_hash(whole, size, seed=0) if size > 1 else np.zeros(NUM_NODES, np.int32)
    write_parts(whole, part_of, root / f"{size}", num_parts=size, method="hash", seed=0)
    return root / f"{size}"


def logits(num_classes: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    # Coarse values, so that some are equal: ties are where rankings go wrong.
    return torch.randint(-3, 4, (NUM_NODES, num_classes), generator=generator).float()


def score(world: World, folder: Path, num_classes: int, metric: str) -> tuple[dict, float]:
    shard = open_shard(folder, world)
    owned = logits(num_classes)[shard.row_ids]
    loss = sum(
        row[0] for row in world.gather_numbers([float(training_loss(owned[shard.train], shard))])
    )
    found = scores_of(node_answers(HeldRows(owned), shard), (metric,))
    return {split: row[metric] for split, row in found.items()}, loss


SIZES = [1, 3]


@pytest.mark.parametrize("size", SIZES)
def test_accuracy_is_the_share_of_right_answers(ranks: RankPool, tmp_path, size: int) -> None:
    y = np.random.default_rng(1).integers(0, 3, NUM_NODES)
    whole = graph(y, 3)
    said = logits(3).argmax(dim=1).numpy()
    want = {name: (said == y)[getattr(whole, name)].mean() for name in ("train", "val", "test")}
    loss = torch.nn.functional.cross_entropy(logits(3)[whole.train], torch.tensor(y[whole.train]))
    for got, total in ranks.run(score, size, make_parts(tmp_path, whole, size), 3, "accuracy"):
        assert got == pytest.approx(want)
        assert total == pytest.approx(float(loss), rel=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_multi_label_score_is_micro_f1(ranks: RankPool, tmp_path, size: int) -> None:
    y = np.random.default_rng(2).integers(0, 2, (NUM_NODES, 4)).astype(np.uint8)
    whole = graph(y, 4)
    said = (logits(4) > 0).numpy()
    want = {}
    for name in ("train", "val", "test"):
        rows = getattr(whole, name)
        hits = (said[rows] & (y[rows] > 0)).sum()
        precision, recall = hits / said[rows].sum(), hits / y[rows].sum()
        want[name] = 2 * precision * recall / (precision + recall)
    target = torch.tensor(y[whole.train]).float()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits(4)[whole.train], target)
    for got, total in ranks.run(score, size, make_parts(tmp_path, whole, size), 4, "micro-f1"):
        assert got == pytest.approx(want)
        assert total == pytest.approx(float(loss), rel=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_roc_auc_counts_pairs_in_the_right_order(ranks: RankPool, tmp_path, size: int) -> None:
    y = np.random.default_rng(4).integers(0, 2, NUM_NODES)
    whole = graph(y, 2)
    margin = (logits(2)[:, 1] - logits(2)[:, 0]).numpy()
    want = {}
    for name in ("train", "val", "test"):
        rows = np.flatnonzero(getattr(whole, name))
        pairs = list(product(rows[y[rows] == 1], rows[y[rows] == 0]))
        points = [
            1.0 if margin[p] > margin[n] else 0.5 if margin[p] == margin[n] else 0.0
            for p, n in pairs
        ]
        want[name] = sum(points) / len(points)
    for got, _ in ranks.run(score, size, make_parts(tmp_path, whole, size), 2, "roc-auc"):
        assert got == pytest.approx(want)


def test_mask_without_nodes_scores_zero(tmp_path: Path) -> None:
    whole = graph(np.zeros(NUM_NODES, np.int64), 3)
    none = np.zeros(NUM_NODES, bool)
    whole = whole.with_masks(whole.train, none, none)
    got, _ = score(World(), make_parts(tmp_path, whole, 1), 3, "accuracy")
    assert (got["val"], got["test"]) == (0.0, 0.0)


def gathered(world: World) -> list[list[float]]:
    return gather_rows(torch.full((world.rank, 2), float(world.rank)), world).tolist()


def test_rows_are_gathered_by_rank_also_from_ranks_without_any(ranks: RankPool) -> None:
    assert ranks.run(gathered, 3) == [[[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]] * 3
