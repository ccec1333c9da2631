"""How much of a graph do minibatches reach, and how many far rows do several of them share?

Run: python -m benchmarks.reach [--nodes 2000000] [--degree 30] [--hosts 2] [--json FILE]
         [--graphs products-like,power-law]

The sampler alone, on one thread: fan-out 15,10,5, minibatches of 1000 training nodes of the
first host. `reach` is the share of the graph's nodes that k minibatches read together, and
`far_share` the distinct nodes of other hosts among them, over those of k minibatches fetched one
by one: what `--macrobatch k` leaves to travel. A figure of bytes from a graph that one minibatch
all but covers says little of larger graphs: far rows are shared there since no others are left.

Shapes: N nodes, V nodes that a minibatch reads.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import append_json, machine
from benchmarks.products_like import part_of, products_like
from benchmarks.sampling import BATCH_SIZE, FANOUTS, sample_minibatch
from siafu.graph import Array, Graph
from siafu.ops import CSR, sample_positions, set_threads

SIZES = (1, 2, 4, 8, 16, 32)


def reach_of(graph: Graph, part_of: Array, sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """Return reach and share of far rows by number of minibatches of the first host."""
    csr = CSR(torch.from_numpy(graph.indptr), torch.from_numpy(graph.src), graph.num_nodes)
    mine = np.flatnonzero(np.asarray(graph.train) & (part_of == 0))
    order = torch.from_numpy(np.random.default_rng(0).permutation(mine))
    batches = _cycled(order, max(sizes))
    far_N = torch.from_numpy(part_of != 0)
    seen_N = torch.zeros(graph.num_nodes, dtype=torch.bool)
    far_rows, reach, far_share = 0, {}, {}
    for number, seeds in enumerate(batches):
        nodes_V = sample_minibatch(csr, seeds, number, sample_positions).nodes
        seen_N[nodes_V] = True
        far_rows += int(far_N[nodes_V].sum())
        if number + 1 in sizes:
            reach[str(number + 1)] = round(float(seen_N.float().mean()), 4)
            shared = int((seen_N & far_N).sum())
            far_share[str(number + 1)] = round(shared / far_rows, 3) if far_rows else 0.0
    return {"reach": reach, "far_share": far_share}


def _cycled(order: Tensor, count: int) -> list[Tensor]:
    """Return so many minibatches of seeds, from the start again where there are too few."""
    size = min(BATCH_SIZE, len(order))
    whole = order[: len(order) // size * size].split(size)
    return [whole[number % len(whole)] for number in range(count)]


def main() -> None:
    """Measure each graph; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--degree", type=int, default=30)
    parser.add_argument("--graphs", default="products-like")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--steps", type=int, default=32)
    args = parser.parse_args()
    set_threads(1)
    rows = []
    for name in args.graphs.split(","):
        graph = products_like(
            args.nodes,
            args.steps * BATCH_SIZE * args.hosts,
            communities=name == "products-like",
            degree=args.degree,
            features=1,
        )
        row = {"benchmark": "reach", "graph": name, "nodes": args.nodes}
        row |= {"degree": args.degree, "hosts": args.hosts, "fanouts": FANOUTS}
        row |= {
            "batch_size": BATCH_SIZE,
            **reach_of(graph, part_of(graph, args.hosts)),
            **machine(),
        }
        rows.append(row)
        print(f"{name}: reach {row['reach']}, far rows {row['far_share']}", flush=True)
        if args.json:
            append_json(args.json, row)
    print(json.dumps({"benchmark": "reach", "rows": rows}))


if __name__ == "__main__":
    main()
