"""Predicted beside measured: memory, bytes and seconds of runs over engines, models, ranks, graphs.

    python -m benchmarks.predicted --out predicted.jsonl            # measure, and predict
    python -m benchmarks.predicted --again predicted.jsonl          # predict anew what was measured

Every run is a command of its own, `siafu train`, on parts that were cut before. The machine's costs
are measured first, by what `siafu plan` uses. The first line of the file is the machine.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import siafu
from benchmarks.products_like import products_like
from siafu.config import RunConfig, make_config
from siafu.errors import SiafuError
from siafu.graph import Graph
from siafu.launch.statistics import spec_of
from siafu.partitioning import Cut, assign, open_parts
from siafu.partitioning.options import Method
from siafu.plan import (
    CutStatistics,
    GraphStatistics,
    Machine,
    Outlook,
    Setting,
    calibrate,
    draw_minibatches,
    foresee,
    graph_statistics,
)
from siafu.plan.bytes import full_graph_traffic
from siafu.plan.statistics import DrawnMinibatches

EPOCHS = 10
_ROUNDED_EPOCHS = 7
"""At 8 bits, before widths that are assigned in the fifth are used."""
_BUSY = 1.5
"""Load per core above which a machine had other work."""
GOALS = {"memory": 0.15, "seconds": 0.30, "bytes": 0.02}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run."""

    graph: str
    model: str
    strategy: str = "halo"
    ranks: int = 1
    device: str = "cpu"
    is_command: bool = False
    """Whether a single rank is a command of its own, whose peak of memory can be told."""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> RunConfig:
        """Its settings."""
        return make_config(data=self.graph, **self._settings())

    def _settings(self) -> dict[str, Any]:
        own = {"model": self.model, "strategy": self.strategy, "ranks": self.ranks}
        return {**own, "device": self.device, **self.settings}

    def settings_of_run(self) -> dict[str, Any]:
        """Return all settings, those of the benchmark too."""
        return {**self._settings(), "epochs": EPOCHS, "inference": "none"}

    def flags(self) -> list[str]:
        """Return them as a command line has them."""
        flags = []
        for name, value in self.settings_of_run().items():
            flag = f"--{name.replace('_', '-')}"
            flags += [flag] if value is True else [flag, str(value)]
        return flags


NODES_VARIABLE = "SIAFU_BENCHMARK_NODES"
"""Of the dense graph, where a machine is too small for it."""
STRATEGIES_VARIABLE = "SIAFU_BENCHMARK_STRATEGIES"
"""Names of those that are run, comma between; without it all."""
DENSE = f"products-like:{os.environ.get(NODES_VARIABLE, '60000')}"
REAL, LARGE = "ogbn_arxiv_struct", "products-like:200000"
WIDE = {"hidden": 256, "layers": 3}
_RUNS: tuple[tuple[str, str, str, tuple[int, ...], dict[str, Any]], ...] = (
    (DENSE, "gcn", "halo", (1, 2, 4, 8), {}),
    (DENSE, "sage", "halo", (1, 2, 4, 8), {}),
    (DENSE, "gat", "halo", (1, 4, 8), {}),
    (REAL, "gcn", "halo", (1, 2, 8), {}),
    (REAL, "sage", "halo", (1, 4), {}),
    (DENSE, "sage", "sar", (2, 4), {}),
    (DENSE, "gat", "sar", (4,), {}),
    (REAL, "gcn", "sar", (2, 8), {}),
    (DENSE, "sage", "sar", (8,), WIDE),
    (DENSE, "gcn", "columns", (2, 4), {}),
    (DENSE, "gat", "columns", (4,), {}),
    (REAL, "sage", "columns", (2, 8), {}),
    (DENSE, "sage", "adaqp", (2, 4), {}),
    (REAL, "gcn", "adaqp", (4,), {}),
    (DENSE, "gcn", "halo", (4,), {"wire": "8"}),
    (REAL, "sage", "halo", (8,), {"wire": "4"}),
    (DENSE, "gat", "halo", (4,), {"wire": "4"}),
    (DENSE, "sage", "halo", (1, 4), WIDE),
    (REAL, "gcn", "halo", (1, 4), WIDE),
    (DENSE, "gin", "halo", (1, 4), {}),
    (DENSE, "sage-max", "halo", (4,), {}),
    (DENSE, "sage", "batchgnn", (1, 2, 4), {}),
    (REAL, "gcn", "batchgnn", (4,), {}),
    (DENSE, "gcn", "dorylus", (1, 2, 4), {"pool": "none"}),
    (REAL, "sage", "dorylus", (4,), {"pool": "none"}),
    ("planted:100k", "gcn", "halo", (1, 4), {}),
    ("planted:100k", "sage", "halo", (4,), {"norm": "batch"}),
    ("coauthor_physics", "gcn", "halo", (1, 4), {}),
    (REAL, "sage", "halo", (2, 8), {"hidden": 128}),
)


