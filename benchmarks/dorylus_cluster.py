"""Does the cluster in virtual time tell what the Dorylus paper measured?

Run: python -m benchmarks.dorylus_cluster [--json benchmarks/results/dorylus_cluster.jsonl]

The paper's graphs on the paper's machines in its three modes: with Lambdas (pipelined, ghosts of
the last epoch at most), CPUs alone and GPUs alone (both without a pipeline, as the released code
runs them). A fourth mode is not in the paper: CPUs alone, pipelined, every loop on all cores.

Each task's work is counted from what the released code does: which rows it reads, which tensors it
writes, on how many threads. One set of constants (`Costs`) serves all graphs, models and modes;
none was chosen by a ratio of the paper. One, how many ghosts the paper's graphs have when they
are cut, nobody gives: it is set by one absolute time, an epoch of GPUs alone with GAT on Amazon.
The paper's seconds are until a model had converged; Lambdas needed 8 % more epochs (its figure for
S = 0), which stands in their seconds and dollars here.

The paper's table was written down from memory. The dollars of its CPU and GPU rows are its seconds
times servers times price, to the cent, which is how it was checked; Reddit-large's GPU row was not
sure and is left out.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.measure import append_json, machine
from siafu.elastic.pools.cloud import CloudModel
from siafu.pipeline.cluster import Cluster
from siafu.pipeline.cluster_plan import ClusterPlan, ClusterRun, GraphWork, Script, TensorWork
from siafu.pipeline.scheduler import BACKWARD, FORWARD

Mode = Literal["lambda", "cpu", "gpu", "cpu pipelined"]
MODES: tuple[Mode, ...] = ("lambda", "cpu", "gpu", "cpu pipelined")
Row = dict[str, Any]
FLOAT = 4
LINE = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """What work takes, of one core of the paper's servers unless said otherwise."""

    cores_per_vcpu: float = 0.65
    """Two virtual ones are the threads of one core."""
    row_seconds: float = 60e-9
    """Until a row that is read through a pointer comes from memory; then it streams."""
    stream_bytes: float = 8e9
    """Per second, of tensors read or written in order."""
    fresh_bytes: float = 2.5e9
    """Per second, of a tensor just allocated, cleared for the first time."""
    server_bytes: float = 30e9
    """Per second, from memory, by all cores of 8 virtual ones together."""
    dot_seconds: float = 1e-9
    """Per element of a dot product that adds to one number in memory."""
    tanh_seconds: float = 8e-9
    flops: float = 50e9
    ghost_seconds: float = 1.5e-6
    """Per row of another server, on either side: an ordered map is searched, a row is copied."""
    serving_per_byte: float = 1e-9
    """Core seconds, of a graph server for a byte to or from a Lambda."""
    invoke_seconds: float = 1e-3
    """Core seconds, of a graph server for a call of a Lambda over HTTPS."""
    gpu_bytes: float = 700e9
    """Per second, of a V100's memory."""
    gpu_flops: float = 10e12
    pcie_bytes: float = 5e9
    """Per second, of tensors in ordinary memory."""
    message_seconds: float = 2e-4
    halo_share: float = 0.342
    """Ghosts of the paper's graphs, of those of a made graph of the same degree that METIS cut."""
    lagging_epochs: float = 1.08
    """Epochs that Lambdas need, of those that others need (the paper's figure for S = 0)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A graph, a model and the machines that the paper took for it."""

    model: Literal["gcn", "gat"]
    nodes: float
    edges: float
    widths: tuple[int, int, int]
    servers: int
    vcpus: int
    card_bits: float
    dollars_per_hour: float
    lambdas: int
    halo: float
    """Rows of other servers that a server holds, per row of its own, in a made graph."""
    weight_servers_per_hour: float = 4 * 0.17


