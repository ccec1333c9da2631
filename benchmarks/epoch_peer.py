"""DGL's training epoch, run by an interpreter of its own for `benchmarks.epoch --dgl-python`.

Run: PYTHON benchmarks/epoch_peer.py sage|gat TASK.npz

Needs DGL and numpy alone, not siafu. The graph, its rows and the first weights are read from an
.npz. The first line tells who trains, and the losses of some epochs without dropout; every line
read is then answered by one epoch with dropout: its wall and CPU seconds and the graph's edges.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

CHECKED_EPOCHS = 3
"""Whose losses both sides must agree on: forward, backward and steps."""
DROPOUT = 0.5
LEARNING_RATE = 0.01


class DglNet(nn.Module):
    """Three layers by DGL, with siafu's weights."""

    def __init__(self, name: str, weights: dict[str, Tensor]) -> None:
        super().__init__()
        convs = importlib.import_module("dgl.nn")
        made = [getattr(self, f"_{name}")(convs, layer) for layer in _by_layer(weights)]
        self.convs = nn.ModuleList(made)
        self.bend = functional.elu if name == "gat" else torch.relu

    def _sage(self, convs: Any, layer: dict[str, Tensor]) -> nn.Module:
        out_width, in_width = layer["own.weight"].shape
        conv = convs.SAGEConv(in_width, out_width, "mean")
        named = {"own.weight": conv.fc_self.weight, "neigh.weight": conv.fc_neigh.weight}
        return _filled(conv, named | {"own.bias": conv.fc_self.bias}, layer)

    def _gat(self, convs: Any, layer: dict[str, Tensor]) -> nn.Module:
        heads, width = layer["left"].shape
        conv = convs.GATConv(layer["linear.weight"].size(1), width, heads)
        named = {"linear.weight": conv.fc.weight, "left": conv.attn_l, "right": conv.attn_r}
        return _filled(conv, named | {"bias": conv.bias}, layer)

    def forward(self, graph: Any, x_ND: Tensor, p: float) -> Tensor:
        """Return logits."""
        for number, conv in enumerate(self.convs):
            if isinstance(dropped := getattr(conv, "attn_drop", None), nn.Dropout):
                dropped.p = p
            x_ND = conv(graph, functional.dropout(x_ND, p)).flatten(1)
            x_ND = self.bend(x_ND) if number < len(self.convs) - 1 else x_ND
        return x_ND


def _by_layer(weights: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Yield the weights of one layer after the other, from names such as `0.own.weight`."""
    for number in sorted({name.split(".")[0] for name in weights}):
        own = {name: value for name, value in weights.items() if name.startswith(f"{number}.")}
        yield {name.split(".", 1)[1]: value for name, value in own.items()}


def _filled(conv: nn.Module, named: dict[str, Tensor], layer: dict[str, Tensor]) -> nn.Module:
    """Return the layer with those weights, all of them given."""
    assert named.keys() == layer.keys()
    assert len(named) == len(list(conv.parameters()))
    with torch.no_grad():
        for name, weight in named.items():
            weight.copy_(layer[name].view_as(weight))
    return conv


def graph_of(name: str, indptr: Tensor, index: Tensor) -> Any:
    """Return DGL's graph, its in-edges sorted beforehand; with loops for attention."""
    dgl = importlib.import_module("dgl")
    dgl.utils.set_num_threads(1)
    edges = (indptr.int(), index.int(), torch.tensor([], dtype=torch.int32))
    graph = dgl.graph(("csc", edges), num_nodes=len(indptr) - 1, idtype=torch.int32)
    graph = dgl.add_self_loop(graph) if name == "gat" else graph
    return graph.formats(["coo", "csr", "csc"])


def epoch_of(module: nn.Module, graph: Any, x_ND: Tensor, y_N: Tensor) -> Any:
    """Return a function that trains one epoch at a dropout and returns its loss."""
    optimiser = torch.optim.Adam(module.parameters(), lr=LEARNING_RATE)

    def epoch(p: float) -> float:
        optimiser.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(module(graph, x_ND, p), y_N)
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    return epoch


def main() -> None:
    """Answer until the input ends."""
    name, path = sys.argv[1:]
    # libraries may print: what they say goes beside the answers, not among them
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    torch.set_num_threads(1)
    with np.load(path) as arrays:
        tensors = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    graph = graph_of(name, tensors.pop("indptr"), tensors.pop("index"))
    graph.create_formats_()
    x_ND, y_N = tensors.pop("x"), tensors.pop("y")
    module = DglNet(name, tensors)
    epoch = epoch_of(module, graph, x_ND, y_N)
    dgl = importlib.import_module("dgl")
    told: dict[str, Any] = {"peer": f"DGL {dgl.__version__}, torch {torch.__version__}"}
    told["losses"] = [epoch(0.0) for _ in range(CHECKED_EPOCHS)]
    answers.write(json.dumps(told) + "\n")
    for _ in sys.stdin:
        began = time.perf_counter(), time.process_time()
        epoch(DROPOUT)
        wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
        turn = {"wall": wall, "cpu": cpu, "edges": graph.num_edges()}
        answers.write(json.dumps(turn) + "\n")


if __name__ == "__main__":
    main()
