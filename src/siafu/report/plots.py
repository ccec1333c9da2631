"""Plots as SVG text, drawn without any library: lines, stacked bars, a matrix.

Colours are classes (`c0` to `c7`), so that the page's light and dark styles apply. Each plot is an
image with a title of its own for screen readers; exact values stand in tables beside it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate

WIDTH, HEIGHT = 520, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 12, 40
_MOST_POINTS = 400
_MOST_MARKS = 40
NUM_COLOURS = 8
_MOST_LETTERS = 6


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot."""

    name: str
    points: tuple[tuple[float, float], ...]
    colour: int = 0
    dashed: bool = False


def line_plot(series: Sequence[Series], *, title: str, x_name: str, y_name: str) -> str:
    """Return lines over a common grid; points that are not finite are left out."""
    kept = [_thinned(one) for one in series]
    kept = [one for one in kept if one.points]
    if not kept:
        return ""
    xs = [x for one in kept for x, _ in one.points]
    ys = [y for one in kept for _, y in one.points]
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))
    x_range, y_range = _range(xs, x_ticks), _range(ys, y_ticks)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_range[0]) / (x_range[1] - x_range[0])
        up = (y - y_range[0]) / (y_range[1] - y_range[0])
        return (
            _LEFT + across * (WIDTH - _LEFT - _RIGHT),
            HEIGHT - _BOTTOM - up * (HEIGHT - _TOP - _BOTTOM),
        )

    body = [_grid_x(place(tick, y_range[0])[0], tick) for tick in x_ticks]
    body += [_grid_y(place(x_range[0], tick)[1], tick) for tick in y_ticks]
    body += [_axis_names(x_name, y_name)]
    for one in kept:
        body.append(_line(one, [place(x, y) for x, y in one.points]))
    return _svg(title, body, HEIGHT) + legend([(one.name, one.colour) for one in kept])


def stacked_bars(
    rows: Mapping[str, Mapping[str, float]], *, title: str, x_name: str, mark: float | None = None
) -> str:
    """Return one bar per row, its shares side by side; `mark` is a line across all of them."""
    totals = [math.fsum(shares.values()) for shares in rows.values()]
    most = max([*totals, mark or 0.0], default=0.0)
    if not rows or not most > 0:
        return ""
    names = list(dict.fromkeys(name for shares in rows.values() for name in shares))
    scale = ticks(0.0, most)
    end, step = max(scale[-1], most), 30
    height = _TOP + step * len(rows) + _BOTTOM
    left = _LEFT + 6 * max(0, max(map(len, rows)) - 7)
    width = WIDTH - left - _RIGHT
    body = [
        _grid_x(left + tick / end * width, tick, bottom=height - _BOTTOM, label=height - 22)
        for tick in scale
    ]
    for place, (row, shares) in enumerate(rows.items()):
        top = _TOP + step * place
        body.append(f'<text x="{left - 6}" y="{top + 18}" class="right">{escape(row)}</text>')
        ends = list(accumulate(shares.values(), initial=0.0))
        for number, (name, value) in enumerate(shares.items()):
            body.append(
                f'<rect x="{left + ends[number] / end * width:.1f}" y="{top + 3}" height="22" '
                f'width="{max(0.0, value) / end * width:.1f}" class="f{_colour(names, name)}">'
                f"<title>{escape(row)}: {escape(name)} {number_text(value)}</title></rect>"
            )
    if mark is not None:
        x = left + mark / end * width
        body.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{height - _BOTTOM}" class="mark"/>'
        )
    body.append(
        f'<text x="{left + width / 2}" y="{height - 6}" class="mid">{escape(x_name)}</text>'
    )
    return _svg(title, body, height) + legend([(name, _colour(names, name)) for name in names])


