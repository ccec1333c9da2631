"""Targets of nodes and edges: checked, saved, loaded and cut with what they belong to."""

from pathlib import Path

import numpy as np
import pytest

from siafu.comm import World
from siafu.errors import DataError
from siafu.graph import (
    Graph,
    add_reverse_edges,
    check_graph,
    count_classes,
    draw_split,
    graph_from_edges,
    load_store,
    save_store,
)
from siafu.partitioning import partition_graph
from siafu.shard import open_shard
from tests.harness import RankPool

N = 30


def graph(**columns) -> Graph:
    """Return a ring whose edge from v carries the numbers v of target, class and split."""
    src = np.arange(N)
    settings = {
        "y": np.stack([src, -2.0 * src], axis=1).astype(np.float32),
        "target_names": ("price", "loss"),
        "edge_y": src % 3,
        "num_edge_classes": 3,
        "edge_class_names": ("a", "b", "c"),
        "edge_split": (src % 3 + 1).astype(np.uint8),
    }
    return graph_from_edges(src, (src * 7 + 1) % N, N, **{**settings, **columns})


def edge_numbers() -> np.ndarray:
    return np.stack([np.arange(N), np.full(N, np.nan)], axis=1).astype(np.float32)


@pytest.mark.parametrize("numbers", [False, True])
def test_a_store_keeps_targets_of_nodes_and_edges(tmp_path: Path, numbers: bool) -> None:
    changed = {"edge_y": edge_numbers(), "edge_target_names": ("fee", "tip")}
    changed |= {"num_edge_classes": 0, "edge_class_names": ()}
    made = graph(**changed) if numbers else graph()
    save_store(made, tmp_path / "g.store")
    found = load_store(tmp_path / "g.store")
    for name in ("y", "edge_y", "edge_split"):
        np.testing.assert_array_equal(getattr(found, name), getattr(made, name))
    for name in ("target_names", "edge_class_names", "edge_target_names", "num_edge_classes"):
        assert getattr(found, name) == getattr(made, name)
    assert (found.num_targets, found.is_multi_label) == (2, False)


def held(world: World, folder: Path) -> list[tuple[float, ...]]:
    shard = open_shard(folder, world)

    assert shard.target_names == ("price", "loss")
    assert shard.edge_class_names == ("a", "b", "c")
    np.testing.assert_array_equal(shard.y[:, 0].cpu(), shard.row_ids.cpu())
    source, _ = shard.edge_index
    return list(
        zip(
            shard.column_ids[source].tolist(),
            shard.edge_y.tolist(),
            shard.edge_split.tolist(),
            strict=True,
        )
    )


def test_parts_keep_the_targets_of_their_edges(ranks: RankPool, tmp_path: Path) -> None:
    partition_graph(graph(), tmp_path / "p", num_parts=3)
    found = sorted(row for rows in ranks.run(held, 3, tmp_path / "p") for row in rows)
    assert found == [(v, v % 3, v % 3 + 1) for v in range(N)]


def test_masks_are_drawn_among_nodes_that_have_a_number() -> None:
    y = np.full((N, 2), np.nan, np.float32)
    y[:10, 1] = 1
    drawn = draw_split(graph(y=y), "0.5,0.2", seed=0)
    assert drawn.train.sum() == 5
    assert not drawn.train[10:].any()
    check_graph(drawn)


def test_nodes_of_several_labels_may_have_unknown_ones(tmp_path: Path) -> None:
    y = (np.arange(N * 2).reshape(N, 2) % 2).astype(np.uint8)
    y[5:] = 255
    whole = graph(y=y, target_names=(), num_classes=2)
    drawn = draw_split(whole, "0.6,0.2", seed=0)
    assert not (drawn.train | drawn.val | drawn.test)[5:].any()
    assert count_classes([y], 2) == [0, 5]
    save_store(drawn, tmp_path / "s")
    np.testing.assert_array_equal(load_store(tmp_path / "s").y, y)
    y[7, 1] = 1
    with pytest.raises(DataError, match="of node 7 where 0 to 1 are allowed"):
        check_graph(drawn)
    y[7] = 255
    with pytest.raises(DataError, match="have no label"):
        check_graph(drawn.with_masks(np.arange(N) == 7, drawn.val, drawn.test))


def test_an_added_reverse_edge_is_not_asked_again() -> None:
    both = add_reverse_edges(graph())
    assert both.num_edges > N
    assert (both.edge_y >= 0).sum() == (both.edge_split > 0).sum() == N


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"y": np.full((N, 2), np.inf, np.float32)}, "A target is infinite"),
        ({"target_names": ("price",)}, "names do not fit the targets"),
        ({"edge_class_names": ("a",)}, "names do not fit the edge class"),
        ({"edge_y": np.full(N, 3)}, "A label is out of range"),
        ({"edge_y": np.zeros(N, np.float32)}, "neither classes nor numbers"),
        ({"edge_y": None}, "no edge has one"),
        ({"edge_y": np.full(N, -1)}, "An edge is in a split"),
        ({"edge_split": np.full(N, 4, np.uint8)}, "An edge is in a split"),
        (
            {"y": np.full((N, 2), np.nan, np.float32), "val": np.ones(N, bool)},
            "Nodes of the val mask have no label",
        ),
    ],
)
def test_targets_that_cannot_be_learnt_are_refused(change, told: str) -> None:
    with pytest.raises(DataError, match=told):
        check_graph(graph(**change))
