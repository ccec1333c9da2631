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
    """Return one line for each kind and graph on the GPU, the newest measurement of each."""
    lines = []
    names = {"gat": "GAT", "gatv2": "GATv2", "dot": "dot-product"}
    newest = {(row.get("kind", "gat"), row["graph"]): row for row in rows_of("attention-h200")}
    for (kind, _), row in sorted(newest.items(), key=lambda item: list(names).index(item[0][0])):
        layer, pyg = row["layer"].replace("->", "to"), ", where PyG's does not fit"
        if "pyg / ours" in row:
            pyg = f": {row['pyg / ours']:.1f} x PyG's; beside {row['pyg peak_mb']} MB"
        lines.append(
            f"| {names[kind]} layer there and back, {layer}, {row['graph']}, H200 "
            f"| {_ms(row['ours median_ms'])}, {row['ours peak_mb']} MB{pyg} "
            f"| `benchmarks.attention --device cuda --kind {kind}` |"
        )
    for row in rows_of("attention"):
        if row["allocator"] == "default" and "pyg / ours" in row:
            layer = row["layer"].replace("->", "to")
            lines.append(
                f"| {names[row['kind']]} layer there and back, {layer}, {row['graph']}, CPU "
                f"| {_ms(row['ours median_ms'])}, {row['ours peak_mb']} MB: "
                f"{row['pyg / ours']:.1f} x PyG's; beside {row['pyg peak_mb']} MB "
                f"| `benchmarks.attention --kind {row['kind']}` |"
            )
    return lines


def memory_lines() -> list[str]:
    """Return one line a model: memory of a rank, from one rank to the most."""
    lines = []
    for result in rows_of("memory_scaling")[-1:]:
        size = f"{result['vertices'] / 1e3:.0f}k vertices, {result['edges'] / 1e6:.0f} M edges"
        for model, name in (("sage", "SAGE 3 x 256"), ("gat", "GAT 3 x (4 x 64)")):
            rows = {(r["ranks"], r["strategy"]): r for r in result["rows"] if r["model"] == model}
            most = max(ranks for ranks, _ in rows)
            one, many = rows[1, "halo"], rows[most, "sar"]
            share = many["peak_mb"] / (one["peak_mb"] / most)
            lines.append(
                f"| memory of training a rank, {name}, random graph of {size} "
                f"| {one['peak_mb']:.0f} MB on 1 rank, {many['peak_mb']:.0f} MB on {most} "
                f"({share:.2f} x its share; {rows[most, 'halo']['peak_mb']:.0f} MB with `halo`); "
                f"predicted {many['predicted_mb']:.0f} MB | `benchmarks.memory_scaling` |"
            )
    return lines


def largest_lines() -> list[str]:
    """Return one line a model: training on a graph of ogbn-products' size."""
    lines = []
    for result in rows_of("largest")[-1:]:
        size = f"{result['vertices'] / 1e6:.1f} M vertices, {result['in_edges'] / 1e6:.0f} M edges"
        for row in result["rows"]:
            lines.append(
                f"| epoch of {row['model'].upper()} 3 x {row['hidden']}, {size}, {row['ranks']} "
                f"ranks on 2 cores | {row['epoch_seconds']:.0f} s, at most "
                f"{max(row['peak_gb']):.1f} GB a rank | `benchmarks.largest` |"
            )
    return lines


def slow_network_lines() -> list[str]:
    """Return one line for each graph, model and number of hosts, on the slowest links."""
    real = "benchmarks.slow_network --data ogbn_arxiv_struct --seeds 0"
    return [
        *_slow_lines("slow_network", "", "benchmarks.slow_network"),
        *_slow_lines("slow_network-arxiv", "ogbn_arxiv_struct, ", real),
    ]


