"""How much training does a dollar buy: CPU ranks, CPU ranks with pools of workers, or a GPU?

Run: python -m benchmarks.value [--json FILE] [--scale 1.0] [--prices FILE] [--instance c5.large]
     python -m benchmarks.value --gpu --json benchmarks/results/value-h200.jsonl    where the GPU is

2-layer GCNs on two made graphs: sparse and larger (the widths of the Dorylus paper's Amazon), dense
and small (of its Reddit). Value is 1 / (seconds x dollars) of 1000 epochs. What is measured: the
seconds of an epoch of ranks on this machine, one core each, which is billed as one `--instance`,
and of the GPU, by the second command, on its own machine. What is simulated: the pool's cloud, its
delays, bandwidth and billing; its computation is real and done here. Dollars are prices times
seconds; that of an H200 is an assumption, so the price at which it draws level stands beside.

A pool is compared only where the machine has a core for each of its workers beside the ranks':
else they slow down the ranks that are timed. Even then graphs are small (epochs of 0.1 s against
calls of 20 ms), and what serving the workers costs a graph server is left out: no figure of it
stands in the README.
No time is reported of a contestant whose losses are not those of one plain process.
"""

import argparse
import json
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.measure import Spread, append_json, machine, starved
from benchmarks.slow_network import cut
from siafu import fit
from siafu.config import RunConfig
from siafu.graph import Graph, graph_from_edges
from siafu.launch import Run
from siafu.ops import warm_up
from siafu.plan import Bill, PoolUsage, Prices, Servers, make_bill, read_prices
from siafu.record import RunFolder, busy_seconds, overlap_seconds, read_trace

Row = dict[str, Any]
RESULTS = Path(__file__).parent / "results"
BILLED_EPOCHS = 1000
SKIPPED_EPOCHS = 2
"""Of each run: compiling, connecting, filling caches."""
SAME_LOSS = 1e-3
"""Relative; float32 sums in another order, over some epochs of Adam."""
PAPER = {"value over cpu": 2.75, "times cheaper than gpu": 4.83, "times faster than gpu": 1.22}
"""Dorylus (OSDI 2021): at best over graphs; against as many V100s, on large sparse graphs."""
MEASURED = "measured on this machine, a core a rank"
SIMULATED = "computation on this machine, cloud simulated"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A graph to make, and the widths of the model."""

    nodes: int
    degree: int
    features: int
    hidden: int
    classes: int


SHAPES = {
    "sparse": Shape(nodes=60_000, degree=10, features=300, hidden=64, classes=25),
    "dense": Shape(nodes=6_000, degree=200, features=602, hidden=128, classes=41),
}
POOL: Row = {"strategy": "dorylus", "staleness": 0, "intervals": 8}
CONTESTANTS: dict[str, Row] = {
    "cpu": {"strategy": "halo"},
    "cpu pipelined": {**POOL, "pool": "none"},
    "cpu + pool": {**POOL, "pool": "simulated", "pool_workers": "auto"},
}


def make_graph(name: str, scale: float, seed: int = 0) -> Graph:
    """Return an undirected graph of skewed degrees, with classes that features tell of."""
    shape, generator = SHAPES[name], np.random.default_rng(seed)
    nodes = max(200, round(shape.nodes * scale))
    label = generator.integers(0, shape.classes, nodes)
    share = generator.pareto(2.0, nodes) + 0.3
    src = generator.choice(nodes, nodes * shape.degree // 2, p=share / share.sum())
    near = (src + generator.integers(1, max(2, nodes // 50), len(src))) % nodes
    far = generator.choice(nodes, len(src), p=share / share.sum())
    dst = np.where(generator.random(len(src)) < 0.7, near, far)
    centre = generator.standard_normal((shape.classes, shape.features)) * 0.3
    x = centre[label] + generator.standard_normal((nodes, shape.features))
    role = generator.random(nodes)
    return graph_from_edges(
        np.concatenate([src, dst]),
        np.concatenate([dst, src]),
        nodes,
        name=name,
        x=x.astype(np.float32),
        y=label,
        num_classes=shape.classes,
        train=role < 0.66,
        val=(role >= 0.66) & (role < 0.76),
        test=role >= 0.76,
    )


def common(graph: Graph, epochs: int) -> Row:
    """Return the settings that all contestants share: the paper's model has no dropout."""
    return {
        "model": "gcn",
        "hidden": SHAPES[graph.name].hidden,
        "layers": 2,
        "dropout": 0.0,
        "weight_decay": 0.0,
        "lr": 0.01,
        "epochs": epochs,
        "inference": "none",
        "checkpoint_every": 0,
    }


def facts_of(graph: Graph) -> Row:
    """Return what two machines must agree on before their figures are compared."""
    shape = asdict(SHAPES[graph.name])
    return {"graph": graph.name, **shape, "nodes": graph.num_nodes, "edges": graph.num_edges}


def same_losses(got: list[float], want: list[float]) -> bool:
    """Return whether two runs learnt alike, epoch by epoch."""
    return len(got) >= len(want) and np.allclose(got[: len(want)], want, rtol=SAME_LOSS, atol=1e-5)


