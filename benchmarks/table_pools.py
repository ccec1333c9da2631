"""Figures of simulated clusters and of serving pools, for docs/benchmarks.md, and their plot."""

import math
from collections.abc import Sequence

from benchmarks.beside import Row, rows_of
from benchmarks.plots import GRID, OURS, PEER, QUIET, _drawing, _text

LEAST_X, MOST_X, LEAST_Y, MOST_Y = 1.0, 4.0, -2.0, 0.5
"""Powers of ten of the plot's axes."""


def pool_lines() -> list[str]:
    """Return the paper's ratios, the map, hidden latency and the cost of serving."""
    return [*_paper(), *_map(), *_serving()]


def _paper() -> list[str]:
    lines = []
    for run in rows_of("dorylus_cluster")[-1:]:
        told = "; ".join(
            f"{row['ratio'].split(' (')[0]} {row['simulated']:.2f} (paper {row['paper']:.2f})"
            for row in run["headline"]
        )
        piped = run["rows"][0]["simulated"]["value over cpu pipelined"]
        lines.append(
            "| Dorylus's cluster in virtual time: Lambdas, GAT and GCN on Amazon, simulated | "
            f"{told}; value over the same CPUs with a pipeline, not in the paper, {piped:.2f} "
            "| `benchmarks.dorylus_cluster` |"
        )
    return lines


def _map() -> list[str]:
    lines = []
    for run in rows_of("pool_value")[-1:]:
        plain = [row for row in run["rows"] if row["depth"] == 1]
        heavy = [row for row in run["rows"] if row["value"] >= 1]
        best = max(row["value"] for row in plain)
        by_workers = [row for row in run["rows"] if not row["done_by_servers"]]
        spend = max(row["value_at_equal_spend"] for row in by_workers)
        least = min((row["flop_per_byte"] for row in heavy), default=math.inf)
        lines.append(
            "| value of a pool over our engine on the same 4 servers, 2-layer GCNs, "
            f"{len(plain)} places of the map, simulated | at most {best:.2f}; 1 from "
            f"{least:,.0f} operations per byte on (layers of many products); beside as many "
            f"dollars per hour in servers at most {spend:.2f} | `benchmarks.pool_value` |"
        )
        longer = {row["side"]: row["times_at_100_ms"] - 1 for row in run["hidden_latency"]}
        told = ", ".join(f"{side} {100 * share:.0f} %" for side, share in longer.items())
        lines.append(
            "| how much longer an epoch is where calls take 100 ms than without latency, 16 "
            f"workers with a core each, 700 k nodes, simulated | {told} | `benchmarks.pool_value` |"
        )
    return lines


def _serving() -> list[str]:
    lines = []
    for run in rows_of("offload")[-1:]:
        rows = {row["side"]: row for row in run["rows"]}
        told = ", ".join(
            f"{name} {rows[name]['core_s_per_gb']:.2f} s "
            f"({rows[name]['break_even_flop_per_byte']:.0f} operations per byte)"
            for name in ("in clear", "encrypted", "before")
            if name in rows
        )
        lines.append(
            "| processor seconds of a rank per GB to and from functions, and from where on "
            f"offloading saves any | {told}; a TCP socket {rows['tcp']['core_s_per_gb']:.2f} s "
            "| `benchmarks.offload --before CHECKOUT` |"
        )
    return lines


def _at(x: float, y: float) -> tuple[float, float]:
    """Return where a point of logarithms lies in the drawing."""
    across = (x - LEAST_X) / (MOST_X - LEAST_X)
    up = (min(max(y, LEAST_Y), MOST_Y) - LEAST_Y) / (MOST_Y - LEAST_Y)
    return 70 + 600 * across, 50 + 240 * (1 - up)


def _axes() -> list[str]:
    parts = []
    for power in range(int(LEAST_X), int(MOST_X) + 1):
        x, bottom = _at(power, LEAST_Y)
        parts.append(f'<path d="M{x:g},50V{bottom:g}" stroke="{GRID}"/>')
        parts.append(_text(x, bottom + 16, f"{10**power:,}", size=11, colour=QUIET, end="middle"))
    for value in (0.01, 0.1, 1.0):
        left, y = _at(LEAST_X, math.log10(value))
        stroke = "#b5482a" if value == 1 else GRID
        parts.append(f'<path d="M{left:g},{y:g}h600" stroke="{stroke}"/>')
        parts.append(_text(left - 6, y + 4, f"{value:g}", size=11, colour=QUIET, end="end"))
    parts.append(
        _text(670, _at(1, 0)[1] - 6, "pays above this line", size=11, colour="#b5482a", end="end")
    )
    parts.append(
        _text(
            370,
            325,
            "operations of tensor work per byte to and from workers",
            colour=QUIET,
            end="middle",
        )
    )
    return parts  # fmt: skip


def _dots(rows: Sequence[Row]) -> list[str]:
    parts = []
    for row in rows:
        if row["flop_per_byte"] is None:
            continue
        x, y = _at(math.log10(row["flop_per_byte"]), math.log10(max(row["value"], 1e-9)))
        colour = OURS if row["depth"] == 1 else PEER
        told = f"width {row['width']}, degree {row['degree']}, {row['nodes']:,} nodes per server"
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}" fill-opacity="0.6">'
            f"<title>{told}, {1000 * row['latency']:g} ms: {row['value']:g}</title></circle>"
        )
    return parts


def pools() -> str:
    """Return the map: value over the same servers by operations per byte."""
    rows = rows_of("pool_value")[-1]["rows"]
    parts = [
        *_axes(),
        *_dots(rows),
        _text(90, 70, "● 2-layer GCN", colour=OURS),
        _text(210, 70, "● layers of 4 to 256 products", colour=PEER),
    ]
    title = "Value of servers with a pool over our engine on the same servers (simulated)"
    return _drawing(340, title, parts)
