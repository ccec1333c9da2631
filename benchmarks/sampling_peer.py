"""Another library's neighbour sampler, run by an interpreter of its own for `benchmarks.sampling`.

Run: PYTHON benchmarks/sampling_peer.py pyg|dgl|graphbolt GRAPH.npz

Needs that library and numpy alone, not siafu. The graph is read from an .npz, one line tells what
samples, and every line read is answered by one minibatch: its wall and CPU seconds and its edges.
"""

import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Minibatches = Iterator[int]
"""The numbers of edges of one minibatch after the other; taking one is the work."""


class Task(NamedTuple):
    """The graph as in-edges of every node, and what is drawn of it."""

    indptr: Tensor
    index: Tensor  # type: ignore[assignment]  # not the method of tuples
    order: Tensor
    """All seeds; minibatches are its whole slices, in turn and again from the start."""
    fanouts: list[int]
    """That of the seeds first."""
    batch_size: int

    def seeds(self) -> Iterator[Tensor]:
        """Yield the seeds of every minibatch, without end."""
        return itertools.cycle(whole_batches(self.order, self.batch_size))


def whole_batches(order: Tensor, batch_size: int) -> list[Tensor]:
    """Return the seeds of each minibatch; those that don't fill a last one are left out."""
    count = len(order) // batch_size
    if count == 0:
        raise SystemExit(f"{len(order)} seeds don't fill a minibatch of {batch_size}.")
    return list(order[: count * batch_size].split(batch_size))


def pyg_minibatches(task: Task) -> tuple[str, Minibatches]:
    """Return NeighborLoader's minibatches, sampled by pyg-lib where it is there."""
    typing = importlib.import_module("torch_geometric.typing")
    data = importlib.import_module("torch_geometric.data")
    loaders = importlib.import_module("torch_geometric.loader")
    if typing.WITH_PYG_LIB:
        name = f"pyg-lib {typing.pyg_lib.__version__}"
    else:
        name = f"torch-sparse {typing.torch_sparse.__version__}"
    num_nodes = len(task.indptr) - 1
    row_E = torch.arange(num_nodes).repeat_interleave(task.indptr.diff())
    graph = data.Data(edge_index=torch.stack([task.index.long(), row_E]), num_nodes=num_nodes)
    loader = loaders.NeighborLoader(
        graph,
        num_neighbors=task.fanouts,
        batch_size=task.batch_size,
        input_nodes=torch.cat(whole_batches(task.order, task.batch_size)),
    )

    def minibatches() -> Minibatches:
        while True:
            for batch in loader:
                yield int(batch.num_edges)

    return name, minibatches()


def dgl_minibatches(task: Task) -> tuple[str, Minibatches]:
    """Return the blocks of DGL's NeighborSampler, called without its loader."""
    dgl = importlib.import_module("dgl")
    dgl.utils.set_num_threads(1)
    in_edges = (task.indptr.int(), task.index.int(), torch.tensor([], dtype=torch.int32))
    graph = dgl.graph(("csc", in_edges), num_nodes=len(task.indptr) - 1, idtype=torch.int32)
    # its layers count from the input, so that the seeds' fan-out comes last
    sampler = dgl.dataloading.NeighborSampler(task.fanouts[::-1])

    def minibatches() -> Minibatches:
        for seeds in task.seeds():
            _, _, blocks = sampler.sample_blocks(graph, seeds.int())
            yield sum(block.num_edges() for block in blocks)

    return f"DGL {dgl.__version__}", minibatches()


def graphbolt_minibatches(task: Task) -> tuple[str, Minibatches]:
    """Return the layers of DGL's GraphBolt: sampled and numbered anew, without its loader."""
    dgl = importlib.import_module("dgl")
    bolt = importlib.import_module("dgl.graphbolt")
    graph = bolt.fused_csc_sampling_graph(task.indptr.long(), task.index.int())

    def minibatches() -> Minibatches:
        for seeds in task.seeds():
            frontier, edges = seeds.int(), 0
            for fanout in task.fanouts:
                layer = graph.sample_neighbors(frontier, torch.tensor([fanout]))
                sampled = layer.sampled_csc
                frontier, _ = bolt.unique_and_compact_csc_formats(sampled, frontier)
                edges += len(sampled.indices)
            yield edges

    return f"GraphBolt of DGL {dgl.__version__}", minibatches()


PEERS: dict[str, Callable[[Task], tuple[str, Minibatches]]] = {
    "pyg": pyg_minibatches,
    "dgl": dgl_minibatches,
    "graphbolt": graphbolt_minibatches,
}


def main() -> None:
    """Answer until the input ends."""
    kind, path = sys.argv[1:]
    # libraries may print: what they say goes beside the answers, not among them
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    torch.set_num_threads(1)
    with np.load(path) as arrays:
        tensors = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    task = Task(
        indptr=tensors["indptr"],
        index=tensors["index"],
        order=tensors["order"],
        fanouts=tensors["fanouts"].tolist(),
        batch_size=int(tensors["batch_size"]),
    )
    name, minibatches = PEERS[kind](task)
    _tell(answers, {"peer": f"{name}, torch {torch.__version__}"})
    for _ in sys.stdin:
        began = time.perf_counter(), time.process_time()
        edges = next(minibatches)
        wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
        _tell(answers, {"wall": wall, "cpu": cpu, "edges": edges})


def _tell(answers: Any, row: dict[str, Any]) -> None:
    answers.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
