"""Arrays of foreign files and objects, checked before anything is made of them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil

from siafu.errors import DataError
from siafu.graph import Array, Ids, IntegerIds, TextIds
from siafu.ingest.id_rows import rows_of

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
        rows_of(ids)
    return ids


def check_num_nodes(where: Path | str, num_nodes: int) -> None:
    """Raise where the nodes alone would not fit in memory, before anything is made for them."""
    need, free = _NODE_BYTES * num_nodes, int(psutil.virtual_memory().available)
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