AMAZON = Case(
    model="gat",
    nodes=9.2e6,
    edges=313.9e6,
    widths=(300, 64, 25),
    servers=12,
    vcpus=8,
    card_bits=25e9,
    dollars_per_hour=0.432,
    lambdas=100,
    halo=5.09,
)
REDDIT = replace(
    AMAZON,
    nodes=232.9e3,
    edges=114.8e6,
    widths=(602, 128, 41),
    servers=10,
    card_bits=10e9,
    dollars_per_hour=0.34,
    lambdas=40,
    halo=8.8,
)
HALO_OF_SERVERS = {4: 2.29, 8: 4.00, 12: 5.09, 16: 5.90}
"""Of 60,000 nodes of degree 34 with communities (made as `benchmarks.value` does), cut by METIS."""
CASES: dict[str, Case] = {
    "amazon gat": AMAZON,
    "reddit-small gat": REDDIT,
    "amazon gcn": replace(AMAZON, model="gcn", servers=8, lambdas=90, halo=HALO_OF_SERVERS[8]),
    "reddit-small gcn": replace(
        REDDIT, model="gcn", servers=2, lambdas=80, halo=0.99, weight_servers_per_hour=2 * 0.17
    ),
    "reddit-large gcn": replace(
        AMAZON,
        model="gcn",
        nodes=1.1e6,
        edges=1.3e9,
        widths=(301, 128, 50),
        lambdas=40,
        halo=10.6,
        weight_servers_per_hour=4 * 0.34,
    ),
    "friendster gcn": replace(
        AMAZON,
        model="gcn",
        nodes=65.6e6,
        edges=3.6e9,
        widths=(32, 48, 51),
        servers=32,
        vcpus=16,
        dollars_per_hour=0.864,
        lambdas=50,
        halo=10.9,
        weight_servers_per_hour=8 * 0.34,
    ),
}
GPU_PER_HOUR, GPU_CARD_BITS = 3.06, 10e9
LAMBDA_GB_SECOND, LAMBDA_REQUEST = 0.0000166667, 0.2e-6


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows, edges and ghosts of an interval, and how its work is spread."""

    case: Case
    costs: Costs
    mode: Mode
    rows: float
    edges: float
    ghosts: float

    @property
    def _cores(self) -> float:
        return self.case.vcpus * self.costs.cores_per_vcpu

    @property
    def _memory_bytes(self) -> float:
        return self.costs.server_bytes * self.case.vcpus / 8

    @property
    def is_piped(self) -> bool:
        """Whether chunks run one beside another, each loop on a thread of its own."""
        return self.mode in ("lambda", "cpu pipelined")

    def _serial(self, core_seconds: float) -> float:
        """Return the core seconds that a server loses to work on one thread."""
        return core_seconds if self.is_piped else core_seconds * self._cores

    def product(self, wide: int, narrow: int, times: int = 1) -> float:
        """Return core seconds of dense products."""
        operations = 2 * self.rows * wide * narrow * times
        if self.mode == "gpu":
            moved = FLOAT * self.rows * (wide + narrow)
            return self._gpu(moved, moved) + self._cores * operations / self.costs.gpu_flops
        return operations / self.costs.flops

    def _gpu(self, copied: float, touched: float) -> float:
        seconds = copied / self.costs.pcie_bytes + touched / self.costs.gpu_bytes
        return self._cores * seconds

    def gather(self, width: int, passes: int = 1, edge_values: bool = False) -> float:
        """Return core seconds of sums over edges."""
        read = FLOAT * self.edges * width * passes
        if self.mode == "gpu":
            copied = FLOAT * (2 * self.rows + passes * self.ghosts) * width
            copied += FLOAT * self.edges * edge_values
            return self._gpu(copied, read)
        rows = self.edges * passes * self.costs.row_seconds
        return max(rows + read / self.costs.stream_bytes, self._cores * read / self._memory_bytes)

    def scatter(self) -> float:
        """Return core seconds of ghosts sent and received: one thread each without Lambdas."""
        seconds = self.ghosts * self.costs.ghost_seconds
        return 2 * seconds if self.is_piped else self._cores * seconds

    def tanh(self, width: int) -> float:
        """Return core seconds of the activation."""
        return 0.0 if self.mode == "gpu" else self.rows * width * self.costs.tanh_seconds

    def edges_forward(self, width: int) -> float:
        """Return core seconds of attention scores: a dot product for each edge."""
        if self.mode == "gpu":
            return self._gpu(FLOAT * (self.rows * width + self.edges), 3 * FLOAT * self.edges)
        return self.edges * width * self.costs.dot_seconds

    def edges_backward(self, width: int) -> float:
        """Return core seconds of the scores' gradients: a tensor of a row for each edge."""
        costs, whole = self.costs, FLOAT * self.edges * width
        if self.mode == "gpu":
            return self._gpu(FLOAT * (2 * self.rows * width + 2 * self.edges), 8 * whole)
        made = self._serial(whole / costs.fresh_bytes) + whole / costs.stream_bytes
        summed = whole / costs.stream_bytes
        if self.mode == "cpu":
            # Column by column: a line of memory for each number.
            summed = self._cores * (LINE / FLOAT) * whole / self._memory_bytes
        return made + whole / costs.stream_bytes + summed + self.product(width, width)

    def graph(self, direction: int, layer: int, width: int, seconds: float) -> GraphWork:
        """Return the exchange of ghosts and a gather."""
        sent = round(self.ghosts * (FLOAT * width + FLOAT))
        return GraphWork(direction, layer, seconds + self.scatter(), sent)


def intervals_of(case: Case, mode: Mode) -> int:
    """Return how many intervals a server has."""
    return {"lambda": case.lambdas, "cpu pipelined": 16}.get(mode, 1)


