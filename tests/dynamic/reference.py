"""Dynamic models written down once more: dense matrices, one snapshot after another, no siafu.nn.

They read the parameters of the real model by name, and nothing else of it.
"""

import numpy as np
import torch
from torch import Tensor

from siafu.graph import DynamicGraph, Snapshot
from siafu.nn import DynamicGNN

Parameters = dict[str, Tensor]


def dense_matrix(snapshot: Snapshot) -> Tensor:
    """Return A as float64 [N, N], a row a destination."""
    matrix = np.zeros((snapshot.num_nodes, snapshot.num_nodes))
    matrix[snapshot.dst(), snapshot.src] = snapshot.weight
    return torch.from_numpy(matrix)


def normalised_matrix(matrix: Tensor) -> Tensor:
    """Return D^-1/2 (A + I) D^-1/2; a node with a loop keeps its own."""
    loops = (matrix.diagonal() == 0).double()
    full = matrix + torch.diag(loops)
    root = full.sum(1).clamp(min=1e-300).rsqrt()
    return root[:, None] * full * root[None, :]


def m_transform(things: list[Tensor], band: int) -> list[Tensor]:
    """Return the mean of each thing and its band - 1 predecessors."""
    return [
        sum(things[max(0, t - band + 1) : t + 1]) / min(band, t + 1) for t in range(len(things))
    ]


def averaged_matrices(matrices: list[Tensor], band: int) -> list[Tensor]:
    """Return the banded means of normalised adjacencies, rounded to float32 as edge weights are."""
    plain = [matrix.float().double() for matrix in matrices]
    return [matrix.float().double() for matrix in m_transform(plain, band)]


def embed(name: str, model: DynamicGNN, graph: DynamicGraph, *, outward: bool = False) -> Tensor:
    """Return out_TNO of the model of that name with the parameters of `model`.

    `outward`: a row a source, so that a node sums over those that its edges lead to.
    """
    weights = dict(model.named_parameters())
    matrices = [dense_matrix(s) for s in graph.iterate()]
    matrices = [normalised_matrix(a.t() if outward else a) for a in matrices]
    if name == "tm-gcn":
        matrices = averaged_matrices(matrices, model.band)
    rows = [torch.from_numpy(graph.features(t)).double() for t in range(graph.num_snapshots)]
    if name == "tm-gcn":
        return _tm_gcn(weights, matrices, rows, model)
    if name.startswith("evolvegcn"):
        return _evolve(weights, matrices, rows, graph, name[-1], len(model.parts))
    return _recurrent(weights, matrices, rows, name, len(model.parts) // 2)


def _tm_gcn(
    weights: Parameters, matrices: list[Tensor], rows: list[Tensor], model: DynamicGNN
) -> Tensor:
    layers = len(model.parts) // 2
    for layer in range(layers):
        weight = weights[f"parts.{2 * layer + 1}.linear.weight"]
        rows = m_transform(rows, model.band)
        rows = [a @ x @ weight.t() for a, x in zip(matrices, rows, strict=True)]
        if layer < layers - 1:
            rows = [torch.selu(x) for x in rows]
    return torch.stack(rows)


def _recurrent(
    weights: Parameters, matrices: list[Tensor], rows: list[Tensor], name: str, layers: int
) -> Tensor:
    step = _gru_step if name == "gcrn" else _lstm_step
    for layer in range(layers):
        gcn, cell = f"parts.{2 * layer}.gcn.", f"parts.{2 * layer + 1}.cell."
        linear, bias = weights[gcn + "linear.weight"], weights[gcn + "bias"]
        state, found = None, []
        for a, x in zip(matrices, rows, strict=True):
            mixed = torch.relu(a @ x @ linear.t() + bias)
            if name == "cd-gcn":
                mixed = torch.cat([x, mixed], dim=1)
            state = step(weights, cell, mixed, state)
            found.append(state[0])
        rows = found
    return torch.stack(rows)


def _lstm_step(weights: Parameters, cell: str, x: Tensor, state: tuple | None) -> tuple:
    width = weights[cell + "weight_hh_l0"].shape[1]
    h, c = state or (x.new_zeros(len(x), width), x.new_zeros(len(x), width))
    gates = x @ weights[cell + "weight_ih_l0"].t() + weights[cell + "bias_ih_l0"]
    gates = gates + h @ weights[cell + "weight_hh_l0"].t() + weights[cell + "bias_hh_l0"]
    i, f, g, o = gates.chunk(4, dim=1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru_step(weights: Parameters, cell: str, x: Tensor, state: tuple | None) -> tuple:
    width = weights[cell + "weight_hh_l0"].shape[1]
    (h,) = state or (x.new_zeros(len(x), width),)
    from_x = x @ weights[cell + "weight_ih_l0"].t() + weights[cell + "bias_ih_l0"]
    from_h = h @ weights[cell + "weight_hh_l0"].t() + weights[cell + "bias_hh_l0"]
    (rx, zx, nx), (rh, zh, nh) = from_x.chunk(3, dim=1), from_h.chunk(3, dim=1)
    update = (zx + zh).sigmoid()
    candidate = (nx + (rx + rh).sigmoid() * nh).tanh()
    return ((1 - update) * candidate + update * h,)


def _evolve(
    weights: Parameters,
    matrices: list[Tensor],
    rows: list[Tensor],
    graph: DynamicGraph,
    variant: str,
    layers: int,
) -> Tensor:
    snapshots = list(graph.iterate())
    for layer in range(layers):
        own = {
            key.removeprefix(f"parts.{layer}."): value
            for key, value in weights.items()
            if key.startswith(f"parts.{layer}.")
        }
        q, found = own["first"], []
        (wz, wr, wh), (uz, ur, uh), (bz, br, bh) = (
            own["input_maps"],
            own["state_maps"],
            own["biases"],
        )
        for a, x, snapshot in zip(matrices, rows, snapshots, strict=True):
            s = q if variant == "o" else _summary(x, own["scorer"], snapshot, q.shape[1])
            update = (wz @ s + uz @ q + bz).sigmoid()
            reset = (wr @ s + ur @ q + br).sigmoid()
            q = (1 - update) * q + update * (wh @ s + uh @ (reset * q) + bh).tanh()
            out = a @ (x @ q)
            found.append(torch.where(out > 0, out, out * 0.2291666))
        rows = found
    return torch.stack(rows)


def _summary(x: Tensor, scorer: Tensor, snapshot: Snapshot, count: int) -> Tensor:
    score = x @ scorer / scorer.norm()
    active = sorted(set(snapshot.src.tolist()) | set(snapshot.dst().tolist()))
    if not active:
        return x.new_zeros(x.shape[1], count)
    ranked = sorted(active, key=lambda v: -float(score[v].detach()))[:count]
    ranked += [ranked[-1]] * (count - len(ranked))
    return torch.stack([x[v] * score[v].tanh() for v in ranked], dim=1)
