"""Which figures stand in the documents? Writes them from benchmarks/results, or checks them.

Run: python -m benchmarks.table [--check]
It writes the README's eight figures, docs/benchmarks.md and the plots in docs/plots.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.beside import ROOT, Row, faster, mb, ms, rows_of, times
from benchmarks.headline import readme_table
from benchmarks.plots import PLOTS
from benchmarks.slow_modes import ALIKE
from benchmarks.table_pools import pool_lines, pools
from benchmarks.table_precision import precision_lines
from benchmarks.table_sampled import (
    billion_lines,
    cold_lines,
    cut_lines,
    distdgl_lines,
    ingest_lines,
    reach_lines,
    sampled_accuracy_lines,
    sampled_gpu_lines,
    sampling_lines,
)
from benchmarks.table_time import (
    delta_lines,
    dynamic_lines,
    link_lines,
    overlap_lines,
    scaling_table,
    time_parallel_lines,
)
from siafu.record import counted

BEGIN = "<!-- figures: written by `python -m benchmarks.table` from benchmarks/results -->"
END = "<!-- end of figures -->"


def spmm_lines() -> list[str]:
    """Return one line for each graph; on CPU with the allocator that spares page faults."""
    lines = []
    for name, where in (("spmm", "CPU"), ("spmm-h200", "H200")):
        flag = "" if where == "CPU" else " --device cuda"
        for row in rows_of(name):
            if where == "CPU" and row["allocator"] != "kept":
                continue
            ours = row["ours median_ms"]
            peers = {"torch.sparse": "torch.sparse", "pyg": "PyG"}
            told = [
                faster(ours, row[f"{peer} median_ms"], name)
                for peer, name in peers.items()
                if f"{peer} median_ms" in row
            ]
            lines.append(
                f"| neighbour sum, {row['graph']}, {row['edges'] / 1e6:.0f} M edges, {where} "
                f"| {ms(ours)}, {', '.join(told)}; a gather of its rows alone takes "
                f"{ms(row['floor median_ms'])} | `benchmarks.spmm{flag}` |"
            )
    return lines


def epoch_lines() -> list[str]:
    """Return one line for each model and machine: the newest."""
    lines = []
    for name, where in (("epoch", "CPU"), ("epoch-h200", "H200")):
        flag = "" if where == "CPU" else " --device cuda"
        rows = rows_of(name)
        peaks = {row["model"]: row["peak_mb"] for row in rows if "peak_mb" in row}
        shown = [row for row in rows if where == "H200" or row["allocator"] == "kept"]
        for row in {row["model"]: row for row in shown}.values():
            peak = peaks[row["model"]]
            lines.append(
                f"| epoch, 3 x 256 {row['model'].upper()}, arxiv-like, {where} "
                f"| {_beside_pyg(row)}; its products and gathers alone take "
                f"{ms(row['products']['median_ms'] + row['gathers']['median_ms'])}; "
                f"{mb(peak['siafu'])}, PyG {mb(peak['pyg'])} | `benchmarks.epoch{flag}` |"
            )
    return [*lines, *_beside_dgl()]


def _beside_pyg(row: Row) -> str:
    ours = row["siafu"]["median_ms"]
    return f"{ms(ours)}, {faster(ours, row['pyg']['median_ms'], 'PyG')}"


def _beside_dgl() -> list[str]:
    lines = []
    names = {"sage": "3 x 256 SAGE", "gat": "3 x (4 x 64) GAT"}
    for row in rows_of("epoch-dgl"):
        ours, theirs = (row[side]["cpu_median_ms"] for side in ("siafu", "dgl"))
        size = f"{row['edges'] / 1e6:.1f} M edges"
        lines.append(
            f"| epoch, {names[row['model']]}, arxiv-like, {size}, one thread | {ms(ours)} of "
            f"processor time, {faster(ours, theirs, row['peer'].split(',')[0])} "
            f"| `benchmarks.epoch_dgl --models {row['model']} --scale "
            f"{row['nodes'] / 170_000:g} --dgl-python P` |"
        )
    return lines


def attention_lines() -> list[str]:
    """Return one line for each kind and graph on the GPU, the newest measurement of each."""
    lines = []
    names = {"gat": "GAT", "gatv2": "GATv2", "dot": "dot-product"}
    newest = {(row.get("kind", "gat"), row["graph"]): row for row in rows_of("attention-h200")}
    for (kind, _), row in sorted(newest.items(), key=lambda item: list(names).index(item[0][0])):
        lines.append(
            f"| {_attention(names[kind], row)}, H200 {_attention_beside_pyg(row)} "
            f"| `benchmarks.attention --device cuda --kind {kind}` |"
        )
    for row in rows_of("attention"):
        if row["allocator"] == "default" and "pyg / ours" in row:
            lines.append(
                f"| {_attention(names[row['kind']], row)}, CPU {_attention_beside_pyg(row)} "
                f"| `benchmarks.attention --kind {row['kind']}` |"
            )
    return lines


def _attention(name: str, row: Row) -> str:
    layer = row["layer"].replace("->", "to")
    return f"{name} layer, forward and backward, {layer}, {row['graph']}"


def _attention_beside_pyg(row: Row) -> str:
    ours, peak = row["ours median_ms"], mb(row["ours peak_mb"])
    if "pyg / ours" not in row:
        return f"| {ms(ours)}, {peak}; PyG's does not fit"
    beside = faster(ours, row["pyg median_ms"], "PyG")
    return f"| {ms(ours)}, {beside}; {peak}, PyG {mb(row['pyg peak_mb'])}"


def memory_lines() -> list[str]:
    """Return one line per model: memory per rank, from one rank to the most."""
    lines = []
    for result in rows_of("memory_scaling")[-1:]:
        size = f"{result['nodes'] / 1e3:.0f}k nodes, {result['edges'] / 1e6:.0f} M edges"
        for model, name in (("sage", "SAGE 3 x 256"), ("gat", "GAT 3 x (4 x 64)")):
            rows = {(r["ranks"], r["strategy"]): r for r in result["rows"] if r["model"] == model}
            most = max(ranks for ranks, _ in rows)
            one, many = rows[1, "halo"], rows[most, "sar"]
            share = many["peak_mb"] / (one["peak_mb"] / most)
            lines.append(
                f"| memory of training per rank, {name}, random graph of {size} "
                f"| {mb(one['peak_mb'])} on 1 rank; on {most} ranks {mb(many['peak_mb'])} with "
                f"`sar` ({share:.2f} x an equal share, predicted {mb(many['predicted_mb'])}), "
                f"{mb(rows[most, 'halo']['peak_mb'])} with `halo` | `benchmarks.memory_scaling` |"
            )
    return lines


def largest_lines() -> list[str]:
    """Return one line per model: training on a graph of ogbn-products' size."""
    lines = []
    for result in rows_of("largest")[-1:]:
        size = f"{result['nodes'] / 1e6:.1f} M nodes, {result['in_edges'] / 1e6:.0f} M edges"
        for row in result["rows"]:
            lines.append(
                f"| epoch of {row['model'].upper()} 3 x {row['hidden']}, {size}, {row['ranks']} "
                f"ranks on 2 cores | {row['epoch_seconds']:.0f} s, at most "
                f"{max(row['peak_gb']):.1f} GB per rank | `benchmarks.largest` |"
            )
    return lines


