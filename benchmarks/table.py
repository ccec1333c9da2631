"""Which figures stand in the README? Writes them from benchmarks/results, or checks them.

Run: python -m benchmarks.table [--check]
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BEGIN = "<!-- figures: written by `python -m benchmarks.table` from benchmarks/results -->"
END = "<!-- end of figures -->"
Row = dict[str, Any]


def rows_of(name: str) -> list[Row]:
    """Return the lines of a results file; none when it is missing."""
    path = ROOT / "benchmarks" / "results" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _ms(value: float) -> str:
    return f"{value:.0f} ms" if value >= 100 else f"{value:.2g} ms"


def spmm_lines() -> list[str]:
    """Return one line for each graph; on CPU with the allocator that spares page faults."""
    lines = []
    for name, where in (("spmm", "CPU"), ("spmm-h200", "H200")):
        flag = "" if where == "CPU" else " --device cuda"
        for row in rows_of(name):
            if where == "CPU" and row["allocator"] != "kept":
                continue
            ours = row["ours median_ms"]
            pyg = f" and {row['pyg / ours']:.1f} x PyG's" if "pyg / ours" in row else ""
            lines.append(
                f"| neighbour sum, {row['graph']}, {row['edges'] / 1e6:.0f} M edges, {where} "
                f"| {_ms(ours)}: {row['torch.sparse / ours']:.2f} x torch.sparse's speed{pyg}; "
                f"{ours / row['floor median_ms']:.2f} x its floor | `benchmarks.spmm{flag}` |"
            )
    return lines


def epoch_lines() -> list[str]:
    """Return one line for each model and machine."""
    lines = []
    for name, where in (("epoch", "CPU"), ("epoch-h200", "H200")):
        flag = "" if where == "CPU" else " --device cuda"
        rows = rows_of(name)
        peaks = {row["model"]: row["peak_mb"] for row in rows if "peak_mb" in row}
        for row in rows:
            if where == "CPU" and row["allocator"] != "kept":
                continue
            peak = peaks[row["model"]]
            lines.append(
                f"| epoch, 3 x 256 {row['model'].upper()}, arxiv-like, {where} "
                f"| {_ms(row['siafu']['median_ms'])}: {row['times_faster_than_pyg']} x PyG's, "
                f"{row['times_the_floor']} x the floor; {peak['siafu']} MB beside "
                f"{peak['pyg']} MB | `benchmarks.epoch{flag}` |"
            )
    return lines


def attention_lines() -> list[str]:
    """Return one line for each graph on the GPU."""
    lines = []
    for row in rows_of("attention-h200"):
        layer, pyg = row["layer"].replace("->", "to"), ", where PyG's does not fit"
        if "pyg / ours" in row:
            pyg = f": {row['pyg / ours']:.1f} x PyG's; beside {row['pyg peak_mb']} MB"
        lines.append(
            f"| GAT layer there and back, {layer}, {row['graph']}, H200 "
            f"| {_ms(row['ours median_ms'])}, {row['ours peak_mb']} MB{pyg} "
            "| `benchmarks.attention --device cuda` |"
        )
    return lines


def ingest_lines() -> list[str]:
    """Return one line for building a store and one for cutting it."""
    lines = []
    for row in rows_of("ingest")[-1:]:
        for phase, what in (("build", "Parquet to store"), ("partition", "store to 4 parts")):
            lines.append(
                f"| {what}, {row['edges'] / 1e6:.0f} M edges | "
                f"{row[f'{phase}_edges_per_second'] / 1e6:.1f} M edges/s, "
                f"{row[f'{phase}_peak_gib']:.2f} GiB resident | `benchmarks.ingest` |"
            )
    return lines


def accuracy_lines() -> list[str]:
    """Return one line for the public splits."""
    rows = {row["set"]: row for row in rows_of("accuracy")}
    shown = [
        f"{name.capitalize()} {rows[name]['mean']:.1f} ({rows[name]['expected']})"
        for name in ("cora", "citeseer", "pubmed")
        if name in rows
    ]
    if not shown:
        return []
    text = ", ".join(shown)
    return [f"| GCN test accuracy, 10 seeds (published) | {text} | `benchmarks.accuracy` |"]


def table() -> str:
    """Return the whole table."""
    lines = [*spmm_lines(), *epoch_lines(), *attention_lines(), *ingest_lines(), *accuracy_lines()]
    head = ["| measured | result | `python -m` |", "|---|---|---|"]
    note = (
        "\nCPU: 2 cores of an AMD EPYC, shared; every side has the same allocator and threads, and "
        "alternates. Results: `benchmarks/results`."
    )
    return "\n".join([*head, *lines, note])


def main() -> None:
    """Write the table into the README, or say that it differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if it differs")
    args = parser.parse_args()
    readme = ROOT / "README.md"
    text = readme.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    wanted = f"{before}{BEGIN}\n{table()}\n{END}{after}"
    if args.check and wanted != text:
        sys.exit("README.md: run `python -m benchmarks.table`")
    if not args.check:
        readme.write_text(wanted)


if __name__ == "__main__":
    main()