def piece_of(case: Case, costs: Costs, mode: Mode) -> Piece:
    """Return one interval of a case."""
    share = case.servers * intervals_of(case, mode)
    ghosts = costs.halo_share * case.halo * case.nodes / share
    return Piece(case, costs, mode, case.nodes / share, case.edges / share, ghosts)


def gat(piece: Piece) -> Script:
    """Return an epoch of the released GAT."""
    rows, edges = piece.rows * FLOAT, piece.edges * FLOAT
    widths = piece.case.widths
    script: list[TensorWork | GraphWork] = []

    def tensor(kind: str, seconds: float, sent: float, received: float) -> None:
        script.append(TensorWork(kind, seconds, round(sent), round(received)))

    for layer in (0, 1):
        into, out = widths[layer], widths[layer + 1]
        tensor(f"AV {layer}", piece.product(into, out), rows * into, rows * out)
        tensor(f"AE {layer}", piece.edges_forward(out), rows * (out + 2), 2 * edges)
        gather = piece.gather(out, edge_values=True)
        script.append(piece.graph(FORWARD, layer, out, gather))
    for layer in (1, 0):
        into, out = widths[layer], widths[layer + 1]
        seconds = piece.edges_backward(out)
        tensor(f"AE back {layer}", seconds, rows * (2 * out + 2) + edges, edges)
        gather = piece.gather(out, passes=2, edge_values=True)
        script.append(piece.graph(BACKWARD, layer, out, gather))
        seconds = piece.product(into, out, times=1 + (layer > 0))
        received = rows * into if layer else 0
        tensor(f"AV back {layer}", seconds, rows * (into + out), received)
    return tuple(script)


def gcn(piece: Piece) -> Script:
    """Return an epoch of the released GCN; ghosts of the input are there from the start."""
    rows, (first, hidden, classes) = piece.rows * FLOAT, piece.case.widths
    input_gather = GraphWork(FORWARD, 0, piece.gather(first), 0)
    product = piece.product(first, hidden) + piece.tanh(hidden)
    last = piece.product(hidden, classes, times=3)
    back = piece.product(first, hidden) + piece.tanh(hidden)
    return (
        input_gather,
        TensorWork("AV 0", product, round(rows * first), round(2 * rows * hidden)),
        piece.graph(FORWARD, 1, hidden, piece.gather(hidden)),
        TensorWork("AV 1", last, round(rows * (hidden + classes)), round(rows * hidden)),
        piece.graph(BACKWARD, 1, hidden, piece.gather(hidden)),
        TensorWork("AV back 0", back, round(rows * (first + 2 * hidden)), 0),
    )


def simulate(case: Case, costs: Costs, mode: Mode, epochs: int = 6) -> ClusterRun:
    """Return what an epoch takes."""
    piece = piece_of(case, costs, mode)
    bits = GPU_CARD_BITS if mode == "gpu" else case.card_bits
    stated = {"failure": 0.0, "loss": 0.0, "straggler": 0.0, "speed": 0.11 * costs.cores_per_vcpu}
    cloud = replace(CloudModel.dorylus(), **stated)
    plan = ClusterPlan(
        servers=case.servers,
        intervals=intervals_of(case, mode),
        cores=case.vcpus * costs.cores_per_vcpu,
        card_bytes=bits / 8,
        cloud=cloud if mode == "lambda" else None,
        workers=case.lambdas,
        latest=piece.is_piped,
        overlap=piece.is_piped,
        message_seconds=costs.message_seconds,
        serving_per_byte=costs.serving_per_byte,
        serving_per_task=costs.invoke_seconds,
    )
    return Cluster(plan, gat(piece) if case.model == "gat" else gcn(piece)).run(epochs, skipped=2)


def to_converge(
    case: Case, costs: Costs, mode: Mode, run: ClusterRun | None = None
) -> tuple[float, float]:
    """Return seconds and dollars, as the paper counts them, per epoch that others need."""
    run = simulate(case, costs, mode) if run is None else run
    epochs = 1.0 if mode in ("cpu", "gpu") else costs.lagging_epochs
    hours = epochs * run.epoch_seconds / 3600
    if mode == "gpu":
        return 3600 * hours, case.servers * GPU_PER_HOUR * hours
    paid = case.servers * case.dollars_per_hour * hours
    if mode == "lambda":
        pool = run.billed_seconds * 0.1875 * LAMBDA_GB_SECOND + run.requests * LAMBDA_REQUEST
        paid += case.weight_servers_per_hour * hours + epochs * pool
    return 3600 * hours, paid