def gate(name: str, got: list[float], want: list[float]) -> None:
    """Raise unless the losses are those of one plain process."""
    if not same_losses(got, want):
        raise RuntimeError(f"{name} learns something else: {got[:5]} ..., not {want[:5]} ...")


def epoch_seconds(run: Run) -> list[float]:
    """Return the seconds of each epoch but the first ones."""
    return [row["seconds"] for row in RunFolder(run.path).read_metrics()][SKIPPED_EPOCHS:]


def overlap_share(run: Run) -> float | None:
    """Return the share of graph work that tensor work ran beside; None without a trace."""
    path = run.path / "trace.json"
    if not path.exists():
        return None
    spans = read_trace(path)
    graph_seconds = busy_seconds(spans, "graph")
    return overlap_seconds(spans, "graph", "tensor") / graph_seconds if graph_seconds else None


def billed(prices: Prices, servers: Servers, seconds: float, run: Run | None = None) -> Bill:
    """Return the bill of 1000 epochs of so many seconds, with what the run asked of its pool."""
    usage, told = PoolUsage(), (run.result.get("bill") if run is not None else None)
    if told and told["epochs"]:
        usage = PoolUsage(**told["usage"]).times(BILLED_EPOCHS / told["epochs"])
    # A GPU does 1000 epochs in seconds; rounding these up would be a good part of its bill.
    prices = replace(prices, instance_step_seconds=1e-6)
    total = seconds * BILLED_EPOCHS
    return make_bill(prices, servers, seconds=total, epochs=BILLED_EPOCHS, usage=usage)


def row_of(name: str, how: str, seconds: list[float], bill: Bill) -> Row:
    """Return the figures of one contestant."""
    return {
        "contestant": name,
        "seconds are": how,
        "epoch": Spread.of(seconds).row(),
        "instances": f"{bill.servers.instances} x {bill.servers.instance}",
        "servers dollars": bill.servers_dollars,
        "pool dollars": bill.pool_compute_dollars + bill.pool_requests_dollars,
        "transfer dollars": bill.transfer_dollars,
        "dollars": bill.dollars,
        "dollars per epoch": bill.dollars_per_epoch,
        "value": bill.value,
    }


def available() -> tuple[list[str], list[str]]:
    """Return the contestants that this version can run, and those it can't."""
    names = {
        name: settings.keys() <= RunConfig.model_fields.keys()
        for name, settings in CONTESTANTS.items()
    }
    return [n for n, can in names.items() if can], [n for n, can in names.items() if not can]


def measure_ranks(graph: Graph, args: argparse.Namespace, scratch: Path) -> list[Row]:
    """Return a row for each contestant of CPU ranks; they take turns, run by run."""
    prices = read_prices(args.prices)
    settings = {**common(graph, args.epochs), "device": "cpu"}
    plain = fit(graph, ranks=1, out=str(scratch / "plain"), **settings)
    want = plain.result["losses"]
    parts = cut(graph, args.ranks, scratch)
    names, _ = available()
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for turn in range(args.repeats):
        for name in names:
            chosen = dict(CONTESTANTS[name])
            if "pool" in chosen:
                chosen |= {"prices": str(prices.path), "instance": args.instance}
            out = str(scratch / f"{graph.name}-{name}-{turn}".replace(" ", "-"))
            run = fit(str(parts), ranks=args.ranks, threads=1, out=out, **settings, **chosen)
            gate(f"{name} on {graph.name}", run.result["losses"], want)
            runs[name].append(run)
    servers, rows = Servers(instance=args.instance, ranks=args.ranks), []
    for name, own in runs.items():
        seconds = [each for run in own for each in epoch_seconds(run)]
        how = SIMULATED if CONTESTANTS[name].get("pool", "none") != "none" else MEASURED
        bill = billed(prices, servers, Spread.of(seconds).median, own[-1])
        row = row_of(name, how, seconds, bill)
        share = overlap_share(own[-1])
        rows.append(row if share is None else {**row, "graph work overlapped": round(share, 3)})
    return [*rows, *gpu_rows(graph, args, want)]


def gpu_rows(graph: Graph, args: argparse.Namespace, want: list[float]) -> list[Row]:
    """Return the row of the newest measurement of the same graph and model on a GPU, if any."""
    path, facts = Path(args.gpu_results), facts_of(graph)
    lines = path.read_text().splitlines() if path.exists() else []
    found = [row for line in lines if (row := json.loads(line))["facts"] == facts]
    if not found:
        print(f"no GPU: {path.name} has no line of this graph; make one there with --gpu")
        return []
    newest = found[-1]
    count = min(len(want), len(newest["losses"]))
    gate(f"the GPU on {graph.name}", newest["losses"][:count], want[:count])
    prices, servers = read_prices(args.prices), Servers(instance=args.gpu_instance, ranks=1)
    seconds = newest["seconds"]
    bill = billed(prices, servers, Spread.of(seconds).median)
    device = newest.get("gpu", newest["cpu"])
    row = row_of("gpu", f"measured on {device}", seconds, bill)
    return [{**row, "price of the gpu": prices.instance(args.gpu_instance).source}]


