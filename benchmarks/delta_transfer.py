"""How much of an epoch does it save to send a device only what changes from snapshot to snapshot?

Run: python -m benchmarks.delta_transfer [--json FILE] [--device cpu|cuda] [--scale 1.0]

Edges of an undirected graph live for w steps (10 and 29, as edge life and smoothing of TM-GCN make
them), so a snapshot shares (w - 1) / w of its edges with the next. Four ways to get every snapshot
to the device, all from pinned memory and each next one on its way while one is used:

- coo64: rows and columns as int64 and values, 20 bytes an edge, the index made on the device;
- csr32+values: row starts and columns as int32, normalised values, 8 bytes an edge;
- csr32: without values, which are made on the device, 4 bytes an edge: the leanest whole snapshot;
- deltas: `siafu.ops.DeltaStream`.

An epoch is that of checkpointing along time: forward over all snapshots, then backward in time
with every snapshot's forward run again. Snapshots thus travel twice, but for the ones at both ends
of time, where a walk turns and every way still has them.

Shapes: N nodes, E edges of a snapshot, T snapshots, F width.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import Side, Spread, append_json, machine, take_turns
from siafu.ops import CSR, DeltaStream, gcn_scales, gcn_values, neighbour_sum, set_threads

WINDOWS = (10, 29)
NODES, EDGES, STEPS, WIDTH = 1_000_000, 16_000_000, 10, 8
PROBE_BYTES = 1 << 28

Graph = tuple[CSR, Tensor, Tensor]
"""Edges, the scale of rows and columns (or none where values are in the edges), the own weight."""

Arriving = tuple[list[Tensor], torch.cuda.Event | None]
"""A snapshot's tensors on their way, and what tells that they are there."""