def matrix_plot(
    rows: Sequence[Sequence[float]],
    *,
    title: str,
    rows_are: str,
    tell: Callable[[int, int], str],
    names: Sequence[str] = (),
) -> str:
    """Return a square of cells, the darker the more; `tell` has the words for each of them."""
    size, most = len(rows), max((value for row in rows for value in row), default=0.0)
    if size == 0 or not most > 0:
        return ""
    cell = max(2.0, min(44.0, 420 / size))
    side = cell * size
    body = []
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            body.append(
                f'<rect x="{_LEFT + j * cell:.1f}" y="{_TOP + 16 + i * cell:.1f}" class="f0" '
                f'width="{cell - 0.5:.1f}" height="{cell - 0.5:.1f}" '
                f'opacity="{0.06 + 0.94 * value / most:.2f}">'
                f"<title>{escape(tell(i, j))}</title></rect>"
            )
    every = max(1, math.ceil(size * 14 / side))
    for k in range(0, size, every):
        middle, name = (k + 0.5) * cell, escape(_brief(names[k] if names else str(k)))
        body.append(
            f'<text x="{_LEFT - 6}" y="{_TOP + 20 + middle:.1f}" class="right">{name}</text>'
            f'<text x="{_LEFT + middle:.1f}" y="{_TOP + 10}" class="mid">{name}</text>'
        )
    height = _TOP + 22 + side
    body.append(
        f'<text x="14" y="{_TOP + 16 + side / 2:.0f}" class="mid" '
        f'transform="rotate(-90 14 {_TOP + 16 + side / 2:.0f})">{escape(rows_are)}</text>'
    )
    return _svg(title, body, height, width=_LEFT + side + _RIGHT)


def _brief(name: str) -> str:
    return name if len(name) <= _MOST_LETTERS else f"{name[: _MOST_LETTERS - 1]}\u2026"


def legend(entries: Sequence[tuple[str, int]]) -> str:
    """Return names beside their colours; nothing for a single one without a name."""
    told = [(name, colour) for name, colour in entries if name]
    items = "".join(
        f'<li><span class="key b{colour}"></span>{escape(name)}</li>' for name, colour in told
    )
    return f'<ul class="legend">{items}</ul>' if items else ""


def ticks(low: float, high: float, *, most: int = 6) -> list[float]:
    """Return round numbers that cover the range from `low` to `high`."""
    span = high - low if high > low else abs(high) or 1.0
    rough = span / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    steps = [m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9)]
    # There are no halves of epochs.
    is_whole = low == round(low) and high == round(high) and steps[-1] >= 1
    step = next(one for one in steps if not is_whole or one == round(one))
    first = math.floor(low / step + 1e-9)
    last = max(first + 1, math.ceil(high / step - 1e-9))
    return [round(k * step, 12) for k in range(first, last + 1)]


def number_text(value: float) -> str:
    """Return a number as short as it can be read."""
    if value and (abs(value) >= 1e6 or abs(value) < 1e-3):
        return f"{value:.2g}"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _colour(names: Sequence[str], name: str) -> int:
    return names.index(name) % NUM_COLOURS


def _thinned(one: Series) -> Series:
    points = [(x, y) for x, y in one.points if math.isfinite(x) and math.isfinite(y)]
    every = math.ceil(len(points) / _MOST_POINTS) or 1
    kept = points[::every] + (points[-1:] if points and (len(points) - 1) % every else [])
    return Series(one.name, tuple(kept), one.colour, one.dashed)


def _range(values: Sequence[float], scale: Sequence[float]) -> tuple[float, float]:
    return min(*values, scale[0]), max(*values, scale[-1])


def _line(one: Series, places: Sequence[tuple[float, float]]) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dashes = ' stroke-dasharray="6 4"' if one.dashed else ""
    drawn = f'<polyline points="{path}" class="line s{one.colour}"{dashes}/>'
    if len(places) <= _MOST_MARKS:
        for (x, y), (at, value) in zip(places, one.points, strict=True):
            told = f"{one.name} {number_text(at)}: {number_text(value)}".strip()
            drawn += (
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" class="f{one.colour}">'
                f"<title>{escape(told)}</title></circle>"
            )
    return drawn


def _grid_x(x: float, value: float, *, bottom: float = 0, label: float = 0) -> str:
    bottom, label = bottom or HEIGHT - _BOTTOM, label or HEIGHT - 24
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}" class="grid"/>'
        f'<text x="{x:.1f}" y="{label}" class="mid">{number_text(value)}</text>'
    )


def _grid_y(y: float, value: float) -> str:
    return (
        f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
        f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="right">{number_text(value)}</text>'
    )


def _axis_names(x_name: str, y_name: str) -> str:
    middle = (HEIGHT - _BOTTOM) / 2
    return (
        f'<text x="{(WIDTH + _LEFT) / 2}" y="{HEIGHT - 6}" class="mid">{escape(x_name)}</text>'
        f'<text x="14" y="{middle}" class="mid" transform="rotate(-90 14 {middle})">'
        f"{escape(y_name)}</text>"
    )


def _svg(title: str, body: Sequence[str], height: float, *, width: float = WIDTH) -> str:
    told = escape(title, quote=True)
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{told}" '
        f'style="max-width:{width:.0f}px">{"".join(body)}</svg>'
    )
