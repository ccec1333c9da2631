"""How long does a whole training epoch take beside DGL, on one thread?

Run: python -m benchmarks.epoch_dgl --dgl-python PYTHON [--json FILE] [--scale 1.0] [--repeats 5]

The graph and widths of `benchmarks.epoch`: three layers, 256 hidden (GAT: 4 heads of 64), dropout,
forward, backward and Adam's step. DGL runs in the interpreter named, which needs another version of
torch than ours and doesn't need siafu. Both sides begin with the same weights and must have the
same losses over three epochs without dropout before anything is timed. They take turns; processor
seconds stand beside wall seconds, since on a shared machine they are the steadier.

Shapes: N nodes, D width.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.epoch import CLASSES, HIDDEN, WIDTH, without_loops
from benchmarks.epoch_peer import CHECKED_EPOCHS, DROPOUT, LEARNING_RATE
from benchmarks.measure import Spread, append_json, machine
from benchmarks.sampling import Side, Turn, here, peer_of
from benchmarks.spmm import SHAPES, power_law
from siafu.nn import GNN, Draws, LocalNeighbours, ModelSpec
from siafu.ops import CSR, set_threads, spare_page_faults

HEADS = 4
SAME_LOSS = 1e-3
"""Relative: float32 sums in another order, over two steps of Adam."""


class Ours:
    """Our side: epochs of one model at a dropout."""

    def __init__(self, name: str, csr: CSR, x_ND: torch.Tensor, y_N: torch.Tensor) -> None:
        torch.manual_seed(0)
        self.csr, self.x_ND, self.y_N = csr, x_ND, y_N
        widths: dict[str, Any] = {
            "in_width": WIDTH,
            "out_width": CLASSES,
            "hidden": HIDDEN,
            "heads": HEADS,
        }
        plain = GNN(ModelSpec(name=name, layers=3, dropout=0.0, **widths))
        self.weights = {
            name.removeprefix("layers."): weight.detach().clone()
            for name, weight in plain.named_parameters()
        }
        step = self._trains(plain)
        self.first_losses = [step() for _ in range(CHECKED_EPOCHS)]
        self._step = self._trains(GNN(ModelSpec(name=name, layers=3, dropout=DROPOUT, **widths)))

    def _trains(self, module: GNN) -> Any:
        draws = Draws()
        ids_N = torch.arange(len(self.y_N))
        neighbours = LocalNeighbours(self.csr, ids_N, draws)
        optimiser = torch.optim.Adam(module.parameters(), lr=LEARNING_RATE)

        def step() -> float:
            optimiser.zero_grad(set_to_none=True)
            loss = functional.cross_entropy(module(self.x_ND, neighbours, draws), self.y_N)
            loss.backward()
            optimiser.step()
            return float(loss.detach())

        return step

    def __call__(self, n: int) -> int:
        """Train epoch number n and return the graph's edges."""
        self._step()
        return self.csr.num_edges


def gate(ours: list[float], theirs: list[float]) -> None:
    """Raise unless both sides learn alike when they begin alike."""
    if len(ours) != len(theirs) or not np.allclose(ours, theirs, rtol=SAME_LOSS, atol=0):
        raise SystemExit(f"the sides learn different things: losses {ours} and {theirs}")


def compared(turns: dict[str, list[Turn]]) -> dict[str, Any]:
    """Return each side's seconds of an epoch, and how many of ours the peer takes."""
    row: dict[str, Any] = {}
    for name, taken in turns.items():
        cpu = Spread.of([turn.cpu for turn in taken])
        row[name] = Spread.of([turn.wall for turn in taken]).row()
        row[name] |= {f"cpu_{key}": value for key, value in cpu.row().items() if key != "samples"}
    wall, cpu = (row["dgl"][key] / row["siafu"][key] for key in ("median_ms", "cpu_median_ms"))
    return row | {"dgl / siafu": round(wall, 3), "dgl / siafu, cpu": round(cpu, 3)}


def measure_model(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the row of one model."""
    csr = without_loops(power_law(SHAPES["cpu"]["arxiv-like"], args.scale))
    generator = torch.Generator().manual_seed(0)
    x_ND = torch.randn(csr.num_rows, WIDTH, generator=generator)
    y_N = torch.randint(CLASSES, (csr.num_rows,), generator=generator)
    ours = Ours(name, csr, x_ND, y_N)
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder) / "task.npz"
        arrays = {"indptr": csr.indptr, "index": csr.index, "x": x_ND, "y": y_N, **ours.weights}
        held: dict[str, Any] = {key: value.numpy() for key, value in arrays.items()}
        np.savez(task, **held)
        with peer_of(name, args.dgl_python, task, script="epoch_peer.py") as peer:
            gate(ours.first_losses, peer.told["losses"])
            turns = take_turns({"siafu": here(ours), "dgl": peer}, args.repeats)
    row = {"benchmark": "epoch-dgl", "model": name, "nodes": csr.num_rows}
    row |= {"edges": csr.num_edges, "peer": peer.name, "losses": ours.first_losses}
    return row | compared(turns) | machine()


def take_turns(sides: dict[str, Side], repeats: int) -> dict[str, list[Turn]]:
    """Return the turns of each side but the first, in which dropout's kernels are compiled."""
    turns: dict[str, list[Turn]] = {name: [] for name in sides}
    for n in range(-1, repeats):
        for name, side in sides.items():
            turn = side(n)
            if n >= 0:
                turns[name].append(turn)
    return turns


def main() -> None:
    """Measure both models; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dgl-python", type=Path, required=True, help="interpreter with DGL 2")
    parser.add_argument("--json", type=Path, help="append one line for each row to this file")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--models", default="sage,gat")
    args = parser.parse_args()
    spare_page_faults()
    set_threads(1)
    rows = []
    for name in args.models.split(","):
        row = measure_model(name, args)
        rows.append(row)
        print(
            f"{name:5} siafu {row['siafu']['cpu_median_ms']:.0f} ms of processor time, "
            f"DGL {row['dgl']['cpu_median_ms']:.0f} ms ({row['dgl / siafu, cpu']} x)",
            flush=True,
        )
        if args.json:
            append_json(args.json, row)
    print(json.dumps({"benchmark": "epoch-dgl", "rows": rows}))


if __name__ == "__main__":
    main()