def sliding_window(nodes: int, edges: int, steps: int, life: int) -> list[CSR]:
    """Return snapshots of pairs that live for `life` steps, each pair in both directions."""
    draw = np.random.default_rng(0)
    births = max(1, edges // (2 * life))
    pairs = draw.integers(0, nodes, size=(2, births * (steps + life - 1)))
    left, right = pairs[:, pairs[0] != pairs[1]]
    keys = np.stack([left * nodes + right, right * nodes + left], axis=1)
    per_step = len(keys) // (steps + life - 1)
    snapshots = []
    for t in range(steps):
        alive = np.sort(keys[t * per_step : (t + life) * per_step].reshape(-1))
        alive = alive[np.append(True, alive[1:] != alive[:-1])]
        dst, src = np.divmod(alive, nodes)
        counts = np.bincount(dst, minlength=nodes)
        indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
        snapshots.append(CSR(indptr, torch.from_numpy(src.astype(np.int32)), nodes))
    return snapshots


@dataclass(frozen=True)
class Carrier:
    """One way to bring snapshots to the device."""

    payloads: Callable[[Sequence[int]], list[tuple[Tensor, ...]]]
    """What travels for a walk over these times, in host memory."""
    walk: Callable[[Sequence[int]], Iterator[Graph]]
    """The snapshots of these times on the device."""


class WholeSnapshots:
    """Whole snapshots, copied one ahead of their use."""

    def __init__(
        self,
        hosted: list[tuple[Tensor, ...]],
        build: Callable[..., Graph],
        device: torch.device,
    ) -> None:
        pin = device.type == "cuda"
        self._hosted = [tuple(t.pin_memory() if pin else t for t in row) for row in hosted]
        self._build, self._device = build, device
        self._stream = torch.cuda.Stream(device) if pin else None
        self._held: tuple[int, Graph] | None = None

    def payloads(self, times: Sequence[int]) -> list[tuple[Tensor, ...]]:
        """Return the tensors of every snapshot of the walk but the first, which is there."""
        return [self._hosted[t] for t in times[1:]]

    def walk(self, times: Sequence[int]) -> Iterator[Graph]:
        """Yield the snapshots; the next one travels while one is used."""
        if self._held is None or self._held[0] != times[0]:
            self._held = (times[0], self._finish(self._start(times[0])))
        for upcoming in times[1:]:
            arriving = self._start(upcoming)
            yield self._held[1]
            self._held = (upcoming, self._finish(arriving))
        yield self._held[1]

    def _finish(self, arriving: Arriving) -> Graph:
        tensors, copied = arriving
        if copied is not None:
            users = torch.cuda.current_stream(self._device)
            users.wait_event(copied)
            for tensor in tensors:
                tensor.record_stream(users)
        return self._build(*tensors)

    def _start(self, t: int) -> Arriving:
        if self._stream is None:
            return list(self._hosted[t]), None
        copied = torch.cuda.Event()
        with torch.cuda.stream(self._stream):
            moved = [tensor.to(self._device, non_blocking=True) for tensor in self._hosted[t]]
            copied.record(self._stream)
        return moved, copied


def carriers_of(snapshots: list[CSR], device: torch.device) -> dict[str, Carrier]:
    """Return the four ways; deltas last."""
    nodes = snapshots[0].num_rows
    values = [gcn_values(csr).float() for csr in snapshots]
    own = [gcn_scales(csr)[1].float() for csr in snapshots]
    none = torch.ones(0, device=device)
    longest = max(int(csr.degree().max()) for csr in snapshots)  # as deltas know it too

    def from_coo(row: Tensor, column: Tensor, value: Tensor, own_N: Tensor) -> Graph:
        indptr = torch.searchsorted(row, torch.arange(nodes + 1, device=row.device))
        return _symmetric(CSR(indptr, column.int(), nodes, value, longest=longest)), none, own_N

    def from_values(indptr: Tensor, index: Tensor, value: Tensor, own_N: Tensor) -> Graph:
        return _symmetric(CSR(indptr.long(), index, nodes, value, longest=longest)), none, own_N

    def from_edges(indptr: Tensor, index: Tensor) -> Graph:
        return _scaled(_symmetric(CSR(indptr.long(), index, nodes, longest=longest)))

    triples = list(zip(snapshots, values, own, strict=True))
    whole: dict[str, tuple[list[tuple[Tensor, ...]], Callable[..., Graph]]] = {
        "coo64": ([(c.rows(), c.index.long(), v, o) for c, v, o in triples], from_coo),
        "csr32+values": ([(c.indptr.int(), c.index, v, o) for c, v, o in triples], from_values),
        "csr32": ([(c.indptr.int(), c.index) for c in snapshots], from_edges),
    }
    carriers = {}
    for name, (hosted, build) in whole.items():
        sender = WholeSnapshots(hosted, build, device)
        carriers[name] = Carrier(sender.payloads, sender.walk)
    stream = DeltaStream(iter(snapshots), device=device, transpose="same")
    carriers["deltas"] = Carrier(
        lambda times: [(payload,) for payload in stream.payloads(times)],
        lambda times: (_scaled(csr) for csr in stream.walk(times)),
    )
    return carriers


def _symmetric(csr: CSR) -> CSR:
    return csr.with_transpose(csr)


def _scaled(csr: CSR) -> Graph:
    root_N, own_N = gcn_scales(csr, loops=False)
    return csr, root_N.float(), own_N.float()


def layer(graph: Graph, x_NF: Tensor, map_FF: Tensor) -> Tensor:
    """Return one GCN layer."""
    csr, root_N, own_N = graph
    rows_NF = x_NF @ map_FF
    scale = root_N if len(root_N) else None
    total = neighbour_sum(csr, rows_NF, row_scale_M=scale, col_scale_C=scale)
    return torch.relu(torch.addcmul(total, own_N[:, None], rows_NF))


@dataclass(frozen=True)
class Model:
    """Two GCN layers; the same input at every step."""

    x_NF: Tensor
    maps: tuple[Tensor, Tensor]

    @classmethod
    def make(cls, nodes: int, device: torch.device) -> "Model":
        """Return a model from a fixed seed."""
        draw = torch.Generator().manual_seed(0)
        x_NF = torch.randn(nodes, WIDTH, generator=draw)
        maps = [torch.randn(WIDTH, WIDTH, generator=draw) / WIDTH**0.5 for _ in range(2)]
        first, second = (m.to(device).requires_grad_() for m in maps)
        return cls(x_NF.to(device), (first, second))

    def forward(self, graph: Graph) -> Tensor:
        """Return one number a snapshot, for the loss."""
        x_NF = self.x_NF
        for map_FF in self.maps:
            x_NF = layer(graph, x_NF, map_FF)
        return x_NF.square().mean()

    def epoch(self, carrier: Carrier, steps: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return loss and gradients: forward in time, then backward with each forward again."""
        for map_FF in self.maps:
            map_FF.grad = None
        loss = self.x_NF.new_zeros(())
        with torch.no_grad():
            for graph in carrier.walk(range(steps)):
                loss += self.forward(graph)
        for graph in carrier.walk(range(steps - 1, -1, -1)):
            self.forward(graph).backward()
        return loss, tuple(_gradient(map_FF) for map_FF in self.maps)


def _gradient(map_FF: Tensor) -> Tensor:
    assert map_FF.grad is not None, "backward has run"
    return map_FF.grad.clone()


def gate(snapshots: list[CSR], carriers: dict[str, Carrier], model: Model) -> None:
    """Raise unless every way gives the same edges, losses and gradients."""
    steps = len(snapshots)
    for times in (range(steps), range(steps - 1, -1, -1)):
        for t, (csr, _, _) in zip(times, carriers["deltas"].walk(times), strict=True):
            assert torch.equal(csr.indptr.cpu(), snapshots[t].indptr), f"row starts of {t}"
            assert torch.equal(csr.index.cpu(), snapshots[t].index), f"columns of {t}"
    want = model.epoch(carriers["coo64"], steps)
    for name, carrier in carriers.items():
        loss, grads = model.epoch(carrier, steps)
        # values rounded to float32 before or after they are multiplied
        torch.testing.assert_close(loss, want[0], rtol=1e-4, atol=1e-6, msg=name)
        for got, wanted in zip(grads, want[1], strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-5)


def copying(rows: list[tuple[Tensor, ...]], device: torch.device) -> Side:
    """Return the bare copies, one after another, nothing computed."""

    def run() -> None:
        for row in rows:
            for tensor in row:
                if device.type == "cuda":
                    tensor.to(device, non_blocking=True)
                else:
                    tensor.clone()

    return run


def bandwidth(device: torch.device, scale: float) -> dict[str, float]:
    """Return GB/s of one large copy from pinned memory, the floor of all transfers."""
    probe = torch.empty(max(1, int(PROBE_BYTES * scale)), dtype=torch.uint8)
    probe = probe.pin_memory() if device.type == "cuda" else probe
    spread = take_turns({"copy": copying([(probe,)], device)}, repeats=7, device=device.type)
    return {"gb_per_s": round(probe.nbytes / spread["copy"].median / 1e9, 2)}


def measure_window(life: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the row of one window."""
    device = torch.device(args.device)
    nodes, edges = int(NODES * args.scale), int(EDGES * args.scale)
    snapshots = sliding_window(nodes, edges, args.steps, life)
    carriers = carriers_of(snapshots, device)
    model = Model.make(nodes, device)
    gate(snapshots, carriers, model)
    there = range(args.steps)
    back = range(args.steps - 1, -1, -1)
    payloads = {n: c.payloads(there) + c.payloads(back) for n, c in carriers.items()}
    copies = {name: copying(rows, device) for name, rows in payloads.items()}
    transfer = take_turns(copies, repeats=args.repeats, device=args.device)
    walks = {n: _walking(c, args.steps) for n, c in carriers.items()}
    arrival = take_turns(walks, repeats=args.repeats, device=args.device)
    epochs = {n: lambda c=c: model.epoch(c, args.steps) for n, c in carriers.items()}
    epoch = take_turns(epochs, repeats=args.repeats, device=args.device)
    row: dict[str, Any] = {
        "window": life,
        "nodes": nodes,
        "edges": round(float(np.mean([csr.num_edges for csr in snapshots]))),
        "steps": args.steps,
        "edge_snapshots": sum(csr.num_edges for csr in snapshots),
    }
    for name, rows in payloads.items():
        sent = sum(tensor.nbytes for tensors in rows for tensor in tensors)
        row[f"{name} epoch_mb"] = round(sent / 1e6, 2)
    for kind, spreads in (("transfer", transfer), ("arrival", arrival), ("epoch", epoch)):
        row |= _compared(kind, spreads)
    return row


def _walking(carrier: Carrier, steps: int) -> Side:
    """Return the way to the device alone: copies, and making the index and scales there."""

    def run() -> None:
        for times in (range(steps), range(steps - 1, -1, -1)):
            for _ in carrier.walk(times):
                pass

    return run


def _compared(kind: str, spreads: dict[str, Spread]) -> dict[str, Any]:
    """Return each way's time, and how many times that of deltas it is."""
    row: dict[str, Any] = {}
    for name, spread in spreads.items():
        row |= {f"{name} {kind}_{unit}": value for unit, value in spread.row().items()}
        if name != "deltas":
            ratio = spread.median / spreads["deltas"].median
            row[f"{name} / deltas {kind}"] = round(ratio, 2)
            row[f"{kind} saved against {name} %"] = round(100 * (1 - 1 / ratio), 1)
    return row


def _print_row(row: dict[str, Any]) -> None:
    print(f"window of {row['window']}, {row['edges']:,} edges, {row['edge_snapshots']:,} in all")
    for name in ("coo64", "csr32+values", "csr32", "deltas"):
        line = f"  {name:<14}{row[f'{name} epoch_mb']:>10.1f} MB"
        for kind in ("transfer", "arrival", "epoch"):
            line += f"  {kind} {row[f'{name} {kind}_median_ms']:>9.2f} ms"
            if name != "deltas":
                line += f" ({row[f'{name} / deltas {kind}']:>6.2f} x)"
        print(line, flush=True)


def main() -> None:
    """Measure both windows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="append one line for each row to this file")
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=default)
    parser.add_argument("--scale", type=float, default=1.0, help="of nodes and edges")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    set_threads(args.threads)
    shared = machine(args.device) | bandwidth(torch.device(args.device), args.scale)
    print(f"pinned copy: {shared['gb_per_s']} GB/s")
    rows = []
    for life in WINDOWS:
        rows.append(shared | measure_window(life, args))
        _print_row(rows[-1])
        if args.json:
            append_json(args.json, {"benchmark": "delta_transfer", **rows[-1]})
    print(json.dumps({"benchmark": "delta_transfer", "device": args.device, "rows": rows}))


if __name__ == "__main__":
    main()
