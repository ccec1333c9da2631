"""Columns that say which split a node is in: words, or three columns of true and false."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from siafu.errors import DataError
from siafu.graph import MASKS, Array
from siafu.graph.columns import known_rows
from siafu.ingest.tables.columns import is_list, is_numeric, is_text, number_block
from siafu.ingest.tables.files import Piece
from siafu.record import suggestion

_MASK_OF_WORD = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "development": "val",
    "test": "test",
    "testing": "test",
}
_SPLIT_NAME = re.compile(r"(.*[_\s.-])?(fold|split|set|subset|partition|phase)")


class Masks(Protocol):
    """Reads which split each node of a piece is in."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        ...

    def read(self, piece: Piece) -> list[Array]:
        """Return the train, val and test masks of a piece."""
        ...


@dataclass(frozen=True, slots=True)
class SplitWords:
    """A column of words: train, val (or valid), test, or nothing."""

    columns: tuple[str]

    def read(self, piece: Piece) -> list[Array]:
        """Return the train, val and test masks of a piece."""
        column = piece.column(self.columns[0])
        if not (is_text(column.type) or pa.types.is_null(column.type)):
            raise DataError(
                "The column of splits holds no words.",
                seen=f"column {self.columns[0]!r} of {piece.file} is {column.type}",
                fix="write train, val or test in it, or leave a cell empty",
            )
        encoded = column.cast(pa.large_string()).dictionary_encode()
        words = [self._mask_of(word) for word in encoded.dictionary.to_pylist()]
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        chosen = np.array([*words, ""])[codes]
        return [chosen == name for name in MASKS]

    def _mask_of(self, word: str) -> str:
        mask = _MASK_OF_WORD.get(word.strip().lower(), "")
        if not mask and word.strip():
            raise DataError(
                "A split is not understood.",
                seen=f"{word!r} in column {self.columns[0]!r}",
                fix=f"{suggestion(word, _MASK_OF_WORD)}use train, val or test, or leave it empty",
            )
        return mask


@dataclass(frozen=True, slots=True)
class SplitFlags:
    """Three columns of true and false."""

    columns: tuple[str, str, str]

    def read(self, piece: Piece) -> list[Array]:
        """Return the train, val and test masks of a piece."""
        flags = [number_block(piece, [name])[:, 0] != 0 for name in self.columns]
        twice = sum(flag.astype(np.int8) for flag in flags) > 1
        if np.any(twice):
            raise DataError(
                "A node is in two splits.",
                seen=piece.where(int(np.argmax(twice))),
                fix="put each node into at most one of train, val and test",
            )
        return flags


def find_masks(schema: pa.Schema, column: str | None) -> Masks | None:
    """Return the reader of the splits that were named, or that the columns' names tell."""
    if column is not None:
        return SplitWords((column,))
    if "split" in schema.names and not is_numeric(schema.field("split").type):
        return SplitWords(("split",))
    for ending in ("", "_mask"):
        train, val, test = (name + ending for name in MASKS)
        if all(name in schema.names and _is_flag(schema, name) for name in (train, val, test)):
            return SplitFlags((train, val, test))
    return None


def looks_like_split(name: str, words: Sequence[str]) -> bool:
    """Return whether the texts of a column are names of splits and nothing else.

    Where the first rows are all of one split, the column has to be called one.
    """
    masks = {_MASK_OF_WORD.get(word.strip().lower(), "") for word in words if word.strip()}
    if not masks or "" in masks:
        return False
    return ("train" in masks and len(masks) > 1) or bool(_SPLIT_NAME.fullmatch(name.lower()))


def split_codes(masks: list[Array], targets: Array) -> Array:
    """Return uint8: 1, 2 or 3 for edges of train, val and test, 0 for those without a target."""
    sides = sum(number * mask.astype(np.uint8) for number, mask in enumerate(masks, start=1))
    return np.where(known_rows(targets), sides, 0).astype(np.uint8)


def _is_flag(schema: pa.Schema, name: str) -> bool:
    kind = schema.field(name).type
    return is_numeric(kind) and not is_list(kind)