def ratios(rows: list[Row], problem: str | None = None) -> Row:
    """Return the figures that stand beside the paper's, of the pool or else of the CPU alone.

    A pool with a problem is not compared: its seconds and its bill are not of a cloud.
    """
    by_name = {row["contestant"]: row for row in rows}
    if problem and "cpu + pool" in by_name:
        return {"of": "cpu + pool", "not compared": problem}
    ours = by_name.get("cpu + pool", by_name["cpu"])
    found: Row = {"of": ours["contestant"]}
    if ours is not by_name["cpu"]:
        found["value over cpu"] = ours["value"] / by_name["cpu"]["value"]
    if "cpu pipelined" in by_name and ours is not by_name["cpu"]:
        # What workers add to the pipeline alone, which the paper's comparison mixes.
        found["value over cpu pipelined"] = ours["value"] / by_name["cpu pipelined"]["value"]
    if "gpu" in by_name:
        gpu = by_name["gpu"]
        hours = gpu["epoch"]["median_ms"] / 3.6e6 * BILLED_EPOCHS
        found |= {
            "times cheaper than gpu": gpu["dollars"] / ours["dollars"],
            "times faster than gpu": gpu["epoch"]["median_ms"] / ours["epoch"]["median_ms"],
            "value over gpu": ours["value"] / gpu["value"],
            "gpu dollars an hour for equal dollars": ours["dollars"] / hours,
            "gpu dollars an hour for equal value": 1 / (ours["value"] * 3600 * hours**2),
        }
    return {key: float(f"{v:.4g}") if isinstance(v, float) else v for key, v in found.items()}


def measure_gpu(
    graph: Graph, args: argparse.Namespace, scratch: Path, device: Literal["cpu", "cuda"] = "cuda"
) -> Row:
    """Return the epochs' seconds of one process on the device here, by the plain engine."""
    settings = common(graph, args.epochs)
    plain = fit(graph, ranks=1, device="cpu", out=str(scratch / "plain"), **settings)
    seconds: list[float] = []
    losses: list[float] = []
    for turn in range(args.repeats):
        out = str(scratch / f"gpu-{turn}")
        run = fit(graph, ranks=1, device=device, out=out, **settings)
        losses = run.result["losses"]
        gate(f"the GPU on {graph.name}", losses, plain.result["losses"])
        seconds += epoch_seconds(run)
    row = {"benchmark": "value-gpu", "facts": facts_of(graph), "losses": losses}
    return {**row, "seconds": [round(s, 6) for s in seconds], **machine(device)}


def show(graph: Graph, rows: list[Row], problem: str | None) -> None:
    """Print a line for each contestant, and the ratios beside the paper's."""
    print(f"{graph.name}: {graph.num_nodes} nodes, {graph.num_edges} edges")
    for row in rows:
        spread = row["epoch"]
        print(
            f"  {row['contestant']:<14} {spread['median_ms']:>9.2f} ms +- {spread['iqr_ms']:.2f}  "
            f"${row['dollars per epoch']:.3g} an epoch  value {row['value']:.4g}  "
            f"({row['instances']}; {row['seconds are']})"
        )
    found = ratios(rows, problem)
    for key, value in found.items():
        # The paper's figures are of pools.
        beside = f"  (paper: up to {PAPER[key]})" if key in PAPER and "pool" in found["of"] else ""
        print(f"    {key}: {value}{beside}")


def main() -> None:
    """Measure every graph; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--gpu", action="store_true", help="measure the GPU of this machine alone")
    parser.add_argument("--gpu-results", default=str(RESULTS / "value-h200.jsonl"))
    parser.add_argument("--gpu-instance", default="h200", help="what it is billed as")
    parser.add_argument("--instance", default="c5.large", help="what a CPU rank is billed as")
    parser.add_argument("--prices", help="a file of your own; docs/prices.md")
    parser.add_argument("--graphs", default=",".join(SHAPES))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    warm_up()
    results: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="siafu-value-") as folder:
        for name in args.graphs.split(","):
            graph, scratch = make_graph(name, args.scale), Path(folder) / name
            scratch.mkdir()
            if args.gpu:
                results.append(measure_gpu(graph, args, scratch))
                print(name, Spread.of(results[-1]["seconds"]).row(), flush=True)
                if args.json:
                    append_json(args.json, results[-1])
                continue
            rows = measure_ranks(graph, args, scratch)
            # The pool begins with a worker for each interval.
            problem = starved(args.ranks * POOL["intervals"], ranks=args.ranks)
            show(graph, rows, problem)
            found = {"facts": facts_of(graph), "rows": rows, "ratios": ratios(rows, problem)}
            results.append(found)
    result: Row = {"benchmark": "value-gpu" if args.gpu else "value", "graphs": results}
    if not args.gpu:
        prices = read_prices(args.prices)
        result |= {"paper": PAPER, "prices": {"date": str(prices.date), "file": prices.path.name}}
        result |= {"ranks": args.ranks, "not in this version": available()[1], **machine()}
        if args.json:
            append_json(args.json, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
