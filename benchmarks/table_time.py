"""Figures of graphs over time, as lines of docs/benchmarks.md."""

from benchmarks.beside import Row, faster, ms, rows_of, times

_MOST_RANKS = 8
"""That a run over time must have tried before it tells how epochs fall with ranks."""


def dynamic_lines() -> list[str]:
    """Return one line for each set and score, the newest run of each on one rank."""
    newest = {
        row["set"]: row
        for result in rows_of("dynamic_accuracy")
        if result["ranks"] == 1
        for row in result["rows"]
        if "-link-" not in row["set"]  # without histories of pairs; `link_scores` has them now
    }
    lines = []
    for name, row in newest.items():
        better = row["mean"] >= row["published"]
        seeds = row["seeds"]
        spread = f" +- {row['std']:.3f}" if seeds > 1 else ""
        told = f"{row['mean']:.3f}{spread} ({row['published']:.3f})"
        lines.append(
            f"| {name}, {row['score']} of the test, {seeds} seed{'s' if seeds > 1 else ''} "
            f"(published) | {told}{'' if better else ', below it'} "
            f"| `benchmarks.dynamic_accuracy --sets {name} --seeds {seeds}` |"
        )
    return lines


def link_lines() -> list[str]:
    """Return links beside what was published and what needs no model, the newest run of each."""
    newest = {(row["set"], row["way"]): row for row in rows_of("link_scores")}
    return [_links(row, score) for row in newest.values() for score in ("map", "mrr")]


def _links(row: Row, score: str) -> str:
    found, seeds, published = row["all nodes"][score], row["seeds"], row["published"][score]
    spread = f" +- {found['std']:.3f}" if seeds > 1 else ""
    below = [
        what
        for what, value in (("published", published), ("last seen", found["last seen"]))
        if found["mean"] < value
    ]
    met = row["nodes met"][score]["mean"]
    way = "" if row["way"] == "history" else f", {row['way']}"
    return (
        f"| {row['set']} links{way}, {score} among all nodes, {seeds} seed{'s' * (seeds > 1)} "
        f"(published; last seen, degrees, EdgeBank: no model) | {found['mean']:.4f}{spread} "
        f"({published:.4f}; {found['last seen']:.4f}, {found['degrees']:.4f}, "
        f"{found['edgebank']:.4f}), among nodes met "
        f"{met:.4f}{', below ' + ' and '.join(below) if below else ''} "
        f"| `benchmarks.link_scores --sets {row['set']} --ways {row['way']} --seeds {seeds}` |"
    )


def delta_lines() -> list[str]:
    """Return what deltas save on the way to the GPU, and what rebuilding them costs an epoch."""
    return [
        f"| 10 snapshots of {row['edges'] / 1e6:.0f} M edges without values to the H200, "
        f"window of {row['window']} | as deltas {_deltas(row, 'transfer')}; the epoch "
        f"{_deltas(row, 'epoch')} | `benchmarks.delta_transfer` (CUDA) |"
        for row in rows_of("delta_transfer-h200")
    ]


def _deltas(row: Row, what: str) -> str:
    ours, csr, coo = (row[f"{kind} {what}_median_ms"] for kind in ("deltas", "csr32", "coo64"))
    beside = faster(ours, csr, "as int32 CSR"), faster(ours, coo, "as int64 COO")
    return f"{ms(ours)}, {beside[0]}, {beside[1]}"


def time_parallel_lines() -> list[str]:
    """Return what ranks save in seconds and memory over time."""
    return [
        _over_time(model, result)
        for result in rows_of("time_parallel")
        for model in dict.fromkeys(row["model"] for row in result["rows"])
    ]


def runs_of(name: str) -> list[Row]:
    """Return the runs of a file whose lines have some number of ranks each, all rows together."""
    found: dict[str, Row] = {}
    for number, line in enumerate(rows_of(name)):
        run = found.setdefault(line.get("run", str(number)), {**line, "rows": []})
        run["rows"] = [*run["rows"], *line["rows"]]
    return list(found.values())


