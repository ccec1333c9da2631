"""Plots of the README and of docs/benchmarks.md, as small SVG drawings of benchmarks/results.

Units of drawings are pixels; colours are those of docs/dataflow.svg.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from benchmarks.beside import Row, mb, rows_of, times
from benchmarks.headline import Headline, headlines

OURS, PEER, GRID, TEXT, QUIET = "#4b7a3a", "#8a6d3b", "#ddd", "#333", "#777"
WIDTH, ROW, LEFT, TOP = 760, 26, 210, 46


@dataclass(frozen=True, slots=True)
class Line:
    """A line through (x, y) points of a panel."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    dashed: bool = False


def _text(
    x: float, y: float, words: str, *, size: int = 12, colour: str = TEXT, end: str = "start"
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="{end}">'
        f"{escape(words)}</text>"
    )


def _drawing(height: float, title: str, parts: Sequence[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
            'font-family="sans-serif" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{WIDTH}" height="{height:g}" fill="#fff"/>',
            _text(12, 24, title, size=15),
            *parts,
            "</svg>\n",
        ]
    )


def bars(title: str, rows: Sequence[tuple[str, float, str]]) -> str:
    """Return bars of (label, ratio, words beside it) with a line at 1, where both are alike."""
    most = max(ratio for _, ratio, _ in rows)
    scale = (WIDTH - LEFT - 250) / most
    bottom = TOP + ROW * len(rows)
    parts = []
    for number, (label, ratio, words) in enumerate(rows):
        y = TOP + ROW * number
        parts += [
            _text(LEFT - 8, y + 16, label, end="end"),
            f'<rect x="{LEFT}" y="{y + 3}" width="{ratio * scale:.1f}" height="{ROW - 8}" '
            f'fill="{OURS if ratio >= 1 else PEER}"/>',
            _text(LEFT + ratio * scale + 6, y + 16, words, colour=QUIET),
        ]
    one = LEFT + scale
    parts += [
        f'<path d="M{one:.1f},{TOP - 4}V{bottom}" stroke="#fff" stroke-width="2"/>',
        f'<path d="M{one:.1f},{TOP - 4}V{bottom}" stroke="#b5482a" stroke-dasharray="3,3"/>',
        _text(one, bottom + 14, "1 x: as the peer", size=11, colour=QUIET, end="middle"),
    ]
    return _drawing(bottom + 24, title, parts)


def _panel(left: float, title: str, lines: Sequence[Line], unit: str) -> list[str]:
    """Return axes and lines of one panel; x is a number of ranks that doubles."""
    width, height, top = 210.0, 180.0, 72.0
    xs = [x for x, _ in lines[0].points]
    most = max(y for line in lines for _, y in line.points)
    step = next(size for size in (100, 200, 250, 500, 1000, 2000) if most / size <= 6)

    def at(x: float, y: float) -> tuple[float, float]:
        return left + width * xs.index(x) / (len(xs) - 1), top + height * (1 - y / most)

    parts = [_text(left, top - 14, title, size=13)]
    for tick in range(0, int(most) + 1, step):
        _, y = at(xs[0], tick)
        parts.append(f'<path d="M{left:g},{y:.1f}h{width:g}" stroke="{GRID}"/>')
        parts.append(_text(left - 6, y + 4, f"{tick:,}", size=11, colour=QUIET, end="end"))
    for x in xs:
        words = f"{x:g} ranks" if x == xs[-1] else f"{x:g}"
        parts.append(
            _text(at(x, 0)[0], top + height + 16, words, size=11, colour=QUIET, end="middle")
        )
    for line in lines:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in line.points))
        dash = ' stroke-dasharray="4,4"' if line.dashed else ""
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="2"{dash}/>'
        )
        x, y = at(*line.points[-1])
        told = line.name if line.dashed else f"{line.name} {line.points[-1][1]:,.0f} {unit}"
        below = 13 if line.dashed else 1
        parts.append(_text(x + 6, y + below, told, size=11, colour=line.colour))
    return parts


def speed() -> str:
    """Return how many times faster ours is, for each figure of the README that is a time."""
    shown = [_beside(figure) for figure in headlines() if figure.word == "faster"]
    return bars("Speed of siafu over its peers (longer is better)", shown)


def _beside(figure: Headline) -> tuple[str, float, str]:
    told = f"{figure.unit(figure.ours)}, {figure.whom} {figure.unit(figure.peer)}"
    return figure.short, figure.ratio, f"{times(figure.ratio)} {figure.word} ({told})"


def memory() -> str:
    """Return memory per rank from one rank to eight, two models."""
    result = rows_of("memory_scaling")[-1]
    parts: list[str] = []
    for left, model, name in ((60, "sage", "SAGE 3 x 256"), (440, "gat", "GAT 3 x (4 x 64)")):
        rows = [row for row in result["rows"] if row["model"] == model and "peak_mb" in row]
        parts += _panel(left, name, _memory_lines(rows), "MB")
    size = f"{result['nodes'] / 1e3:.0f}k nodes, {result['edges'] / 1e6:.0f} M edges"
    return _drawing(280, f"Memory of training per rank, in MB ({size})", parts)


def _memory_lines(rows: Sequence[Row]) -> list[Line]:
    one = next(row["peak_mb"] for row in rows if row["ranks"] == 1)
    points = {
        strategy: [
            (row["ranks"], row["peak_mb"])
            for row in rows
            if row["strategy"] == strategy or row["ranks"] == 1
        ]
        for strategy in ("halo", "sar")
    }
    share = [(ranks, one / ranks) for ranks, _ in points["sar"]]
    return [
        Line("halo", points["halo"], PEER),
        Line("sar", points["sar"], OURS),
        Line("equal share", share, QUIET, dashed=True),
    ]


def network() -> str:
    """Return what rounded rows save on slow links, over plain fp32 rows."""
    rows = [row for run in rows_of("slow_network") for row in run["times"]]
    found = {(row["mbit"], row["hosts"], row["model"], row["mode"]): row for row in rows}
    shown = []
    for mbit, hosts, model, mode in found:
        if mode == "adaptive overlap":
            ours, plain = (
                found[mbit, hosts, model, kind]["epoch_seconds"] for kind in (mode, "fp32")
            )
            label = f"{model.upper()}, {hosts} hosts at {mbit:.0f} Mbit/s"
            told = f"{times(plain / ours)} faster ({ours:.2f} s, plain fp32 {plain:.2f} s)"
            shown.append((label, plain / ours, told))
    return bars("adaqp: epochs on slow links, over plain fp32 rows", shown)


def attention() -> str:
    """Return memory of attention layers on the GPU beside PyG's, where that fits."""
    newest = {(row.get("kind", "gat"), row["graph"]): row for row in rows_of("attention-h200")}
    shown = []
    for (kind, graph), row in newest.items():
        if "pyg peak_mb" in row:
            ours, theirs = row["ours peak_mb"], row["pyg peak_mb"]
            told = f"{times(theirs / ours)} less ({mb(ours)}, PyG {mb(theirs)})"
            shown.append((f"{kind} layer, {graph}", theirs / ours, told))
    return bars("Memory of attention layers on an H200, over PyG's", shown)


PLOTS = {"speed": speed, "memory": memory, "network": network, "attention": attention}
"""Files of docs/plots, by name."""
