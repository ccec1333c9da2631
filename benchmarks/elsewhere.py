"""What plans say of clusters that are not here, beside what papers have measured there.

    python -m benchmarks.elsewhere [--out FILE]

papers100M under SAR on 32, 64 and 128 machines (three layers; SAGE of 256, GAT of 128 and 4 heads,
batch norm), by the costs of a measured machine of 16 cores: as it is, and with as many cores as the
paper's machines have (72) at the same cost each, which is a guess. Cuts are a law: 0.3 of the halo
rows of a random cut. And the dynamic models on 128 GPUs from seconds of an H200: 1 M nodes, 256
snapshots of 10 M edges, widths of 16, on the paper's network (25 GB/s for 8 GPUs) and on one of
today (50 GB/s per GPU). What was measured there is an epoch of the model on one GPU
(`benchmarks.time_parallel --device cuda`), and where its file has none, one of two GCN layers over
ten snapshots of 16 M edges (`benchmarks.delta_transfer`): what it took over what the costs of its
kernels tell of it is what seconds of other sizes are multiplied by.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from siafu.config import make_config
from siafu.launch.statistics import spec_of
from siafu.nn.dynamic import DynamicSpec, build_dynamic
from siafu.nn.temporal import BandedMean, TemporalLayer
from siafu.partitioning import plan_time
from siafu.plan import KNOWN, Link, Machine, Setting, foresee
from siafu.plan.machine import Rates
from siafu.strategy import PRESETS
from siafu.strategy.time.cost import (
    Traffic,
    all_to_all_traffic,
    banded_traffic,
    state_width,
    wavefront_traffic,
)

COSTS = Path(__file__).parent / "results" / "predicted.jsonl"
ENGINE = COSTS.with_name("time_parallel-h200.jsonl")
SNAPSHOTS = COSTS.with_name("delta_transfer-h200.jsonl")
_PAPER_CORES = 72
_INFINIBAND = Link(bytes_per_second=25e9, latency_seconds=5e-6)
SAR: dict[int, dict[str, float]] = {
    32: {"sage_seconds": 7.4, "sage_gb": 95, "sage_halo_gb": 150, "gat_gb": 67},
    64: {"sage_seconds": 5.1, "sage_gb": 47, "sage_halo_gb": 83, "gat_gb": 35},
    128: {"sage_seconds": 3.8, "sage_gb": 25, "sage_halo_gb": 51, "gat_gb": 19},
}
"""Machines: seconds of an epoch, and GB of a machine by SAR and without it, read off figures."""


def machines() -> dict[str, Machine]:
    """Return the costs that were measured with the runs."""
    first = json.loads(COSTS.read_text().splitlines()[0])
    return {name: Machine(**one) for name, one in first["machines"].items()}


def with_cores(machine: Machine, cores: int) -> Machine:
    """Return a machine of more cores of the same cost each."""
    last = machine.rates[-1]
    share = machine.cores / cores

    def scaled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: cost * share for key, cost in value.items()}
        return tuple(one * share for one in value) if isinstance(value, tuple) else value * share

    names = set(Rates.model_fields) - {"threads", "whole"}
    more = last.model_copy(
        update={"threads": cores, **{name: scaled(getattr(last, name)) for name in names}}
    )
    return machine.model_copy(update={"cores": cores, "rates": (*machine.rates, more)})


def papers(machine: Machine) -> list[dict[str, Any]]:
    """Return what is predicted of papers100M, beside the paper's figures."""
    graph, rows = KNOWN["papers100M"], []
    for ranks, told in SAR.items():
        row: dict[str, Any] = {"machines": ranks, "paper": told}
        for model, width, more in (("sage", 256, {}), ("gat", 128, {"heads": 4})):
            config = make_config(
                data=graph.name, model=model, layers=3, hidden=width, norm="batch", **more
            )
            for name, costs in (("16", machine), ("72", with_cores(machine, _PAPER_CORES))):
                at = Setting(
                    config=config.resolved(),
                    spec=spec_of(config, graph),
                    statistics=graph,
                    machine=costs,
                    link=_INFINIBAND,
                )
                for strategy in ("sar", "halo"):
                    found = foresee(at, strategy, PRESETS[strategy], ranks)
                    row[f"{model}_{strategy}_gb"] = round(found.memory_bytes / 1e9, 1)
                    row[f"{model}_{strategy}_seconds_{name}_cores"] = round(found.seconds, 2)
                    row[f"{model}_{strategy}_exchange_seconds"] = round(found.phases.exchange, 2)
        rows.append(row)
    return rows


NODES, STEPS, EDGES, WIDTH, BAND = 1_000_000, 256, 10_000_000, 16, 20
_NETWORKS = {"paper": 25e9 / 8, "today": 50e9}
_PASSES = 12
"""Over the rows of a snapshot and layer, forward, forward again and backward."""
_PCIE = 50e9
"""Bytes per second to a GPU."""