def slow_network_lines() -> list[str]:
    """Return one line for each graph, model and number of hosts, the slowest links first."""
    real = "benchmarks.slow_network --data ogbn_arxiv_struct --seeds 0"
    return [
        *_slow_lines("slow_network", "", "benchmarks.slow_network"),
        *_slow_lines("slow_network-arxiv", "ogbn_arxiv_struct, ", real),
    ]


def accuracy_over_links_lines() -> list[str]:
    """Return what fp32's accuracy takes over slow links, exact scores counted."""
    lines = []
    for run in rows_of("slow_network-cores"):
        test = {row["mode"]: row["test"] for row in run["accuracy"]}
        fp32 = next(row for row in run["accuracy"] if row["mode"] == "fp32")
        how = f"--seeds {len(fp32['test_by_seed'])} --epochs {fp32['epochs']}"
        how += f" --lr {fp32['lr']}" if "lr" in fp32 else " --every 4"
        found = {
            (row["mbit"], row["hosts"], row["mode"]): row
            for row in run["times"]
            if row["ranks_per_host"] == 1
        }
        for mbit, hosts, mode in found:
            if mode != "all":
                continue
            ours, plain = found[mbit, hosts, mode], found[mbit, hosts, "fp32"]
            taken, whole = (1e3 * row["seconds_to_target"] for row in (ours, plain))
            slower = ours.get("slower", 1)
            played = f" (played {slower} x slower)" if slower > 1 else ""
            lines.append(
                f"| time to plain fp32's accuracy, 3 x 256 SAGE, {run['graph']}, {hosts} hosts of "
                f"{counted(ours['cores_per_host'], 'core')} at {mbit:.0f} Mbit/s{played}, "
                f"`--wire 2 --changes` | {ms(taken)} with exact scores, "
                f"{faster(taken, whole, 'plain fp32')}; epochs "
                f"{ms(1e3 * ours['epoch_seconds'])} and {ms(1e3 * plain['epoch_seconds'])}; test "
                f"accuracy {test.get(mode) or test[ALIKE[mode]]:.2f}, fp32 {test['fp32']:.2f} "
                f"| `benchmarks.slow_network --data {run['graph']} --hosts {hosts} --cores "
                f"{ours['cores_per_host']} --models sage --curves {how} "
                f"--modes 'fp32,4 bits,changes,all'` |"
            )
    return lines