def cases() -> list[Case]:
    """Return the runs; a few single ranks are commands of their own."""
    found = [
        Case(graph=graph, model=model, strategy=strategy, ranks=ranks, settings=settings)
        for graph, model, strategy, counts, settings in _RUNS
        for ranks in counts
    ]
    found += [Case(graph=REAL, model="gcn", is_command=True)]
    found += [Case(graph=DENSE, model="gat", is_command=True)]
    if wanted := os.environ.get(STRATEGIES_VARIABLE):
        return [case for case in found if case.strategy in wanted.split(",")]
    if torch.cuda.is_available():
        gpu: dict[str, Any] = {"graph": LARGE, "device": "cuda"}
        found += [Case(model="sage", **gpu), Case(model="gat", **gpu)]
        found += [Case(model="gcn", settings=WIDE, **gpu)]
    return found


def load_graph(name: str) -> Graph:
    """Return the graph of a case."""
    kind, _, size = name.partition(":")
    if kind == "products-like":
        return products_like(int(size), int(size) // 2, communities=True)
    return siafu.load(name, undirected=kind == "ogbn_arxiv_struct")


class Graphs:
    """Graphs and their parts, each made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def place(self, case: Case) -> Path:
        """Return the parts folder of a case."""
        return self._folder / f"{case.graph.replace(':', '-')}.{case.ranks}"

    def cut(self, wanted: list[Case]) -> None:
        """Make all parts, and the numbers of graphs beside them."""
        for name in dict.fromkeys(case.graph for case in wanted):
            try:
                graph = load_graph(name)
            except SiafuError as error:  # a data set that is not here
                print(f"{name}: {error.problem}", flush=True)
                continue
            found = graph_statistics(graph).model_dump_json()
            (self._folder / f"{name.replace(':', '-')}.json").write_text(found)
            for case in wanted:
                method: Method = "contiguous" if name.startswith("products") else "metis"
                if case.graph == name and not self.place(case).exists():
                    place = self.place(case)
                    siafu.partition(graph, place, parts=case.ranks, method=method, quiet=True)
                if case.graph == name and case.strategy == "batchgnn":
                    part_of = assign(graph, Cut(num_parts=case.ranks, method=method))
                    drawn = draw_minibatches(graph, part_of, case.ranks, case.config.resolved())
                    assert drawn is not None, "it has training nodes"
                    self._drawn(case).write_text(drawn.model_dump_json())

    def statistics(self, case: Case) -> GraphStatistics:
        """Return the numbers of a graph with the cut of a case."""
        text = (self._folder / f"{case.graph.replace(':', '-')}.json").read_text()
        cut = CutStatistics.of(open_parts(self.place(case)).quality)
        if case.strategy == "batchgnn":
            drawn = DrawnMinibatches(**json.loads(self._drawn(case).read_text()))
            cut = cut.model_copy(update={"drawn": drawn})
        return GraphStatistics(**json.loads(text)).with_cuts([cut])

    def _drawn(self, case: Case) -> Path:
        settings = "-".join(f"{name}{value}" for name, value in case.settings.items())
        return self._folder / f"{self.place(case).name}.{case.config.layers}.{settings}.json"


def run(case: Case, parts: Path, out: Path) -> None:
    """Train, on ranks that are forked from one process."""
    siafu.fit(str(parts), out=str(out), quiet=True, **case.settings_of_run())


def run_command(case: Case, parts: Path, out: Path) -> None:
    """Train by a command of its own."""
    command = [sys.executable, "-m", "siafu", "train", str(parts), *case.flags()]
    command += ["--out", str(out), "--quiet"]
    subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)


def run_together(wanted: list[Case], folder: Path) -> None:
    """Train one case after another in this process, each into a folder of its own."""
    graphs = Graphs(folder)
    for number, case in enumerate(wanted):
        try:
            run(case, graphs.place(case), folder / f"alone{number}")
        except Exception as error:  # noqa: BLE001 - the others are measured still
            print(f"{case}: {error}", file=sys.stderr)


def measured(case: Case, parts: Path, folder: Path) -> dict[str, Any]:
    """Return what a run took, which is made now."""
    out = folder / "run"
    shutil.rmtree(out, ignore_errors=True)
    started = time.perf_counter()
    try:
        (run if case.ranks > 1 else run_command)(case, parts, out)
    except Exception as error:  # noqa: BLE001 - the others are measured still
        return {"error": f"{type(error).__name__}: {error}"[-600:]}
    wall = round(time.perf_counter() - started, 2)
    return {"wall": wall, "load": os.getloadavg()[0], **taken(out)}


def taken(out: Path, *, has_peak: bool = True) -> dict[str, Any]:
    """Return what the folder of a run tells: peak of a rank, bytes, seconds of an epoch."""
    if not (out / "result.json").exists():
        return {"error": "no result"}
    result = json.loads((out / "result.json").read_text())
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {
        "peak_bytes": max(result["peak_mb"]) * 2**20 if has_peak else None,
        "bytes": result["bytes_sent"],
        "seconds": statistics.median(row["seconds"] for row in rows[3:]),
        "all_seconds": [round(row["seconds"], 5) for row in rows],
        "rank_seconds": result["rank_seconds"],
        "macrobatch": result["choices"].get("macrobatch"),
    }


def predicted(
    case: Case, graph: GraphStatistics, machine: Machine, macrobatch: int | None = None
) -> Outlook:
    """Return the forecast of a case; of macrobatches as large as the run found that they pay."""
    config = case.config
    setting = Setting(
        config=config.resolved(), spec=spec_of(config, graph), statistics=graph, machine=machine
    )
    strategy = config.chosen.with_choices(macrobatch=macrobatch)
    return foresee(setting, case.strategy, strategy, case.ranks)


ROWS = (
    *("halo_forward", "halo_refetch", "halo_backward", "column_forward", "column_backward"),
    *("gradient", "norm", "feature", "sample"),
)


def compared(row: dict[str, Any], machine: Machine) -> dict[str, Any]:
    """Return the row with its prediction, and how far that is off."""
    if "error" in row["measured"]:
        return row
    case, graph = Case(**row["case"]), GraphStatistics(**row["graph"])
    found = row["measured"]
    outlook = predicted(case, graph, machine, found.get("macrobatch"))
    epochs = len(found["all_seconds"])
    early = min(epochs, _ROUNDED_EPOCHS) if outlook.strategy.assigns_widths else 0
    sent = outlook.traffic.rows * float(epochs - early)
    if early:
        halo, eight = graph.at(case.ranks).halo_rows, replace(outlook.strategy, wire=8)
        spec = spec_of(case.config, graph)
        sent += early * full_graph_traffic(spec, halo, case.ranks, eight).rows
    sent += epochs * (outlook.traffic.gradients + outlook.traffic.norms) + outlook.traffic.once
    actual = sum(found["bytes"].get(name, 0) for name in ROWS)
    told = {
        "memory": outlook.memory_bytes,
        "bytes": round(sent),
        "seconds": outlook.seconds,
        "phases": {name: getattr(outlook.phases, name) for name in outlook.phases.__slots__},
        "kinds": outlook.memory,
    }
    off = {
        "memory": outlook.memory_bytes / found["peak_bytes"] - 1 if found["peak_bytes"] else None,
        "bytes": sent / actual - 1 if actual else 0.0,
        "seconds": outlook.seconds / found["seconds"] - 1,
    }
    if found.get("load", 0.0) > _BUSY * machine.cores:
        off["seconds"] = None  # others have used the machine: its seconds tell nothing
    return {**row, "predicted": told, "off": off, "exactness": outlook.exactness}


def shown(row: dict[str, Any]) -> str:
    """Return a line for people."""
    case = row["case"]
    name = f"{case['graph'][:18]:18} {case['model']:11} {case['strategy']:8} {case['ranks']:2}"
    name += f" {case['device']:4} {str(case['settings'] or '')[:32]:32}"
    if "error" in row["measured"]:
        return f"{name} failed: {row['measured']['error'][-160:]}"
    found, told, off = row["measured"], row["predicted"], row["off"]
    peak = "memory not told            " + 9 * " "
    if found["peak_bytes"]:
        peak = f"memory {told['memory'] / 1e6:7.0f} of {found['peak_bytes'] / 1e6:7.0f} MB "
        peak += f"{100 * off['memory']:+5.0f} %"
    return (
        f"{name} {peak}  bytes {100 * off['bytes']:+6.1f} %  seconds "
        f"{told['seconds']:7.4f} of {found['seconds']:7.4f} "
        + ("  busy" if off["seconds"] is None else f"{100 * off['seconds']:+5.0f} %")
    )


def summary(rows: list[dict[str, Any]]) -> str:
    """Return how many runs are within the goals."""
    good = [row for row in rows if "off" in row]
    told = [f"{len(good)} runs"]
    for name, goal in GOALS.items():
        known = [abs(row["off"][name]) for row in good if row["off"][name] is not None]
        close = sum(off <= goal for off in known)
        told.append(f"{name} within {100 * goal:.0f} %: {close} of {len(known)}")
    exact = [row for row in good if row["exactness"] == "exact" and row["case"]["ranks"] > 1]
    equal = sum(row["off"]["bytes"] == 0 for row in exact)
    told.append(f"bytes of exact ones to the byte: {equal}")
    return "; ".join(told) + f" of {len(exact)}"


def as_markdown(row: dict[str, Any]) -> str:
    """Return a line of a table for the documents."""
    case, off = row["case"], row["off"]
    settings = " ".join(f"{name} {value}" for name, value in case["settings"].items())
    peak, seconds = row["measured"]["peak_bytes"], row["measured"]["seconds"]
    cells = [
        case["graph"].split(":")[0],
        f"{case['model']} {settings}".strip(),
        case["strategy"],
        f"{case['ranks']}" if case["device"] == "cpu" else "1 GPU",
        f"{row['predicted']['memory'] / 1e6:,.0f} / {peak / 1e6:,.0f} MB" if peak else "",
        "" if case["ranks"] == 1 else f"{100 * off['bytes']:+.1f} %",
        f"{1e3 * row['predicted']['seconds']:.0f} / {1e3 * seconds:.0f} ms"
        if off["seconds"] is not None
        else "",
    ]
    return f"| {' | '.join(cells)} |"


def again(path: Path, *, is_table: bool = False) -> None:
    """Predict anew what a file has measured, and write it back."""
    first, *lines = path.read_text().splitlines()
    machines = {name: Machine(**one) for name, one in json.loads(first)["machines"].items()}
    rows = [json.loads(line) for line in lines]
    rows = [compared(row, machines[row.get("machine", row["case"]["device"])]) for row in rows]
    path.write_text("\n".join([first, *map(json.dumps, rows)]) + "\n")
    for row in rows:
        print(as_markdown(row) if is_table and "off" in row else shown(row))
    print(summary(rows))


def prepare(folder: Path) -> None:
    """Measure the machine and cut the graphs, in a process of its own."""
    machines = {"cpu": calibrate("cpu", print)}
    if torch.cuda.is_available():
        machines["cuda"] = calibrate("cuda", print)
    told = {name: json.loads(one.model_dump_json()) for name, one in machines.items()}
    (folder / "machines.json").write_text(json.dumps(told))
    Graphs(folder).cut(cases())


def measure(path: Path, most_seconds: float) -> None:
    """Measure the machine and the runs while there is time, and write what comes of it."""
    started, rows = time.monotonic(), []
    alone = [case for case in cases() if case.ranks == 1 and not case.is_command]
    others = [case for case in cases() if case not in alone]
    with tempfile.TemporaryDirectory() as scratch, path.open("w") as file:
        folder, this = Path(scratch), [sys.executable, "-m", "benchmarks.predicted"]
        subprocess.run([*this, "--prepare", scratch], check=True)
        print(f"prepared in {time.monotonic() - started:.0f} s", flush=True)
        told = json.loads((folder / "machines.json").read_text())
        first = {"benchmark": "predicted", "epochs": EPOCHS, "machines": told}
        print(json.dumps(first), file=file, flush=True)
        machines, graphs = {name: Machine(**one) for name, one in told.items()}, Graphs(folder)
        others = [case for case in others if graphs.place(case).exists()]

        def note(case: Case, found: dict[str, Any]) -> None:
            graph = json.loads(graphs.statistics(case).model_dump_json())
            row = {"case": asdict(case), "graph": graph, "measured": found}
            rows.append(compared(row, machines[case.device]))
            print(json.dumps(rows[-1]), file=file, flush=True)
            print(shown(rows[-1]), flush=True)

        subprocess.run([*this, "--alone", scratch], check=False, timeout=most_seconds)
        for number, case in enumerate(alone):
            if not graphs.place(case).exists():
                continue
            found = taken(folder / f"alone{number}", has_peak=case.device == "cuda")
            note(case, {"load": os.getloadavg()[0], **found})
        # By ranks: those of one number are forked from one process.
        for case in sorted(others, key=lambda case: (case.is_command, case.ranks)):
            if time.monotonic() - started > most_seconds:
                print("no time for more")
                break
            note(case, measured(case, graphs.place(case), folder))
    print(summary(rows))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--again", type=Path)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--prepare", type=Path)
    parser.add_argument("--alone", type=Path)
    asked = parser.parse_args()
    if asked.prepare is not None:
        prepare(asked.prepare)
    elif asked.alone is not None:
        wanted = [case for case in cases() if case.ranks == 1 and not case.is_command]
        run_together(wanted, asked.alone)
    elif asked.again is not None:
        again(asked.again, is_table=asked.table)
    else:
        measure(asked.out, asked.seconds)


if __name__ == "__main__":
    main()
