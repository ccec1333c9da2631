"""How much of a graph do minibatches reach, and how many far rows do several of them share?

Run: python -m benchmarks.reach [--nodes 2000000] [--degree 30] [--hosts 2] [--json FILE]
         [--graphs products-like,power-law] [--share 0,1,32]
     python -m benchmarks.reach --ranks 2,4,8,16 [--fanouts 15,10,5] [--steps 8] ...

The sampler alone, on one thread: fan-out 15,10,5, minibatches of 1000 training nodes of the
first host. `reach` is the share of the graph's nodes that k minibatches read together, and
`far_share` the distinct nodes of other hosts among them, over those of k minibatches fetched one
by one: what `--macrobatch k` leaves to travel. A figure of bytes from a graph that one minibatch
all but covers says little of larger graphs: far rows are shared there since no others are left.
With `--share` the same for minibatches that share draws (`--share-draws`), beside those that do
not: `batch_nodes` and `batch_edges` are means, `far_rows` the distinct ones of all together.
With `--ranks` what `benchmarks.cooperation` counts, minibatches of all ranks on a streamed cut;
graphs may be `planted` (64 groups, nine of ten edges within one) and those of `benchmarks.cut` in
the folder that SIAFU_DATA names too, with both directions of each edge.

Shapes: N nodes, V nodes that a minibatch reads.
"""

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.cooperation import Widths, counted
from benchmarks.cut import REAL, planted
from benchmarks.measure import append_json, machine
from benchmarks.products_like import part_of, products_like
from benchmarks.sampling import BATCH_SIZE, FANOUTS, Sampler, sample_minibatch
from siafu.graph import Array, Graph, graph_from_edges
from siafu.ingest import load
from siafu.minibatch.schedule import draws_of
from siafu.ops import (
    CSR,
    DrawKey,
    key_words,
    sample_positions,
    set_threads,
    shared_positions,
)
from siafu.partitioning import assign_streaming, score

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


def reach_rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each graph and way to draw."""
    for name in args.graphs.split(","):
        graph = _graph(name, args.nodes, args.degree, args.steps * BATCH_SIZE * args.hosts)
        parts = part_of(graph, args.hosts)
        for share in map(int, args.share.split(",")):
            row = {"benchmark": "reach", "graph": name, "nodes": args.nodes}
            row |= {"degree": args.degree, "hosts": args.hosts, "fanouts": FANOUTS}
            row |= {"batch_size": BATCH_SIZE, "share_draws": share}
            yield row | reach_of(graph, parts, share=share) | machine()


def _graph(name: str, nodes: int, degree: int, seeds: int) -> Graph:
    """Return a graph with so many training nodes, or those it has."""
    if name in REAL:
        found = load(Path(os.environ["SIAFU_DATA"]) / f"{name}.npz")
        src, dst = _both_ways(found)
        train = found.train
        if train is None:
            train = np.random.default_rng(0).random(found.num_nodes) < 0.5
        return graph_from_edges(src, dst, found.num_nodes, name=name, train=train)
    if name == "planted":
        return planted(nodes * degree)
    return products_like(
        nodes, seeds, communities=name == "products-like", degree=degree, features=1
    )


def _both_ways(graph: Graph) -> tuple[Array, Array]:
    """Return sources and destinations of each edge once in each direction."""
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    src = np.asarray(graph.src, np.int64)
    keys = np.concatenate([src * graph.num_nodes + dst, dst * graph.num_nodes + src])
    return np.divmod(np.unique(keys), graph.num_nodes)


def seeds_by_rank(graph: Graph, part_of: Array, ranks: int, steps: int) -> list[list[Tensor]]:
    """Return each rank's own seeds for so many steps, fewer where an epoch has fewer."""
    generator = np.random.default_rng(0)
    order_P = [
        torch.from_numpy(generator.permutation(np.flatnonzero(graph.train & (part_of == rank))))
        for rank in range(ranks)
    ]
    steps = min(steps, max(1, min(map(len, order_P)) // BATCH_SIZE))
    return [
        [order[n * BATCH_SIZE : (n + 1) * BATCH_SIZE] for order in order_P] for n in range(steps)
    ]


def cooperation_rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each graph, number of ranks, fan-outs and way to draw."""
    everyone = [int(ranks) for ranks in args.ranks.split(",")]
    models = [Widths(*map(int, text.split(","))) for text in args.widths.split("+")]
    for name in args.graphs.split(","):
        seeds = max(everyone) * args.steps * BATCH_SIZE * 5 // 4
        graph = _graph(name, args.nodes, args.degree, seeds)
        csr = CSR(torch.from_numpy(graph.indptr), torch.from_numpy(graph.src), graph.num_nodes)
        for ranks in everyone:
            part_of = assign_streaming(graph, ranks)
            cut = score(graph, part_of, ranks).cut_fraction
            seeds_SP = seeds_by_rank(graph, part_of, ranks, args.steps)
            for text in args.fanouts.split("+"):
                fanouts = tuple(map(int, text.split(",")))
                for share in map(int, args.share.split(",")):
                    sampler = sharing(csr) if share else sample_positions
                    draws = share, sampler
                    found = counted(csr, part_of, seeds_SP, fanouts, draws, models)
                    row = {"benchmark": "reach", "graph": name, "nodes": graph.num_nodes}
                    row |= {"edges": graph.num_edges, "ranks": ranks, "cut": round(cut, 4)}
                    row |= {"fanouts": fanouts, "batch_size": BATCH_SIZE, "share_draws": share}
                    yield row | found | machine()


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
    parser.add_argument("--ranks", help="count steps of so many ranks together too")
    parser.add_argument("--fanouts", default="15,10,5", help="with --ranks; several by +")
    parser.add_argument("--widths", default="100,256,47", help="features, hidden, classes")
    args = parser.parse_args()
    set_threads(1)
    rows = []
    for row in cooperation_rows(args) if args.ranks else reach_rows(args):
        rows.append(row)
        print(row, flush=True)
        if args.json:
            append_json(args.json, row)
    print(json.dumps({"benchmark": "reach", "rows": rows}))


if __name__ == "__main__":
    main()