def _slow_lines(name: str, graph: str, command: str) -> list[str]:
    times_of = [row for run in rows_of(name) for row in run["times"]]
    links = sorted({row["mbit"] for row in times_of})
    found = {(row["mbit"], row["hosts"], row["model"], row["mode"]): row for row in times_of}
    lines = []
    for mbit, hosts, model, mode in found:
        if mode != "adaptive overlap cache" or mbit != links[0]:
            continue
        told = []
        for link in links:
            plain, adaptive, cached = (
                1e3 * found[link, hosts, model, mode]["epoch_seconds"]
                for mode in ("fp32", "adaptive overlap", "adaptive overlap cache")
            )
            told.append(
                f"at {link:.0f} Mbit/s {ms(adaptive)}, {faster(adaptive, plain, 'plain fp32')}, "
                f"with `--input-cache` {ms(cached)}"
            )
        lines.append(
            f"| epoch of training, 3 x 256 {model.upper()}, {graph}{hosts} hosts, `adaqp` "
            f"| {'; '.join(told)} | `{command}` |"
        )
    return lines


def traffic_lines() -> list[str]:
    """Return one line for each graph: bytes of whole runs, and what rounding did to the score."""
    lines = []
    for result in rows_of("traffic"):
        whole, rounded = result["rows"]
        # Rarer evaluation is a saving that `halo` could have too.
        rare = whole["sent_mb"] - whole["evaluation_mb"] + rounded["evaluation_mb"]
        lines.append(
            f"| bytes of a whole run, SAGE, {whole['set']}, 4 ranks, {result['epochs']} epochs, "
            f"`adaqp` | {mb(rounded['sent_mb'])} with evaluation and gradients, "
            f"{times(rounded['times_fewer'])} fewer than `halo` ({mb(whole['sent_mb'])}, or "
            f"{mb(rare)} with evaluation as rare: {times(rare / rounded['sent_mb'])} fewer); test "
            f"accuracy {rounded['test']:.2f}, `halo` {whole['test']:.2f} ({result['seeds']} seeds) "
            f"| `benchmarks.traffic --sets {whole['set']}` |"
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


def pipeline_lines() -> list[str]:
    """Return what intervals and a second core bring, and what staleness costs."""
    lines = []
    for run in rows_of("pipeline")[-1:]:
        rows = {row["contestant"]: row for row in run["rows"]}
        turns, local = rows["pipelined CPU, taking turns"], rows["pipelined CPU"]
        ours = 1e3 * turns["epoch_s"]
        beside = faster(ours, ours / turns["times_synchronous"], "the plain engine")
        lines.append(
            f"| epoch in intervals, GCN 2 x 64, {run['edges'] / 1e6:.0f} M edges, 1 rank "
            f"| graph and tensor tasks in turn, one core at a time: {ms(ours)}, {beside}; with a "
            f"second core for tensor tasks {ms(1e3 * local['epoch_s'])} "
            f"| `benchmarks.pipeline --nodes {run['nodes']} --threads 1` |"
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


Lines = Callable[[], list[str]]
SECTIONS: list[tuple[str, str, tuple[Lines, ...]]] = [
    ("Neighbour sums", "", (spmm_lines,)),
    ("Epochs on one device", "speed", (epoch_lines, precision_lines)),
    ("Attention", "attention", (attention_lines,)),
    ("Memory per rank", "memory", (memory_lines, largest_lines)),
    ("Slow networks", "network", (slow_network_lines, accuracy_over_links_lines, traffic_lines)),
    (
        "Sampled minibatches",
        "",
        (sampling_lines, distdgl_lines, sampled_gpu_lines, reach_lines, sampled_accuracy_lines),
    ),
    ("Graphs larger than memory", "", (ingest_lines, cut_lines, billion_lines, cold_lines)),
    ("Graphs over time", "", (delta_lines, time_parallel_lines, overlap_lines)),
    ("Pipelines", "pools", (pipeline_lines, pool_lines)),
    ("Test scores beside published ones", "", (accuracy_lines, dynamic_lines, link_lines)),
]
"""Title, plot and lines of each section of docs/benchmarks.md."""
TABLES: dict[str, Callable[[], str]] = {"Graphs over time": scaling_table}
"""What stands behind the lines of a section, with columns of its own."""
NOTE = """CPU: 2 cores of an AMD EPYC, shared; every side has the same allocator and threads, and
alternates. Epochs beside PyG, time to accuracy over links and DistDGL are of a Zen 5, where
products take AVX-512 in siafu and AVX2 in torch, and so in the peers. GAT on Pubmed, WD-GCN and
EvolveGCN on chess ran on 16 cores of an Intel Xeon, as did bytes of whole runs; sampled accuracy on
an H200. A figure and the peer's beside it are from one run on one machine. `arxiv-like`,
`reddit-like` and `products-like` are random graphs of about the sizes of those data sets;
`reddit-like/5` has a fifth of the edges. `P` is the Python of an environment that has the peer. Raw
results, with machine, versions and load: `benchmarks/results`. What was
tried and did not help: `LOG.md`."""


def page() -> str:
    """Return docs/benchmarks.md."""
    parts = [
        "# Benchmarks",
        "<!-- written by `python -m benchmarks.table` from benchmarks/results -->",
        NOTE,
    ]
    for title, plot, every in SECTIONS:
        parts.append(f"## {title}")
        if plot:
            parts.append(f"![{title.lower()}, plotted](plots/{plot}.svg)")
        head = ["| measured | result | `python -m` |", "|---|---|---|"]
        parts.append("\n".join([*head, *(line for lines in every for line in lines())]))
        if title in TABLES:
            parts.append(TABLES[title]())
    return "\n\n".join(parts) + "\n"


def documents() -> dict[Path, str]:
    """Return every file that holds figures, as it should be."""
    readme = ROOT / "README.md"
    before, rest = readme.read_text().split(BEGIN)
    _, after = rest.split(END)
    plots = {
        ROOT / "docs" / "plots" / f"{name}.svg": draw()
        for name, draw in {**PLOTS, "pools": pools}.items()
    }
    return {
        readme: f"{before}{BEGIN}\n{readme_table()}\n{END}{after}",
        ROOT / "docs" / "benchmarks.md": page(),
        **plots,
    }


def main() -> None:
    """Write figures into the documents, or say which differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 if one differs"
    )
    args = parser.parse_args()
    wanted = documents()
    if args.check:
        stale = [p for p, text in wanted.items() if not p.exists() or p.read_text() != text]
        if stale:
            names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
            sys.exit(f"{names}: run `python -m benchmarks.table`")
        return
    for path, text in wanted.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
