"""Masks drawn where the data has none, those it has without bare vertices, and notes on both."""

from itertools import combinations

import numpy as np

from siafu.errors import DataError
from siafu.graph import MASKS, Array, Graph, draw_split

DEFAULT_SPLIT = "0.6,0.2"


def with_split(graph: Graph, split: str | None, seed: int) -> tuple[Graph, list[str]]:
    """Return the graph with masks, drawn where it has none or where a split is asked for."""
    has_masks = all(getattr(graph, name) is not None for name in MASKS)
    if has_masks and split is None:
        return graph, []
    if graph.y is None and split is None:
        return graph, ["No labels in the data, so no masks were drawn."]
    graph = draw_split(graph, split or DEFAULT_SPLIT, seed)
    why = f"Split {split} was asked for, so the masks in the data are not used"
    return graph, [f"{why if has_masks else 'No masks in the data'}: drew {_sizes(graph, seed)}"]


def labelled_only(masks: dict[str, Array], y: Array | None) -> tuple[dict[str, Array], list[str]]:
    """Return the masks without nodes that have no label, and a note where there were some.

    Raises where a node is in two of them.
    """
    _check_apart(masks)
    # Masks of a wrong length are left for check_graph to name.
    if y is None or y.ndim != 1 or any(mask.shape != y.shape for mask in masks.values()):
        return masks, []
    labelled = y >= 0
    in_a_split = np.any([np.zeros_like(labelled), *masks.values()], axis=0)
    bare = int(np.count_nonzero(in_a_split & ~labelled))
    if not bare:
        return masks, []
    who = "1 vertex has" if bare == 1 else f"{bare:,} vertices have"
    note = f"{who} a split but no label: left out of the masks."
    return {name: mask & labelled for name, mask in masks.items()}, [note]


def _check_apart(masks: dict[str, Array]) -> None:
    for first, second in combinations(masks, 2):
        if masks[first].shape != masks[second].shape:
            continue
        both = masks[first] & masks[second]
        if both.any():
            raise DataError(
                "A node is in two splits.",
                seen=f"{int(both.sum()):,} nodes are in {first} and in {second}, the first in row "
                f"{int(np.argmax(both))}",
                fix="put each node into at most one of train, val and test, or draw masks anew: "
                "leave them out of the data and use --split 0.6,0.2",
            )


def _sizes(graph: Graph, seed: int) -> str:
    counts = [int(mask.sum()) for mask in (graph.train, graph.val, graph.test) if mask is not None]
    shares = "/".join(f"{100 * count / max(1, sum(counts)):.0f}" for count in counts)
    numbers = "/".join(f"{count:,}" for count in counts)
    return f"{shares} % ({numbers} vertices) from seed {seed}."
