"""What deltas are worth in training itself: epochs of the engine, snapshots sent in three ways.

Run: python -m benchmarks.delta_engine [--json FILE] [--device cpu|cuda] [--scale 1.0]

As `benchmarks.delta_transfer`, but that everything is the engine's: `Snapshots` that `TimeRunner`
reads in time blocks, the first layer's aggregate made once, losses, Adam. What differs is what
stands for the stream of snapshots: deltas; whole snapshots as int64 rows and columns with float32
weights (coo64, 20 bytes per edge); or as int32 row starts and columns with a byte for a weight
(csr32, 5 bytes). All lie in pinned memory, each next one travels while one is used. The ways take
turns, and all must have the same losses.

Shapes: N nodes, E edges of a snapshot, T snapshots.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import append_json, machine, take_turns
from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin_dynamic
from siafu.engine.dynamic import network as engine_network
from siafu.engine.dynamic import snapshots as engine_snapshots
from siafu.graph import DynamicGraph, IntegerIds
from siafu.ingest import Events, graph_from_events
from siafu.ops import CSR, DeltaStream, set_threads

NODES, EDGES, STEPS, LIFE, BLOCK = 1_000_000, 16_000_000, 20, 10, 5
MODELS = ("wd-gcn", "evolvegcn-o")


def living_pairs(nodes: int, edges: int) -> DynamicGraph:
    """Return snapshots of random pairs that live for some steps, with features and classes.

    The first ones have fewer: all edges are born within the steps.
    """
    draw = np.random.default_rng(0)
    births = max(1, edges // (2 * LIFE))
    src, dst = draw.integers(0, nodes, size=(2, births * STEPS))
    time = np.repeat(np.arange(STEPS), births)
    apart = src != dst
    events = Events(
        name="living",
        ids=IntegerIds(np.arange(nodes)),
        src=src[apart],
        dst=dst[apart],
        time=time[apart],
        x=draw.standard_normal((nodes, 8)).astype(np.float32),
        y=draw.integers(0, 4, nodes),
        num_classes=4,
        num_steps=STEPS,
    )
    return graph_from_events(events, window="each", edge_life=LIFE, symmetric=True)[0]


class WholeStream:
    """Stands for `DeltaStream`: whole snapshots, the next one travelling while one is used."""

    sent_deltas = 0

    def __init__(
        self,
        snapshots: Iterable[CSR],
        *,
        pack: Callable[[CSR], tuple[Tensor, ...]],
        unpack: Callable[..., CSR],
        device: torch.device,
        transpose: str,
        first: int,
    ) -> None:
        assert transpose in ("none", "same"), "the graph is symmetric"
        self._device, self._first, self._unpack = device, first, unpack
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._is_symmetric, self.has_loops, self._longest = transpose == "same", False, 0
        self._hosted: list[tuple[Tensor, ...]] = []
        for csr in snapshots:
            packed = pack(csr)
            self._hosted.append(tuple(t.pin_memory() if self._copies else t for t in packed))
            self._longest = max(self._longest, int(csr.degree().max()))
            self.has_loops = self.has_loops or bool((csr.index == csr.rows()).any())

    def read(self, times: range) -> Iterator[tuple[int, CSR]]:
        """Yield each of these times with its snapshot."""
        coming = self._start(times[0])
        for time in times:
            tensors, copied = coming
            if time != times[-1]:
                coming = self._start(time + 1)
            if copied is not None:
                users = torch.cuda.current_stream(self._device)
                users.wait_event(copied)
                for tensor in tensors:
                    tensor.record_stream(users)
            csr = self._unpack(*tensors, longest=self._longest)
            yield time, csr.with_transpose(csr) if self._is_symmetric else csr

    def _start(self, time: int) -> tuple[list[Tensor], torch.cuda.Event | None]:
        hosted = self._hosted[time - self._first]
        if self._copies is None:
            return list(hosted), None
        copied = torch.cuda.Event()
        with torch.cuda.stream(self._copies):
            moved = [tensor.to(self._device, non_blocking=True) for tensor in hosted]
            copied.record(self._copies)
        return moved, copied


def ways(nodes: int) -> dict[str, Callable[..., Any]]:
    """Return what stands for `DeltaStream`, by name."""

    def weights(csr: CSR) -> Tensor:
        assert csr.weight is not None, "the engine's snapshots have weights"
        return csr.weight

    def from_coo(row: Tensor, column: Tensor, weight: Tensor, *, longest: int) -> CSR:
        indptr = torch.searchsorted(row, torch.arange(nodes + 1, device=row.device))
        return CSR(indptr, column.int(), nodes, weight, longest=longest)

    def from_csr(indptr: Tensor, index: Tensor, weight: Tensor, *, longest: int) -> CSR:
        return CSR(indptr.long(), index, nodes, weight / 2, longest=longest)

    def whole(pack: Callable[[CSR], tuple[Tensor, ...]], unpack: Any) -> Callable[..., Any]:
        return lambda found, **how: WholeStream(found, pack=pack, unpack=unpack, **how)

    return {
        "coo64": whole(lambda c: (c.rows(), c.index.long(), weights(c)), from_coo),
        "csr32": whole(lambda c: (c.indptr.int(), c.index, (2 * weights(c)).byte()), from_csr),
        "deltas": DeltaStream,
    }


def measure_model(model: str, graph: DynamicGraph, args: argparse.Namespace) -> dict[str, Any]:
    """Return the row of one model."""
    device = torch.device(args.device)
    config = make_config(
        data="living",
        model=model,
        task="node",
        hidden=8,
        time_block=BLOCK,
        split="0.98,0.01",
        device=args.device,
    ).resolved()
    trainings, losses = {}, {}
    for name, stream in ways(graph.num_nodes).items():
        # Few enough edges would be kept on the device.
        vars(engine_network)["Reading"] = partial(engine_snapshots.Reading, most_edges_kept=0)
        vars(engine_snapshots)["DeltaStream"] = stream
        trainings[name] = begin_dynamic(config, graph, World(device=device))
        losses[name] = [trainings[name].step() for _ in range(3)]
    for name, found in losses.items():
        np.testing.assert_allclose(found, losses["coo64"], rtol=1e-4, err_msg=name)
    spreads = take_turns(
        {name: training.step for name, training in trainings.items()},
        repeats=args.repeats,
        device=args.device,
    )
    row: dict[str, Any] = {"model": model, "nodes": graph.num_nodes, "snapshots": STEPS}
    row |= {"edges": int(graph.edges_per_snapshot().mean()), "block": BLOCK, "life": LIFE}
    for name, spread in spreads.items():
        row |= {f"{name} epoch_{unit}": value for unit, value in spread.row().items()}
        shorter = 1 - spreads["deltas"].median / spread.median
        row[f"shorter than {name} %"] = round(100 * shorter, 1)
    return row


def main() -> None:
    """Measure every model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="append one line for each row to this file")
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=default)
    parser.add_argument("--scale", type=float, default=1.0, help="of nodes and edges")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    set_threads(args.threads)
    graph = living_pairs(int(NODES * args.scale), int(EDGES * args.scale))
    for model in args.models.split(","):
        row = {"benchmark": "delta_engine", **measure_model(model, graph, args)}
        row |= machine(args.device)
        if args.json:
            append_json(args.json, row)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