TABLE: dict[str, dict[Mode, tuple[float, float]]] = {
    "reddit-small gcn": {"lambda": (860.6, 0.20), "cpu": (1005.4, 0.19), "gpu": (162.9, 0.28)},
    "reddit-large gcn": {"lambda": (1020.1, 1.69), "cpu": (1290.5, 1.85)},
    "amazon gcn": {"lambda": (512.7, 0.79), "cpu": (710.2, 0.68), "gpu": (385.3, 2.62)},
    "friendster gcn": {"lambda": (1133.3, 13.0), "cpu": (1990.8, 15.3), "gpu": (1490.4, 40.5)},
    "reddit-small gat": {"lambda": (496.3, 1.15), "cpu": (1270.4, 1.20), "gpu": (130.9, 1.11)},
    "amazon gat": {"lambda": (853.4, 2.67), "cpu": (2092.7, 3.01), "gpu": (1039.2, 10.60)},
}
"""The paper's seconds and dollars to convergence."""


def ratios(found: dict[Mode, tuple[float, float]]) -> dict[str, float]:
    """Return times and values of Lambdas over the others, from (seconds, dollars)."""
    seconds, paid = found["lambda"]
    told = {}
    for mode, (others, price) in found.items():
        if mode != "lambda":
            told[f"faster than {mode}"] = others / seconds
            told[f"cheaper than {mode}"] = price / paid
            told[f"value over {mode}"] = others * price / (seconds * paid)
    return {name: round(value, 3) for name, value in told.items()}


def table(costs: Costs) -> list[Row]:
    """Return each case: simulated beside the paper."""
    rows = []
    for name, case in CASES.items():
        runs = {mode: simulate(case, costs, mode) for mode in MODES}
        found = {mode: to_converge(case, costs, mode, run) for mode, run in runs.items()}
        told, paper = ratios(found), ratios(TABLE[name])
        rows.append(
            {
                "case": name,
                "epoch_s": {mode: round(run.epoch_seconds, 3) for mode, run in runs.items()},
                "server_cores_used": round(runs["lambda"].core_share, 3),
                "simulated": told,
                "paper": paper,
                "off": {key: round(told[key] / paper[key] - 1, 3) for key in paper},
            }
        )
        for key, value in told.items():
            beside = (
                f"paper {paper[key]:6.3f}  {told[key] / paper[key] - 1:+.0%}"
                if key in paper
                else ""
            )
            print(f"{name:<18} {key:<28} {value:7.3f}  {beside}", flush=True)
    return rows


PAPER_SCALING = {"faster": 2.82, "dollars": 1.05, "value": 2.68}
"""From 4 to 16 servers with Lambdas."""


def scaling(costs: Costs) -> Row:
    """Return what 16 servers bring over 4, with Lambdas; Amazon with a GCN is assumed."""
    found = {}
    for servers in (4, 16):
        case = replace(CASES["amazon gcn"], servers=servers, halo=HALO_OF_SERVERS[servers])
        found[servers] = to_converge(case, costs, "lambda")
    faster, dollars = found[4][0] / found[16][0], found[16][1] / found[4][1]
    told = {"faster": faster, "dollars": dollars, "value": faster / dollars}
    told = {key: round(value, 3) for key, value in told.items()}
    for key, value in told.items():
        print(f"4 to 16 servers    {key:<28} {value:7.3f}  paper {PAPER_SCALING[key]:6.3f}")
    return {"simulated": told, "paper": PAPER_SCALING}


def headline(rows: list[Row], scaled: Row) -> list[Row]:
    """Return the paper's four ratios: those of its abstract are of GAT on Amazon."""
    gat_row = rows[0]
    asked = {
        "value over cpu": "value over CPUs alone",
        "faster than gpu": "faster than GPUs",
        "value over gpu": "value over GPUs ('4.83 x cheaper': 1.22 x faster times 3.97 x cheaper)",
    }
    told = [
        {"ratio": label, "paper": gat_row["paper"][key], "simulated": gat_row["simulated"][key]}
        for key, label in asked.items()
    ]
    told.append(
        {"ratio": "16 servers over 4", "paper": 2.82, "simulated": scaled["simulated"]["faster"]}
    )
    for row in told:
        row["off"] = round(row["simulated"] / row["paper"] - 1, 3)
        row["within_20_percent"] = abs(row["off"]) <= 0.2
        print(row)
    return told


def main() -> None:
    """Simulate every case; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    costs, began = Costs(), time.process_time()
    rows, scaled = table(costs), scaling(costs)
    result = {
        "benchmark": "dorylus-cluster",
        "headline": headline(rows, scaled),
        "rows": rows,
        "scaling": scaled,
        "costs": asdict(costs),
        "processor_s": round(time.process_time() - began, 1),
        **machine(),
    }
    if args.json:
        append_json(args.json, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
