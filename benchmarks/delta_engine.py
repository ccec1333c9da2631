"""What deltas are worth in training itself: epochs of the engine, snapshots sent in several ways.

Run: python -m benchmarks.delta_engine [--json FILE] [--device cpu|cuda] [--scale 1.0]

As `benchmarks.delta_transfer`, but that everything is the engine's: `Snapshots` that `TimeRunner`
reads in time blocks, the first layer's aggregate made once, losses, Adam. What differs is what
stands for the stream of snapshots:

- deltas: the engine's own; of TM-GCN, whose snapshots are means over a band, counts alone travel,
  as the engine has it where copies are slow;
- coo64: whole snapshots as int64 rows and columns with float32 weights, 20 bytes per edge;
- csr32: int32 row starts and columns with a byte for a weight, 5 bytes per edge; of means float32
  values, 8 bytes;
- deltas+values: of TM-GCN alone, deltas of edges with the values of all of them.

All lie in pinned memory, each next one travels while one is used. The ways take turns, and all must
have the same losses. EvolveGCN-O and TM-GCN have no LSTM that hides what travels. `--device cpu
--scale 0.002` tries everything on a small graph, where nothing is copied and times mean nothing.

Shapes: N nodes, E edges of a snapshot, T snapshots.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
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
from siafu.ops import CSR, DeltaStream, WindowStream, set_threads, window_means

NODES, EDGES, STEPS, LIFE, BLOCK = 500_000, 8_000_000, 20, 10, 5
BAND = 10
MODELS = ("tm-gcn", "evolvegcn-o")


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
        self.sent_bytes = 0
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
        self.sent_bytes += sum(tensor.nbytes for tensor in hosted)
        if self._copies is None:
            return list(hosted), None
        copied = torch.cuda.Event()
        with torch.cuda.stream(self._copies):
            moved = [tensor.to(self._device, non_blocking=True) for tensor in hosted]
            copied.record(self._copies)
        return moved, copied


def ways(nodes: int, *, means: bool) -> dict[str, Callable[..., Any]]:
    """Return what stands for the engine's stream of snapshots, or of means, by name."""

    hosted: dict[int, list[CSR]] = {}

    def weights(csr: CSR) -> Tensor:
        assert csr.weight is not None, "the engine's snapshots have weights"
        return csr.weight

    def small(csr: CSR) -> Tensor:
        return weights(csr) if means else (2 * weights(csr)).byte()

    def from_coo(row: Tensor, column: Tensor, weight: Tensor, *, longest: int) -> CSR:
        indptr = torch.searchsorted(row, torch.arange(nodes + 1, device=row.device))
        return CSR(indptr, column.int(), nodes, weight, longest=longest)

    def from_csr(indptr: Tensor, index: Tensor, weight: Tensor, *, longest: int) -> CSR:
        return CSR(indptr.long(), index, nodes, weight if means else weight / 2, longest=longest)

    def made(stream: Callable[..., Any]) -> Callable[..., Any]:
        """Have the host make means, once for all ways, and the stream send them."""

        def of_means(found: Iterable[CSR], *, band: int, first: int, **how: Any) -> Any:
            if first not in hosted:
                means_of_all = window_means(found, band)
                hosted[first] = list(islice(means_of_all, min(first, band - 1), None))
            return stream(hosted[first], first=first, **how)

        return of_means if means else stream

    whole = partial(partial, WholeStream)
    coo64 = whole(pack=lambda c: (c.rows(), c.index.long(), weights(c)), unpack=from_coo)
    csr32 = whole(pack=lambda c: (c.indptr.int(), c.index, small(c)), unpack=from_csr)
    found = {"coo64": made(coo64), "csr32": made(csr32)}
    if means:
        found["deltas+values"] = made(DeltaStream)
    return found | {"deltas": WindowStream if means else DeltaStream}


def begin(
    model: str, graph: DynamicGraph, device: str, stream: Callable[..., Any]
) -> tuple[Any, list[Any]]:
    """Return training with snapshots sent this way, and the streams that it has."""
    band = {"bandwidth": BAND} if model == "tm-gcn" else {}
    config = make_config(
        data="living",
        model=model,
        task="node",
        hidden=8,
        time_block=BLOCK,
        split="0.98,0.01",
        device=device,
        **band,
    ).resolved()
    streams: list[Any] = []

    def kept(*given: Any, **how: Any) -> Any:
        streams.append(stream(*given, **how))
        return streams[-1]

    # Few enough edges would be kept on the device.
    engine, kind = vars(engine_snapshots), "WindowStream" if model == "tm-gcn" else "DeltaStream"
    own = engine[kind], vars(engine_network)["Reading"], engine["copies_are_slow"]
    engine[kind], engine["copies_are_slow"] = kept, lambda device: True
    vars(engine_network)["Reading"] = partial(engine_snapshots.Reading, most_edges_kept=0)
    try:
        training = begin_dynamic(config, graph, World(device=torch.device(device)))
    finally:
        engine[kind], vars(engine_network)["Reading"], engine["copies_are_slow"] = own
    assert streams, "the engine has asked for no stream"
    return training, streams


def measure_model(model: str, graph: DynamicGraph, args: argparse.Namespace) -> dict[str, Any]:
    """Return the row of one model."""
    trainings, losses, sent, seconds = {}, {}, {}, {}
    for name, stream in ways(graph.num_nodes, means=model == "tm-gcn").items():
        started = perf_counter()
        training, streams = begin(model, graph, args.device, stream)
        trainings[name] = training
        seconds[name] = perf_counter() - started
        losses[name] = [training.step() for _ in range(3)]
        before = sum(stream.sent_bytes for stream in streams)
        losses[name].append(training.step())
        sent[name] = sum(stream.sent_bytes for stream in streams) - before
        print(f"{model} {name}: ready after {seconds[name]:.1f} s", flush=True)
    for name, found in losses.items():
        np.testing.assert_allclose(found, losses["coo64"], rtol=1e-4, err_msg=name)
    spreads = take_turns(
        {name: training.step for name, training in trainings.items()},
        repeats=args.repeats,
        device=args.device,
    )
    row: dict[str, Any] = {"model": model, "nodes": graph.num_nodes, "snapshots": STEPS}
    row |= {"edges": int(graph.edges_per_snapshot().mean()), "block": BLOCK, "life": LIFE}
    row |= {"band": BAND if model == "tm-gcn" else None}
    for name, spread in spreads.items():
        row |= {f"{name} epoch_{unit}": value for unit, value in spread.row().items()}
        row[f"{name} epoch_mb"] = round(sent[name] / 1e6, 3)
        row[f"{name} prepared_s"] = round(seconds[name], 2)
        if name != "deltas":
            shorter = 1 - spreads["deltas"].median / spread.median
            row[f"shorter than {name} %"] = round(100 * shorter, 1)
            row[f"{name} / deltas bytes"] = round(sent[name] / max(sent["deltas"], 1), 2)
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
    started = perf_counter()
    graph = living_pairs(int(NODES * args.scale), int(EDGES * args.scale))
    print(f"graph made in {perf_counter() - started:.1f} s", flush=True)
    for model in args.models.split(","):
        row = {"benchmark": "delta_engine", **measure_model(model, graph, args)}
        row |= machine(args.device)
        if args.json:
            append_json(args.json, row)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
