"""Figures of graphs over time, as lines of docs/benchmarks.md."""

from benchmarks.beside import Row, faster, ms, rows_of, times


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


def scaling_table() -> str:
    """Return how epochs over time fall with ranks that have a core each, and what that needs.

    Each figure is the newest; how much faster it is than one rank, by one rank of the same run
    where that has one.
    """
    rows = _scaling_rows()
    if not rows:
        return ""
    counts = sorted({row["ranks"] for row in rows})
    names = dict.fromkeys(_row_name(row) for row in rows if row["ranks"] > 1)
    body = [
        "| "
        + " | ".join(
            [f"{name[0]:,}", str(name[1]), *name[2:], *(_cell(rows, name, n) for n in counts)]
        )
        + " |"
        for name in sorted(names)
    ]
    ranks = [f"{n} rank{'s' * (n > 1)}" for n in counts]
    head = ["nodes", "snapshots", "model", "exchange", *ranks]
    commands = [f"`benchmarks.time_parallel {text}`" for text in dict.fromkeys(map(_asked, rows))]
    starred = any("*" in line for line in body)
    return "\n".join(
        [
            "Ranks with a core each of a 16-core Intel Xeon: median seconds of an epoch, peak "
            "memory per rank, how many times faster than one rank. `overlap`: groups of nodes "
            "travel while others are worked on. Ranks were measured on machines of one kind, up "
            "to 30 % apart; 4 ranks of 200,000 nodes beside other work. "
            f"{' and '.join(commands)}, with `--ranks`:",
            "",
            "| " + " | ".join(head) + " |",
            "|---" * len(head) + "|",
            *body,
            *(["", _STARRED] if starred else []),
        ]
    )


_STARRED = (
    "\\* More edges than a rank keeps ready: it makes snapshots anew from deltas in every epoch. "
    "Ranks that keep theirs look faster beside it than ranks alone make them; in brackets they "
    "stand beside the fewest ranks that keep theirs."
)


def _scaling_rows() -> list[Row]:
    """Return the rows of all runs that note whether snapshots stay ready, the newest last."""
    about = ("run", "nodes", "snapshots", "band")
    return [
        {**row, **{key: line[key] for key in about}}
        for line in rows_of("time_parallel-xeon")
        if "run" in line
        for row in line["rows"]
        if (row["block"], row["node_parts"], row["wire"]) == (0, 1, "32")
    ]


def _row_name(row: Row) -> tuple[int, int, str, str]:
    """Return what a line of the table is about: nodes, snapshots, model, exchange."""
    model = f"{row['model']}, band {row['band']}" if row["model"] == "tm-gcn" else row["model"]
    exchange = "nothing travels" if row["exchange"] == "auto" else row["exchange"]
    if exchange == "all-to-all":
        exchange += ", overlap" if row["overlap"] == "on" else ", no overlap"
    return row["nodes"], row["snapshots"], model, exchange


def _cell(rows: list[Row], name: tuple[int, int, str, str], ranks: int) -> str:
    alone = (*name[:3], "nothing travels")
    wanted = alone if ranks == 1 else name
    found = [r for r in rows if (_row_name(r), r["ranks"]) == (wanted, ranks)]
    if not found:
        return "-"
    row = found[-1]
    told = f"{row['epoch_seconds']:.2f} s{'' if row['kept'] else '*'}, {row['peak_mb']:,.0f} MB"
    one = _of_run([r for r in rows if (_row_name(r), r["ranks"]) == (alone, 1)], row["run"])
    if one is None or ranks == 1:
        return told
    told += f", {times(one['epoch_seconds'] / row['epoch_seconds'])} faster"
    alike = [r for r in rows if (_row_name(r), r["run"]) == (name, row["run"]) and r["kept"]]
    first = min(alike, key=lambda r: int(r["ranks"]), default=row)
    if one["kept"] or not row["kept"] or first is row:
        return told
    beside = times(first["epoch_seconds"] / row["epoch_seconds"])
    return f"{told} ({beside} faster than {first['ranks']})"


def _of_run(rows: list[Row], run: str) -> Row | None:
    """Return the row of that run, else the newest."""
    same = [row for row in rows if row["run"] == run]
    found = same or rows
    return found[-1] if found else None


def _asked(row: Row) -> str:
    nodes = "" if row["nodes"] == 20_000 else f"--nodes {row['nodes']} "
    band = "" if row["band"] == 20 else f"--band {row['band']} "
    return f"{nodes}--steps {row['snapshots']} {band}--blocks 0 --node-parts 1 --overlap on,off"


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