def _slow_lines(name: str, graph: str, command: str) -> list[str]:
    times = [row for run in rows_of(name) for row in run["times"]]
    slowest = min((row["mbit"] for row in times), default=0)
    by_mode = {
        (row["hosts"], row["model"], row["mode"]): row for row in times if row["mbit"] == slowest
    }
    lines = []
    for (hosts, model, mode), cached in by_mode.items():
        if mode == "adaptive overlap cache":
            adaptive = by_mode[hosts, model, "adaptive overlap"]
            lines.append(
                f"| epoch, 3 x 256 {model.upper()}, {graph}{hosts} hosts at {slowest:.0f} Mbit/s, "
                "`adaqp` "
                f"| {adaptive['epoch_seconds']:.2f} s: {adaptive['times_fp32']} x plain fp32's "
                f"speed; with `--input-cache` {cached['times_fp32']} x | `{command}` |"
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
    lines = [f"| GCN test accuracy, 10 seeds (published) | {text} | `benchmarks.accuracy` |"]
    shown = [
        f"{name.capitalize()} {rows[f'{name}-gat']['mean']:.1f} ({rows[f'{name}-gat']['expected']})"
        for name in ("cora", "citeseer", "pubmed")
        if f"{name}-gat" in rows
    ]
    if shown:
        lines.append(
            f"| GAT test accuracy, 10 seeds, `sar` on 4 ranks (published) | {', '.join(shown)} "
            "| `benchmarks.accuracy` |"
        )
    return lines


def dynamic_lines() -> list[str]:
    """Return one line for each set and score, the newest run of each on one rank."""
    newest = {
        row["set"]: row
        for result in rows_of("dynamic_accuracy")
        if result["ranks"] == 1
        for row in result["rows"]
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


def sampling_lines() -> list[str]:
    """Return how fast minibatches are drawn, and what fetching several at once saves."""
    lines = [
        f"| one minibatch drawn, fan-out 15,10,5, batch 1000, {name}, one thread "
        f"| {_ms(row['ours cpu_ms'])} of processor time: {row['pyg / ours, cpu']:.0f} x PyG's "
        f"speed (its torch-sparse sampler), {row['dgl / ours, cpu']:.1f} x DGL's "
        f"({row['ours / dgl, edges_per_cpu_s']:.1f} x its edges a second) "
        f"| `benchmarks.sampling {'--quick ' if name == 'arxiv-like' else ''}"
        "--pyg-python P --dgl-python P` |"
        for name, row in {row["graph"]: row for row in rows_of("sampling")}.items()
    ]
    for result in rows_of("macrobatch"):
        rows = [row for row in result["rows"] if row["contestant"] in ("k=32", "k=32, aggregated")]
        # Hosts that share a core tell more of that than of their network.
        own = result["cores"] // result["threads"]
        rows = [row for row in rows if 1 < row["hosts"] <= own and "epoch_seconds" in row]
        lines += [_macrobatch_line(row, result) for row in rows]
    return lines


def _macrobatch_line(row: Row, result: Row) -> str:
    hosts = f"{row['hosts']} host{'s' if row['hosts'] > 1 else ''}"
    command = (
        f"benchmarks.macrobatch --hosts {row['hosts']} --graphs {row['graph']} "
        f"--vertices {result['vertices']} --steps {result['steps']}"
    )
    if result["threads"] > 1:
        hosts += f" of {result['threads']} cores"
        command += f" --threads {result['threads']}"
    if "gpu" in result:
        hosts += f" sharing one {result['gpu']}"
        command += " --device cuda"
    compared = f"{row['times_in_turn']} x the speed of minibatches fetched in turn"
    return (
        f"| sampled epoch, 3 x 256 SAGE, {row['graph']}, {hosts} at {row['mbit']:g} Mbit/s, "
        f"{row['contestant']} | {row['epoch_seconds']} s: {compared}; "
        f"fetching alone {row['times_fetch']} x k=1's, feature bytes {row['feature_share']} of it "
        f"| `{command}` |"
    )


def sampled_accuracy_lines() -> list[str]:
    """Return how sampled training scores beside that on the whole graph."""
    lines = []
    for result in rows_of("sampled_accuracy"):
        names = list(dict.fromkeys(row["set"] for row in result["rows"]))
        for name in names:
            found = {row["contestant"]: row for row in result["rows"] if row["set"] == name}
            if len(found) < 3:
                continue
            told = ", ".join(f"{what} {row['test']:.2f}" for what, row in found.items())
            command = f"benchmarks.sampled_accuracy --sets {name} --ranks {result['ranks']}"
            command += " --device cuda" if "gpu" in result else ""
            lines.append(
                f"| SAGE test accuracy, {name}, {result['seeds']} seeds | {told} | `{command}` |"
            )
    return lines


def billion_lines() -> list[str]:
    """Return what a graph of a billion edges takes."""
    lines = []
    for row in rows_of("billion"):
        phases = row["phases"]
        told = ", ".join(
            f"{name} {phases[name]['seconds']:.0f} s in {phases[name]['peak_gib']:.1f} GiB"
            for name in ("make", "cut", "train")
        )
        lines.append(
            f"| {row['edges'] / 1e9:g} billion edges, {row['vertices'] / 1e6:g} M vertices, 2 "
            f"parts, an epoch of SAGE over 1 % of them, 2 ranks | {told} (all processes) "
            "| `benchmarks.billion --memory 4GB` |"
        )
    for row in rows_of("billion-budget")[-1:]:
        train = row["phases"]["train"]
        lines.append(
            f"| features of {row['feature_gib']:.2f} GiB, 2 ranks with {row['budget_gib']:.2f} GiB "
            f"together, an epoch of SAGE | {train['shared_once_peak_gib']:.2f} GiB resident with "
            f"libraries counted once, {train['anonymous_peak_gib']:.2f} GiB anonymous "
            "| `benchmarks.billion --budget-run` |"
        )
    return lines


def delta_lines() -> list[str]:
    """Return what deltas save on the way to the GPU."""
    return [
        f"| 10 snapshots of {row['edges'] / 1e6:.0f} M edges to the H200, "
        f"window of {row['window']} | {row['deltas transfer_median_ms']:.1f} ms as deltas: "
        f"{row['coo64 / deltas transfer']:.0f} x faster than int64 COO, "
        f"{row['csr32 / deltas transfer']:.1f} x than int32 CSR; the epoch "
        f"{row['epoch saved against coo64 %']:.0f} % shorter than with COO "
        "| `benchmarks.delta_transfer` (CUDA) |"
        for row in rows_of("delta_transfer-h200")
    ]


def time_parallel_lines() -> list[str]:
    """Return what ranks save in seconds and memory over time."""
    return [
        _over_time(model, result)
        for result in rows_of("time_parallel")
        for model in dict.fromkeys(row["model"] for row in result["rows"])
    ]


def _over_time(model: str, result: Row) -> str:
    rows = [row for row in result["rows"] if row["model"] == model and row["block"] == 0]

    def best(ranks: int, parts: int) -> Row:
        found = [r for r in rows if (r["ranks"], r["vertex_parts"]) == (ranks, parts)]
        return min(found, key=lambda row: float(row["epoch_seconds"]))

    def told(row: Row) -> str:
        return f"{row['epoch_seconds']:.2f} s, {row['peak_mb']:.0f} MB"

    return (
        f"| epoch over {result['snapshots']} snapshots of {result['vertices']:,} vertices, {model} "
        f"| 1 rank {told(best(1, 1))}; 2 ranks {told(best(2, 1))} each; 2 x 2 on the same 2 cores "
        f"{told(best(4, 2))} each "
        f"| `benchmarks.time_parallel --vertices {result['vertices']} --blocks 0,16` |"
    )


def pipeline_lines() -> list[str]:
    """Return what pipelining and pools bring, what staleness costs, and value for money."""
    lines = []
    for run in rows_of("pipeline")[-1:]:
        rows = {row["contestant"]: row for row in run["rows"]}
        local, far = rows["pipelined CPU"], rows["cloud 100ms"]
        lines.append(
            f"| epoch in a pipeline, GCN 2 x 64, {run['edges'] / 1e6:.0f} M edges, 1 rank "
            f"| {local['epoch_s']:.2f} s with a thread for tensor tasks, "
            f"{local['times_synchronous']} x the plain engine's on one thread; with workers 100 ms "
            f"away {far['epoch_s']:.2f} s, {far['times_zero_latency']} x of no latency "
            f"| `benchmarks.pipeline --vertices {run['vertices']} --threads 1` |"
        )
    for run in rows_of("staleness")[-1:]:
        by_mode: dict[str, list[str]] = {}
        sets = ",".join(dict.fromkeys(row["data"] for row in run["rows"]))
        for row in run["rows"]:
            if row["mode"] != "synchronous":
                told = f"{row['data'].capitalize()} {100 * row['more_epochs']:+.0f} %"
                by_mode.setdefault(row["mode"], []).append(told)
        told = "; ".join(f"{mode}: {', '.join(found)}" for mode, found in by_mode.items())
        lines.append(
            f"| more epochs to the same loss, GCN, 2 ranks, {run['seeds']} seeds | {told} "
            f"| `benchmarks.staleness --data {sets} --seeds {run['seeds']}` |"
        )
    return lines


def table() -> str:
    """Return the whole table."""
    parts = (spmm_lines, epoch_lines, attention_lines, memory_lines, largest_lines)
    more = (slow_network_lines, sampling_lines, ingest_lines, sampled_accuracy_lines)
    last = (billion_lines, delta_lines, time_parallel_lines, pipeline_lines)
    every = (*parts, *more, *last, accuracy_lines, dynamic_lines)
    lines = [line for part in every for line in part()]
    head = ["| measured | result | `python -m` |", "|---|---|---|"]
    note = (
        "\nCPU: 2 cores of an AMD EPYC, shared; every side has the same allocator and threads, and "
        "alternates. GAT on Pubmed, hosts of 4 cores, WD-GCN and EvolveGCN on chess ran on 16 "
        "cores of an Intel Xeon, sampled accuracy on an H200. Results: `benchmarks/results`."
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
