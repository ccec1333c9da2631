"""What the arrays and facts of a folder must be before anything is made of them.

Shapes and dtypes are checked from the manifest alone. Numbers that others are found by (rows,
offsets, classes) are checked while a file passes by for its checksum, once, in pieces: native code
reads and writes at them without looking.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from siafu.graph.array_stream import Array
from siafu.graph.folder import Check, Folder
from siafu.graph.manifest import MANIFEST, first_fault

INDEX = ("<i4", "<i8")
OFFSETS = ("<i8",)
INTEGERS = ("|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8")
UNSIGNED = ("|u1", "<u2", "<u4", "<u8")
FLOATS = ("<f4",)
REALS = ("<f4", "<f8")
BOOLS = ("|b1",)
BYTES = ("|u1",)


class Facts(BaseModel):
    """Facts of one kind of folder; others beside them are left alone."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


AnyFacts = TypeVar("AnyFacts", bound=Facts)


def read_facts(folder: Folder, model: type[AnyFacts]) -> AnyFacts:
    """Return the facts of a folder, refusing one that is missing or can't be."""
    try:
        return model.model_validate(folder.facts)
    except ValidationError as error:
        raise folder.damaged(MANIFEST, f"fact {first_fault(error)}") from error


@dataclass(frozen=True, slots=True)
class Column:
    """What one array must be; None in a shape stands for any number."""

    shape: tuple[int | None, ...]
    dtypes: tuple[str, ...]
    span: tuple[int, int] | None = None
    """The lowest and highest number allowed."""
    ends: int | None = None
    """For offsets, which never fall: the last one; the first is 0."""
    is_needed: bool = False

    def check(self) -> Check | None:
        """Return what looks at the numbers of this array, if they matter."""
        if self.ends is not None:
            return _Offsets(self.ends)
        return None if self.span is None else _Within(*self.span)


Columns = Mapping[str, Column]


def check_columns(folder: Folder, columns: Columns) -> None:
    """Raise unless the arrays that the manifest names have the right shapes and dtypes."""
    for name, column in columns.items():
        if name not in folder and not column.is_needed:
            continue
        entry = folder.entry(name)
        wanted = [size for size in column.shape]
        fits = len(entry.shape) == len(wanted) and all(
            size in (None, found) for size, found in zip(wanted, entry.shape, strict=True)
        )
        if not fits or entry.dtype not in column.dtypes:
            shape = ", ".join("any" if size is None else str(size) for size in wanted)
            seen = f"{entry.dtype} {list(entry.shape)} where {' or '.join(column.dtypes)} [{shape}]"
            raise folder.damaged(f"{name}.npy", f"{seen} is expected")


def verify_columns(folder: Folder, columns: Columns, *names: str) -> None:
    """Raise unless checksums are right and every number is in its range; each file is read once.

    Of `names` alone where some are given.
    """
    checks = {name: check for name, column in columns.items() if (check := column.check())}
    folder.verify(checks, names=names or None)


class _Within:
    """Numbers from `low` to `high`."""

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, high
        self._seen, self._fault = 0, None

    _fault: str | None

    def see(self, numbers: Array) -> None:
        """Look at the next piece."""
        if self._fault is None and len(numbers):
            low, high = int(numbers.min()), int(numbers.max())
            if low < self._low or high > self._high:
                where = int(np.argmin(numbers) if low < self._low else np.argmax(numbers))
                self._fault = (
                    f"number {self._seen + where} is {numbers[where]}, "
                    f"allowed are {self._low} to {self._high}"
                )
        self._seen += len(numbers)

    def fault(self) -> str | None:
        """Return the first number out of range."""
        return self._fault


class _Offsets:
    """Numbers from 0 to `ends` that never fall."""

    def __init__(self, ends: int) -> None:
        self._ends, self._last, self._seen = ends, 0, 0
        self._fault: str | None = None

    def see(self, numbers: Array) -> None:
        """Look at the next piece."""
        if not self._seen and len(numbers) and numbers[0] != 0:
            self._fault = f"it begins with {numbers[0]}, not with 0"
        if self._fault is None and len(numbers):
            falls = numbers[1:] < numbers[:-1]
            if numbers[0] < self._last or falls.any():
                at = 0 if numbers[0] < self._last else int(np.argmax(falls)) + 1
                before = self._last if at == 0 else numbers[at - 1]
                row = self._seen + at - 1
                self._fault = f"row {row} goes from {before} to {numbers[at]}, which is backwards"
            self._last = int(numbers[-1])
        self._seen += len(numbers)

    def fault(self) -> str | None:
        """Return where an offset is less than the one before, or the end that is wrong."""
        if self._fault is None and (not self._seen or self._last != self._ends):
            return f"it ends with {self._last}, there are {self._ends}"
        return self._fault


def counts_of(folder: Folder, name: str, parts: int, total: int) -> Array:
    """Return int64 [parts]: numbers from 0 that must add up to `total`."""
    counts: Array = np.array(folder.load(name))
    # Added up as Python's numbers, which do not overflow.
    found: list[Any] = counts.tolist()
    if len(found) != parts or min(found, default=0) < 0 or sum(found) != total:
        seen = f"{len(found)} counts from {min(found, default=0)} that add up to {sum(found)}"
        raise folder.damaged(f"{name}.npy", f"{seen}, expected {parts} that add up to {total}")
    return counts
