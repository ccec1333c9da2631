"""Arrays and masks of foreign data, checked before use; masks drawn where the data has none."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from siafu.errors import DataError
from siafu.graph import MASKS, Array, Graph, Ids, IntegerIds, TextIds, draw_split
from siafu.graph.columns import known_rows
from siafu.ingest.tables.ids import index_ids
from siafu.memory import free_bytes

Noted = tuple[Graph, list[str]]
"""A graph, and sentences for the user on what was done to the data."""

MOST_CLASSES = 1_000_000
"""More classes than this are no classes, but ids or codes taken for them."""
_NODE_BYTES = 64
_WORDS = {
    "b": "booleans",
    "i": "whole numbers",
    "u": "whole numbers",
    "f": "numbers",
    "U": "text",
    "S": "text",
}
DEFAULT_SPLIT = "0.6,0.2"


def check_array(
    where: Path | str, name: str, array: Array, *, kinds: str = "iufb", ndims: Sequence[int] = (1,)
) -> None:
    """Raise unless the array has one of these kinds (numpy's letters) and numbers of dimensions."""
    if array.dtype.kind in kinds and array.ndim in ndims:
        return
    words = " or ".join(dict.fromkeys(_WORDS[kind] for kind in kinds))
    shapes = " or ".join(str(ndim) for ndim in ndims)
    raise DataError(
        f"{name} has the wrong shape or type.",
        seen=f"{where}: {name} is {array.dtype} {array.shape}",
        fix=f"save {words}, in {shapes} dimension{'' if list(ndims) == [1] else 's'}",
    )


def whole_number(where: Path | str, name: str, array: Array, *, lowest: int = 0) -> int:
    """Return an array of one entry as a whole number; raise where it is none, or too small."""
    is_one = array.size == 1 and array.dtype.kind in "iufb"
    value = array.reshape(-1)[0] if is_one else None
    if value is None or not np.isfinite(value) or int(value) != value or value < lowest:
        shown = f"{array.dtype} {array.shape}" if value is None else str(value)
        raise DataError(
            f"{name} is no whole number from {lowest} on.",
            seen=f"{where}: {name} is {shown}",
            fix=f"save one whole number as {name}, or leave it out",
        )
    return int(value)


def check_finite(where: Path | str, name: str, array: Array) -> None:
    """Raise where an entry is NaN or infinite."""
    finite = np.isfinite(array)
    if not finite.all():
        place = tuple(int(at[0]) for at in np.nonzero(~finite))
        raise DataError(
            f"A value of {name} is NaN or infinite.",
            seen=f"{where}: {array[place]} at {list(place)}",
            fix="fill or drop such values before ingesting",
        )


def as_mask(where: Path | str, name: str, array: Array) -> Array:
    """Return a mask as booleans; raise where it holds something else than 0 and 1."""
    check_array(where, name, array)
    if array.dtype.kind != "b" and np.any((array != 0) & (array != 1)):
        raise DataError(
            "A mask holds something else than true and false.",
            seen=f"{where}: {name} is {array.dtype} with other values than 0 and 1",
            fix=f"save {name} as booleans, one per node",
        )
    return array.astype(bool)


def as_int64(where: Path | str, name: str, array: Array) -> Array:
    """Return whole numbers as int64; raise where one does not fit."""
    if array.dtype.kind == "u" and array.size and int(array.max()) >= 2**63:
        raise DataError(
            f"A number of {name} is too large.",
            seen=f"{where}: {int(array.max())}",
            fix="use numbers below 2^63",
        )
    return array.astype(np.int64, copy=False)


def given_ids(where: Path | str, name: str, array: Array, num_nodes: int) -> Ids:
    """Return the user's ids of the nodes, whole numbers or text; raise where one is there twice."""
    check_array(where, name, array, kinds="iuU")
    if len(array) != num_nodes:
        raise DataError(
            f"{name} does not fit the nodes.",
            seen=f"{where}: {len(array)} ids, {num_nodes} nodes",
            fix="save one id per node",
        )
    ids: Ids
    if array.dtype.kind == "U":
        ids = TextIds.from_strings(array.tolist())
    else:
        ids = IntegerIds(as_int64(where, name, array))
    if num_nodes:
        index_ids(ids)
    return ids


def check_num_nodes(where: Path | str, num_nodes: int) -> None:
    """Raise where the nodes alone would not fit in memory, before anything is made for them."""
    need, free = _NODE_BYTES * num_nodes, free_bytes()
    if need > free:
        raise DataError(
            "The graph has more nodes than fit in memory.",
            seen=f"{where}: {num_nodes:,} nodes need some {need:,} bytes, {free:,} are available",
            fix="number the nodes 0 to N-1 without gaps, or use a machine with more memory",
        )


def check_num_classes(where: Path | str, num_classes: int) -> None:
    """Raise where there are too many classes for labels to be classes."""
    if num_classes > MOST_CLASSES:
        raise DataError(
            "There are too many classes.",
            seen=f"{where}: {num_classes:,}, from the largest label or num_classes",
            fix=f"number the classes from 0 without gaps, at most {MOST_CLASSES:,} of them",
        )


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


def as_targets(y: Array) -> Array:
    """Return numbers to be told as float32 [N, T], NaN for none."""
    return (y[:, None] if y.ndim == 1 else y).astype(np.float32, copy=False)


def labelled_only(masks: dict[str, Array], y: Array | None) -> tuple[dict[str, Array], list[str]]:
    """Return the masks without nodes that have no label, and a note where there were some.

    Raises where a node is in two of them.
    """
    _check_apart(masks)
    # Masks of a wrong length are left for check_graph to name.
    if y is None or any(mask.shape != y.shape[:1] for mask in masks.values()):
        return masks, []
    labelled = known_rows(y)
    in_a_split = np.any([np.zeros_like(labelled), *masks.values()], axis=0)
    bare = int(np.count_nonzero(in_a_split & ~labelled))
    if not bare:
        return masks, []
    who = "1 node has" if bare == 1 else f"{bare:,} nodes have"
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
    return f"{shares} % ({numbers} nodes) from seed {seed}."
