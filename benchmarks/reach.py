"""How much of a graph do minibatches reach, and how many far rows do several of them share?

Run: python -m benchmarks.reach [--nodes 2000000] [--degree 30] [--hosts 2] [--json FILE]
         [--graphs products-like,power-law] [--share 0,1,32]

The sampler alone, on one thread: fan-out 15,10,5, minibatches of 1000 training nodes of the
first host. `reach` is the share of the graph's nodes that k minibatches read together, and
`far_share` the distinct nodes of other hosts among them, over those of k minibatches fetched one
by one: what `--macrobatch k` leaves to travel. A figure of bytes from a graph that one minibatch
all but covers says little of larger graphs: far rows are shared there since no others are left.
With `--share` the same for minibatches that share draws (`--share-draws`), beside those that do
not: `batch_nodes` and `batch_edges` are means, `far_rows` the distinct ones of all together.

Shapes: N nodes, V nodes that a minibatch reads.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import append_json, machine
from benchmarks.products_like import part_of, products_like
from benchmarks.sampling import BATCH_SIZE, FANOUTS, Sampler, sample_minibatch
from siafu.graph import Array, Graph
from siafu.minibatch.schedule import draws_of
from siafu.ops import (
    CSR,
    DrawKey,
    key_words,
    sample_positions,
    set_threads,
    shared_positions,
)

SIZES = (1, 2, 4, 8, 16, 32)


def sharing(csr: CSR) -> Sampler:
    """Return a sampler by draws of sources, for a whole graph."""

    def drawn(
        indptr: Tensor,
        rows: Tensor,
        _ids: Tensor,
        batch: Tensor,
        keys: Sequence[DrawKey],
        fanout: int,
    ) -> tuple[Tensor, Tensor]:
        def sources(edges: Tensor) -> Tensor:
            return csr.index.index_select(0, edges).long()

        return shared_positions(indptr, rows, batch, key_words(keys), fanout, sources)

    return drawn


def reach_of(
    graph: Graph, part_of: Array, sizes: tuple[int, ...] = SIZES, share: int = 0
) -> dict[str, Any]:
    """Return reach and share of far rows by number of minibatches of the first host."""
    csr = CSR(torch.from_numpy(graph.indptr), torch.from_numpy(graph.src), graph.num_nodes)
    mine = np.flatnonzero(np.asarray(graph.train) & (part_of == 0))
    order = torch.from_numpy(np.random.default_rng(0).permutation(mine))
    batches = _cycled(order, max(sizes))
    far_N = torch.from_numpy(part_of != 0)
    seen_N = torch.zeros(graph.num_nodes, dtype=torch.bool)
    far_rows, reach, far_share, nodes, edges = 0, {}, {}, 0, 0
    sampler = sharing(csr) if share else sample_positions
    for number, seeds in enumerate(batches):
        drawn = sample_minibatch(csr, seeds, draws_of(number, 1, share), sampler)
        nodes_V = drawn.nodes
        nodes, edges = nodes + len(nodes_V), edges + len(drawn.sources)
        seen_N[nodes_V] = True
        far_rows += int(far_N[nodes_V].sum())
        if number + 1 in sizes:
            reach[str(number + 1)] = round(float(seen_N.float().mean()), 4)
            shared = int((seen_N & far_N).sum())
            far_share[str(number + 1)] = round(shared / far_rows, 3) if far_rows else 0.0
    means = {"batch_nodes": nodes // len(batches), "batch_edges": edges // len(batches)}
    return {"reach": reach, "far_share": far_share, "far_rows": int((seen_N & far_N).sum())} | means


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
    parser.add_argument("--share", default="0", help="steps that share draws, one row each")
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
        parts = part_of(graph, args.hosts)
        for share in map(int, args.share.split(",")):
            row = {"benchmark": "reach", "graph": name, "nodes": args.nodes}
            row |= {"degree": args.degree, "hosts": args.hosts, "fanouts": FANOUTS}
            row |= {"batch_size": BATCH_SIZE, "share_draws": share}
            row |= {**reach_of(graph, parts, share=share), **machine()}
            rows.append(row)
            print(f"{name}, draws shared by {share}: {row}", flush=True)
            if args.json:
                append_json(args.json, row)
    print(json.dumps({"benchmark": "reach", "rows": rows}))


if __name__ == "__main__":
    main()