def scaling_lines() -> list[str]:
    """Return how epochs over time fall with ranks that have a core each, by the newest runs."""
    wide = [
        run
        for run in runs_of("time_parallel-xeon")
        if max(row["ranks"] for row in run["rows"]) >= _MOST_RANKS
    ]
    newest = {(run["nodes"], run["snapshots"]): run for run in wide}
    return [
        _scaling(model, run)
        for run in newest.values()
        for model in ("tm-gcn", "cd-gcn")
        if any(row["model"] == model for row in run["rows"])
    ]


def _scaling(model: str, result: Row) -> str:
    rows = [row for row in result["rows"] if row["model"] == model]

    def best(ranks: int) -> Row:
        found = [row for row in rows if row["ranks"] == ranks]
        return min(found, key=lambda row: float(row["epoch_seconds"]))

    one = float(best(1)["epoch_seconds"])
    told = [
        f"{ranks} {best(ranks)['epoch_seconds']:.2f} s ({best(ranks)['exchange']}, "
        f"{times(one / float(best(ranks)['epoch_seconds']))}, {best(ranks)['peak_mb']:.0f} MB)"
        for ranks in sorted({row["ranks"] for row in rows if row["ranks"] > 1})
    ]
    ranks = ",".join(str(count) for count in sorted({row["ranks"] for row in rows}))
    remade = "" if best(1).get("kept", True) else " (its snapshots made anew from deltas)"
    nodes = "" if result["nodes"] == 20_000 else f"--nodes {result['nodes']} "
    band = "" if result.get("band", 20) == 20 else f"--band {result['band']} "
    return (
        f"| epoch over {result['snapshots']} snapshots of {result['nodes']:,} nodes, {model}, a "
        f"core per rank | 1 rank {one:.2f} s{remade}, {best(1)['peak_mb']:.0f} MB; "
        f"{'; '.join(told)} each "
        f"| `benchmarks.time_parallel {nodes}--ranks {ranks} --steps {result['snapshots']} {band}"
        f"--blocks 0 --node-parts 1 --overlap on,off` |"
    )


def overlap_lines() -> list[str]:
    """Return what redistribution behind work saves over slow links, the best of its turns."""
    return [_overlap(result) for result in rows_of("time_parallel-hosts")]


def _overlap(result: Row) -> str:
    rows = [row for row in result["rows"] if row["ranks"] == 2]

    def told(exchange: str, overlap: str) -> float:
        found = [r for r in rows if (r["exchange"], r["overlap"]) == (exchange, overlap)]
        return 1e3 * min(float(row["epoch_seconds"]) for row in found)

    on, off = told("all-to-all", "on"), told("all-to-all", "off")
    return (
        f"| epoch over {result['snapshots']} snapshots of {result['nodes']:,} nodes, "
        f"{rows[0]['model']}, 2 hosts of one core at {result['mbit']:.0f} Mbit/s "
        f"| all-to-all behind work {ms(on)}, {faster(on, off, 'all at once')}; "
        f"wavefront {ms(told('wavefront', 'on'))} "
        f"| `benchmarks.time_parallel --models {rows[0]['model']} --nodes {result['nodes']} "
        f"--steps {result['snapshots']} --ranks 2 --blocks 0 --node-parts 1 --epochs 6 "
        f"--mbit {result['mbit']:.0f} --overlap on,off,on,off` |"
    )


def _over_time(model: str, result: Row) -> str:
    rows = [row for row in result["rows"] if row["model"] == model and row["block"] == 0]

    def best(ranks: int, parts: int) -> Row:
        found = [r for r in rows if (r["ranks"], r.get("node_parts")) == (ranks, parts)]
        return min(found, key=lambda row: float(row["epoch_seconds"]))

    def told(row: Row) -> str:
        return f"{row['epoch_seconds']:.2f} s, {row['peak_mb']:.0f} MB"

    return (
        f"| epoch over {result['snapshots']} snapshots of {result['nodes']:,} nodes, {model} "
        f"| 1 rank {told(best(1, 1))}; 2 ranks {told(best(2, 1))} each; 2 x 2 on the same 2 cores "
        f"{told(best(4, 2))} each "
        f"| `benchmarks.time_parallel --nodes {result['nodes']} --blocks 0,16` |"
    )
