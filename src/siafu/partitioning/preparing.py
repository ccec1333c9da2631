"""Columns of a table as a model takes them, row by row: filled, flagged, one-hot, scaled.

Shapes: n rows of a piece, R columns of the table at hand, W prepared ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import numpy as np

from siafu.errors import DataError
from siafu.graph import Array, FeatureColumn
from siafu.partitioning.fitting import values_of
from siafu.record import shortened, suggestion

_LARGEST = float(np.finfo(np.float32).max)
_SHOWN = 8
_NUMBERS_AT_ONCE = 1 << 17


class Preparation:
    """Fitted columns applied, by name, to a table that may have them in another order."""

    def __init__(
        self,
        fitted: Sequence[FeatureColumn],
        given: Sequence[FeatureColumn],
        num_rows: int,
        where: str = "the data",
        unused: Mapping[str, str] | None = None,
    ) -> None:
        """Find the columns in a table of `num_rows` rows; `unused` has others of it, with why."""
        place = {column.name: k for k, column in enumerate(given)}
        used = [column for column in fitted if column.is_written or column.is_flagged]
        _check_missing(used, list(place), unused or {}, where)
        pairs = [(column, given[place[column.name]]) for column in used]
        # Where a column holds nothing at all, its kind is anybody's guess.
        _check_kinds([pair for pair in pairs if pair[1].gaps < num_rows], where)
        self.names = tuple(name for column in used for name in column.prepared_names())
        self.extra = tuple(name for name in place if name not in {c.name for c in fitted})
        places = _starts(used)
        self._numbers = _Numbers(
            [
                (*pair, place[pair[0].name], places[k])
                for k, pair in enumerate(pairs)
                if _is_number(pair[0])
            ]
        )
        self._categories = [
            (place[column.name], places[k], _Category(column, own))
            for k, (column, own) in enumerate(pairs)
            if not _is_number(column)
        ]

    def apply(self, raw_nR: Array) -> Array:
        """Return float32 [n, W]; each row depends on itself alone, and none has a gap."""
        out_nW = np.zeros((len(raw_nR), len(self.names)), np.float32)
        # Few rows at a time stay in the processor's cache while their columns are gone through.
        step = max(1, _NUMBERS_AT_ONCE // max(1, out_nW.shape[1], raw_nR.shape[1]))
        for low in range(0, len(raw_nR), step):
            raw, out = np.asarray(raw_nR[low : low + step]), out_nW[low : low + step]
            self._numbers.write(raw, out)
            for place, start, column in self._categories:
                column.write(raw[:, place], out[:, start:])
        return out_nW

    def count_unseen(self, pieces: Iterable[Array]) -> dict[str, int]:
        """Return, by column, how many rows have a category that no training row had."""
        counts: dict[str, int] = {}
        watched = [(k, column) for k, _, column in self._categories if column.may_be_new]
        for piece in pieces if watched else ():
            for place, column in watched:
                new = column.count_new(np.asarray(piece[:, place]))
                counts[column.name] = counts.get(column.name, 0) + new
        return {name: count for name, count in counts.items() if count}


class _Numbers:
    """Numbers, booleans and dates, all at once: a column each, and one that flags its gaps.

    K such columns; each comes as (fitted, given, its place in the table, its place prepared).
    """

    def __init__(self, columns: Sequence[tuple[FeatureColumn, FeatureColumn, int, int]]) -> None:
        self._take = np.array([place for _, _, place, _ in columns], np.int64)
        # Text that is used as numbers has to be read first.
        self._read = [(k, own) for k, (_, own, _, _) in enumerate(columns) if own.categories]
        learnt = [fitted.learnt for fitted, _, _, _ in columns if fitted.learnt is not None]
        self._fill = np.array([float(one.fill) for one in learnt])
        self._centre = np.array([one.centre for one in learnt])
        self._spread = np.array([one.spread for one in learnt])
        written = [(k, to) for k, (one, _, _, to) in enumerate(columns) if one.is_written]
        flagged = [
            (k, to + one.is_written) for k, (one, _, _, to) in enumerate(columns) if one.is_flagged
        ]
        self._written, self._written_to = np.array(written, np.int64).reshape(-1, 2).T
        self._flagged, self._flagged_to = np.array(flagged, np.int64).reshape(-1, 2).T

    def write(self, raw_nR: Array, out_nW: Array) -> None:
        """Put the prepared columns in their places."""
        values_nK = raw_nR[:, self._take].astype(np.float64)
        for k, column in self._read:
            values_nK[:, k] = values_of(column, values_nK[:, k])
        gaps_nK = ~np.isfinite(values_nK)
        out_nW[:, self._flagged_to] = gaps_nK[:, self._flagged]
        scaled_nK = (np.where(gaps_nK, self._fill, values_nK) - self._centre) / self._spread
        out_nW[:, self._written_to] = scaled_nK[:, self._written].clip(-_LARGEST, _LARGEST)


class _Category:
    """A category: a column for each level, one for all others, one that flags gaps."""

    def __init__(self, fitted: FeatureColumn, given: FeatureColumn) -> None:
        assert fitted.learnt is not None
        learnt = fitted.learnt
        self.name, self._width = fitted.name, len(fitted.prepared_names())
        self._is_written, self._is_flagged = fitted.is_written, fitted.is_flagged
        column_of = {level: k for k, level in enumerate(learnt.levels)}
        other = len(column_of) if learnt.rare else -1
        column_of |= dict.fromkeys(learnt.rare, other)
        self._other = other
        self._fill = column_of.get(learnt.fill, -1) if isinstance(learnt.fill, str) else -1
        names = given.categories
        self._is_coded = bool(names) or given.held == "category"
        if not self._is_coded:  # numbers used as categories
            known = sorted((float(name), name) for name in column_of)
            self._values = np.array([value for value, _ in known], np.float32)
            names = tuple(name for _, name in known)
        self._column_of = np.array([column_of.get(name, other) for name in names], np.int64)
        self._is_new = np.array([name not in column_of for name in names], bool)
        self.may_be_new = not self._is_coded or bool(self._is_new.any())

    def _places(self, raw_n: Array) -> tuple[Array, Array, Array]:
        """Return which rows have a value, which of them a known number, and its place."""
        there = np.isfinite(raw_n)
        if self._is_coded:
            there &= (raw_n >= 0) & (raw_n < len(self._column_of))
            return there, there, raw_n[there].astype(np.int64)
        place = np.searchsorted(self._values, raw_n).clip(max=max(0, len(self._values) - 1))
        known = there & (self._values[place] == raw_n)
        return there, known, place[known]

    def write(self, raw_n: Array, out_nW: Array) -> None:
        """Put the prepared rows into the first columns of `out_nW`."""
        there, known, place = self._places(raw_n)
        if self._is_written:
            column_n = np.where(there, self._other, self._fill)
            column_n[known] = self._column_of[place]
            rows = np.flatnonzero(column_n >= 0)
            out_nW[rows, column_n[rows]] = 1
        if self._is_flagged:
            out_nW[:, self._width - 1] = ~there

    def count_new(self, raw_n: Array) -> int:
        """Return how many rows have a category that no training row had."""
        there, known, place = self._places(raw_n)
        return int(np.count_nonzero(there & ~known) + np.count_nonzero(self._is_new[place]))


def _is_number(column: FeatureColumn) -> bool:
    return column.kind != "category"


def _starts(columns: Sequence[FeatureColumn]) -> list[int]:
    """Return where the prepared columns of each begin."""
    return [0, *accumulate(len(column.prepared_names()) for column in columns)]


def _check_missing(
    used: list[FeatureColumn], held: list[str], unused: Mapping[str, str], where: str
) -> None:
    missing = [column.name for column in used if column.name not in held]
    if missing:
        free = [name for name in [*held, *unused] if name not in {c.name for c in used}]
        hints = "".join(suggestion(name, free) for name in missing[:1])
        told = [f"{n!r} (not read: {unused[n]})" if n in unused else repr(n) for n in missing]
        if any(name in unused for name in missing):
            hints = "give the tables, not a store of them, or name all features when it is made; "
        others = shortened([repr(name) for name in free], _SHOWN) or "none"
        raise DataError(
            "Columns that the model was trained on are missing.",
            seen=f"no {shortened(told, _SHOWN)} in {where}, whose other columns are {others}",
            fix=f"{hints}give the data these columns, under these names",
        )


def _check_kinds(pairs: list[tuple[FeatureColumn, FeatureColumn]], where: str) -> None:
    wrong = [
        f"column {given.name!r} holds {_WORDS[given.held]}, in training it held "
        f"{_WORDS[fitted.held]}"
        for fitted, given in pairs
        if _WORDS[given.held] != _WORDS[fitted.held]
    ]
    if wrong:
        raise DataError(
            "Columns hold something else than the model was trained on.",
            seen=f"in {where}: {shortened(wrong, _SHOWN)}",
            fix="give them as they were in the data of training",
        )


_WORDS = {"number": "numbers", "boolean": "numbers", "date": "dates", "category": "text"}