def dynamic(gpu: Machine) -> list[dict[str, Any]]:
    """Return the seconds of an epoch on one GPU and on 128, by network and exchange."""
    rows = []
    for name in ("tm-gcn", "cd-gcn", "evolvegcn-o"):
        temporal = _temporal(name, in_width=2, hidden=WIDTH)
        told = STEPS * _snapshot(gpu, EDGES, WIDTH, BAND, sums=3)
        told += STEPS * _along_time(gpu, temporal)
        share, measured_by = measured_share(gpu, name)
        alone = told * share
        row: dict[str, Any] = {"model": name, "seconds_on_1": round(alone, 3)}
        row |= {"seconds_of": measured_by, "measured_share": round(share, 3)}
        row["seconds_on_1_by_kernels"] = round(told, 3)
        for ranks in (32, 128):
            plan = plan_time([EDGES] * STEPS, ranks, train_steps=STEPS)
            for network, bandwidth in _NETWORKS.items():
                choices = [_exchanges(part, plan) for part in temporal]
                for way in ("all-to-all", "best"):
                    seconds = sum(_seconds(each, way, ranks, bandwidth) for each in choices)
                    total = alone / ranks + seconds
                    row[f"{network}_{way}_{ranks}"] = round(total, 4)
                    row[f"{network}_{way}_{ranks}_times"] = round(alone / total, 1)
        rows.append(row)
    return rows


def measured_share(gpu: Machine, model: str) -> tuple[float, str]:
    """Return what an epoch took on the GPU over what its kernels' costs tell, and who measured."""
    engine = _engine_run(model)
    if engine is not None:
        facts, row = engine
        temporal = _temporal(model, in_width=WIDTH, hidden=WIDTH)
        told = _snapshot(gpu, row["edges"], WIDTH, facts["band"], sums=3, nodes=facts["nodes"])
        told += _along_time(gpu, temporal, facts["nodes"])
        return float(row["epoch_seconds"]) / (facts["snapshots"] * told), "time_parallel"
    found = json.loads(SNAPSHOTS.read_text().splitlines()[0])
    assert found["nodes"] == NODES, "rows are as many"
    # Forward, forward again and backward of two layers, each with its sums.
    told = _snapshot(gpu, found["edges"], width=8, life=found["window"], sums=6)
    return float(found["deltas epoch_median_ms"]) / 1e3 / (found["steps"] * told), "delta_transfer"


def _engine_run(model: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the newest epoch of the engine on a GPU, of the largest graph, and its facts."""
    if not ENGINE.exists():
        return None
    lines = [json.loads(line) for line in ENGINE.read_text().splitlines()]
    found = [
        (facts, row)
        for facts in reversed(lines)
        for row in facts["rows"]
        if facts["device"] == "cuda"
        and (row["model"], row["ranks"], row["block"]) == (model, 1, 0)
        and row.get("edges")
    ]
    return max(found, key=lambda pair: int(pair[0]["nodes"]), default=None)


def _temporal(name: str, *, in_width: int, hidden: int) -> list[TemporalLayer]:
    spec = DynamicSpec(name=name, in_width=in_width, hidden=hidden, layers=2, band=BAND)
    return [part for part in build_dynamic(spec).parts if isinstance(part, TemporalLayer)]


def _snapshot(
    gpu: Machine, edges: int, width: int, life: int, *, sums: int, nodes: int = NODES
) -> float:
    """Return the seconds of two layers on a snapshot whose edges live for some; both ways."""
    share = gpu.shared(1)
    summed = sums * edges * width * share.gather(width, nodes * width * 4)
    rows = 2 * _PASSES * nodes * width * share.of("element")
    products = 3 * 2 * nodes * width * width * share.product(width)
    shipped = 2 * (2 * edges / life * 8 / _PCIE)
    return summed + rows + products + shipped + 4 * gpu.layer_seconds


def _along_time(gpu: Machine, temporal: list[TemporalLayer], nodes: int = NODES) -> float:
    """Return the seconds of layers along time, of one snapshot; means along it are free."""
    share, seconds = gpu.shared(1), 0.0
    for part in temporal:
        if not isinstance(part, BandedMean):
            maps = 4 * part.out_width * (part.in_width + part.out_width)
            seconds += 4 * nodes * maps * share.product(WIDTH)
            seconds += 10 * nodes * 4 * part.out_width * share.of("element")
    return seconds


def _exchanges(part: TemporalLayer, plan: Any) -> dict[str, Traffic]:
    found = {"all-to-all": all_to_all_traffic(plan, NODES, part.in_width, part.out_width)}
    if isinstance(part, BandedMean):
        found["banded"] = banded_traffic(plan, NODES, part.out_width, part.band)
    elif (width := state_width(part)) is not None:
        found["wavefront"] = wavefront_traffic(plan, NODES, width, 64)
    return found


def _seconds(found: dict[str, Traffic], way: str, ranks: int, bandwidth: float) -> float:
    def of(name: str) -> float:
        traffic = found[name]
        seconds = traffic.size / ranks / bandwidth + traffic.messages / ranks * 5e-6
        # A state is handed on from rank to rank: the last begins when the first group came round.
        return seconds * (1 + ranks / 64) if name == "wavefront" else seconds

    return of(way) if way in found else min(of(name) for name in found)


def main() -> None:
    """Print all of it, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.manual_seed(0)
    known = machines()
    result: dict[str, Any] = {
        "benchmark": "elsewhere",
        "machine": known["cpu"].name,
        "gpu": known["cuda"].name,
        "papers100M": papers(known["cpu"]),
        "dynamic": dynamic(known["cuda"]),
    }
    for row in [*result["papers100M"], *result["dynamic"]]:
        print(json.dumps(row, indent=1))
    if asked.out is not None:
        asked.out.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
