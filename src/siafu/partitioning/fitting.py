"""What training rows tell about the columns of a table: fills, scales, categories.

Rows pass by once, a piece at a time. Medians and quartiles are those of all rows where these fit
into a sample of fixed size, else of rows drawn once by a fixed seed. Nothing depends on how many
parts there will be.

Shapes: n rows of a piece, R columns of the table, K of them that are numbers.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from siafu.errors import ConfigError
from siafu.graph import Array, FeatureColumn, Learnt
from siafu.graph.schema import Scale

PIECE_NUMBERS = 1 << 21
"""Numbers of a table that are looked at together."""
_SAMPLE_NUMBERS = 1 << 24
_FEWEST_SAMPLED = 1 << 10
_MOST_CATEGORIES = 1 << 16
_CONSTANT = "constant"


def fit_columns(
    columns: Sequence[FeatureColumn], pieces: Iterable[Array], num_rows: int, scale: Scale
) -> tuple[FeatureColumn, ...]:
    """Return the columns with what `num_rows` training rows, float32 [n, R] in pieces, tell.

    `scale` is for numbers and dates whose schema does not say it.
    """
    numbers = [k for k, c in enumerate(columns) if c.use and c.kind != "category"]
    kinds = [k for k, c in enumerate(columns) if c.use and c.kind == "category"]
    moments = _Moments(len(numbers))
    sample = _Sample(num_rows, max(1, len(numbers)))
    counts = {k: _Categories(columns[k]) for k in kinds}
    for piece in pieces:
        values_nK = piece[:, numbers].astype(np.float64)
        for place, k in enumerate(numbers):
            if columns[k].categories:
                values_nK[:, place] = values_of(columns[k], piece[:, k])
        moments.see(values_nK)
        sample.see(values_nK)
        for k, categories in counts.items():
            categories.see(piece[:, k])
    learnt = {k: categories.learnt(num_rows) for k, categories in counts.items()}
    for place, k in enumerate(numbers):
        own = columns[k].scale or ("none" if columns[k].kind == "boolean" else scale)
        learnt[k] = moments.learnt(place, num_rows, columns[k].fill, own, sample.column(place))
    return tuple(
        column.model_copy(
            update={"learnt": learnt.get(k, Learnt(rows=num_rows, left_out="not wanted"))}
        )
        for k, column in enumerate(columns)
    )


def keep_one(columns: tuple[FeatureColumn, ...]) -> tuple[FeatureColumn, ...]:
    """Return fitted columns with a constant one as ones, where nothing else would be left."""
    if any(column.prepared_names() for column in columns):
        return columns
    for k, column in enumerate(columns):
        if column.learnt is not None and column.learnt.left_out == _CONSTANT:
            learnt = column.learnt.model_copy(update={"left_out": "", "is_kept": True})
            kept = column.model_copy(update={"learnt": learnt})
            return (*columns[:k], kept, *columns[k + 1 :])
    return columns


def values_of(column: FeatureColumn, raw: Array) -> Array:
    """Return float64 [n]: the numbers of a column, NaN where there is none."""
    values = np.asarray(raw, np.float64)
    if column.categories:
        table = np.array([*(_number(column.name, text) for text in column.categories), np.nan])
        known = (values >= 0) & (values < len(column.categories))
        values = table[np.where(known, values, len(column.categories)).astype(np.int64)]
    return np.where(np.isfinite(values), values, np.nan)


def _number(column: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(
            "A column of text can't be used as numbers.",
            seen=f"column {column!r} has {text!r}",
            fix="leave its kind in the schema a category",
        ) from None


def text_of(value: float) -> str:
    """Return a number as it names a category: 3, not 3.0."""
    return f"{np.float32(value):.9g}"


class _Moments:
    """Count, mean, squared deviations and range of each column, over pieces."""

    def __init__(self, width: int) -> None:
        self._count, self._mean, self._square = (np.zeros(width) for _ in range(3))
        self._low, self._high = np.full(width, np.inf), np.full(width, -np.inf)

    def see(self, values_nK: Array) -> None:
        """Add a piece, as Chan, Golub and LeVeque do: no difference of large sums."""
        there = np.isfinite(values_nK)
        count = there.sum(axis=0)
        mean = np.where(there, values_nK, 0).sum(axis=0) / np.maximum(count, 1)
        square = (np.where(there, values_nK - mean, 0) ** 2).sum(axis=0)
        total = np.maximum(self._count + count, 1)
        shift = mean - self._mean
        self._mean += shift * count / total
        self._square += square + shift**2 * self._count * count / total
        self._count += count
        self._low = np.minimum(self._low, np.where(there, values_nK, np.inf).min(0, initial=np.inf))
        highest = np.where(there, values_nK, -np.inf).max(0, initial=-np.inf)
        self._high = np.maximum(self._high, highest)

    def learnt(
        self, k: int, rows: int, fill: str | float | None, scale: Scale, sampled: Array
    ) -> Learnt:
        """Return what is known of column k."""
        count = int(self._count[k])
        if not count:
            return Learnt(rows=rows, gaps=rows, left_out="no value in training rows")
        mean, median = float(self._mean[k]), float(self._mean[k])
        quartiles = (median, median)
        if len(sampled):  # a column may be too empty for the sample
            low, median, high = (float(v) for v in np.percentile(sampled, (25, 50, 75)))
            quartiles = (low, high)
        fills = {"mean": mean, "median": median, None: median}
        centre, spread = 0.0, 1.0
        if scale != "none":
            deviation = float(np.sqrt(self._square[k] / count))
            robust = scale == "robust" and quartiles[1] > quartiles[0]
            centre = median if scale == "robust" else mean
            spread = quartiles[1] - quartiles[0] if robust else deviation
        is_constant = bool(self._low[k] == self._high[k])
        if is_constant:  # ones, should it be kept
            centre, spread = float(self._low[k]) - 1, 1.0
        return Learnt(
            rows=rows,
            gaps=rows - count,
            fill=fills[fill] if fill is None or isinstance(fill, str) else fill,
            centre=centre,
            spread=spread or 1.0,
            left_out=_CONSTANT if is_constant else "",
        )


class _Sample:
    """Rows that quartiles are taken of: all, or some drawn by a fixed seed."""

    def __init__(self, num_rows: int, width: int) -> None:
        most = max(_FEWEST_SAMPLED, _SAMPLE_NUMBERS // width)
        self._chosen = np.arange(num_rows)
        if num_rows > most:
            drawn = np.random.default_rng(0).choice(num_rows, most, replace=False, shuffle=False)
            self._chosen = np.sort(drawn)
        self._seen, self._held = 0, list[Array]()

    def see(self, values_nK: Array) -> None:
        """Keep the chosen rows of a piece."""
        low, high = np.searchsorted(self._chosen, (self._seen, self._seen + len(values_nK)))
        self._held.append(values_nK[self._chosen[low:high] - self._seen].astype(np.float32))
        self._seen += len(values_nK)

    def column(self, k: int) -> Array:
        """Return the values of column k that were sampled."""
        values = np.concatenate([rows[:, k] for rows in self._held] or [np.empty(0, np.float32)])
        return values[np.isfinite(values)]


class _Categories:
    """How often each category of one column occurs in training rows."""

    def __init__(self, column: FeatureColumn) -> None:
        self._column = column
        self._counts: Counter[float] = Counter()
        self._rows = 0

    def see(self, raw: Array) -> None:
        """Count a piece."""
        values, counts = np.unique(raw[np.isfinite(raw)], return_counts=True)
        self._counts.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        if len(self._counts) > _MOST_CATEGORIES:
            raise ConfigError(
                "A column of numbers has too many values for categories.",
                seen=f"column {self._column.name!r} has more than {_MOST_CATEGORIES:,}",
                fix="leave its kind in the schema a number",
            )

    def learnt(self, rows: int) -> Learnt:
        """Return which categories have a column of their own."""
        column, counts = self._column, self._counts
        if not counts:
            return Learnt(rows=rows, gaps=rows, left_out="no value in training rows")
        # The commonest; of equal ones those that come first.
        by_count = sorted(counts, key=lambda value: (-counts[value], value))
        own = sorted(by_count[: column.most_levels])
        rare = sorted(by_count[column.most_levels :])
        levels, others = ([self._name(value) for value in some] for some in (own, rare))
        return Learnt(
            rows=rows,
            gaps=rows - counts.total(),
            fill=self._fill([*levels, *others]) or 0.0,
            levels=tuple(levels),
            rare=tuple(others),
            left_out=_CONSTANT if len(counts) == 1 else "",
        )

    def _name(self, value: float) -> str:
        names = self._column.categories
        return names[int(value)] if names else text_of(value)

    def _fill(self, known: list[str]) -> str:
        asked = self._column.fill
        fill = "" if asked is None else asked if isinstance(asked, str) else text_of(asked)
        if fill and fill not in known:
            raise ConfigError(
                "The fill of a column is no category of its training rows.",
                seen=f"fill {fill!r} of column {self._column.name!r}",
                fix=f"use one of {', '.join(known[:12])}, or leave it out",
            )
        return fill
