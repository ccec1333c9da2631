"""Dynamic models written down once more: dense matrices, one snapshot after another, no siafu.nn.

They read the parameters of the real model by name, and nothing else of it.
"""

from dataclasses import dataclass, field, replace
from typing import Any

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


States = dict[int, Any]
"""What each layer carries into the next span of snapshots."""


@dataclass
class Walk:
    """How the snapshots are gone through."""

    outward: bool = False
    """A row a source, so that a node sums over those that its edges lead to."""
    history: int = 0
    """Not 0: every snapshot's recurrences begin anew so many snapshots back."""
    train: int = 0
    """Not 0: features of events are read, on the scale of so many snapshots."""
    inputs: Tensor | None = None
    """Rows in the place of the features of all snapshots."""
    span: range | None = None
    """The only snapshots asked for."""
    states: States = field(default_factory=dict)
    """What the span before left, without gradients."""
    edges: list[Tensor] = field(default_factory=list)
    """What the features of each snapshot's edges add up to, as wide as they are."""


def embed(name: str, model: DynamicGNN, graph: DynamicGraph, walk: Walk | None = None) -> Tensor:
    """Return out_TNO of the model of that name with the parameters of `model`."""
    walk, weights = walk or Walk(), dict(model.named_parameters())
    span = walk.span or range(graph.num_snapshots)
    matrices = [dense_matrix(s) for s in graph.iterate()]
    plain = [a.t() if walk.outward else a for a in matrices]
    matrices = [normalised_matrix(a) for a in plain]
    edges = None
    if walk.train:  # loops that are added have no features
        alive = [torch.where(p == 0, 0, a) for p, a in zip(plain, matrices, strict=True)]
        edges = _edge_sums(graph, alive, walk)
    if name == "tm-gcn":
        matrices = averaged_matrices(matrices, model.band)
        edges = None if edges is None else m_transform(edges, model.band)
        plain = m_transform(plain, model.band)
    edges = None if edges is None else _on_their_scale(edges, plain, walk.train)
    matrices = [matrices[t] for t in span]
    edges = edges or [torch.zeros(graph.num_nodes, 0)] * graph.num_snapshots
    walk = replace(walk, edges=[edges[t] for t in span])
    if walk.inputs is not None:
        rows = [walk.inputs] * len(span)
    else:
        rows = [torch.from_numpy(graph.features(t)).double() for t in span]
    if walk.train:
        means = [_event_means(graph, t, walk.train) for t in span]
        rows = [torch.cat(pair, dim=1) for pair in zip(rows, means, strict=True)]
    if name == "tm-gcn":
        return _tm_gcn(weights, matrices, rows, model, walk)
    if name.startswith("evolvegcn"):
        snapshots = [s for t, s in enumerate(graph.iterate()) if t in span]
        return _evolve(weights, matrices, rows, snapshots, (name[-1], len(model.parts)), walk)
    return _recurrent(weights, matrices, rows, (name, len(model.parts) // 2), walk)


def _scaled(graph: DynamicGraph, train: int) -> list[np.ndarray]:
    """Return the features of each window's events, (a - mean) / deviation of the first windows."""
    seen = graph.event_attr[: graph.event_starts[train]].astype(np.float64)
    mean, deviation = seen.mean(0), np.sqrt(np.square(seen - seen.mean(0)).mean(0))
    deviation[deviation == 0] = 1
    mean, deviation = mean.astype(np.float32), deviation.astype(np.float32)
    windows = [graph.edge_events(t).attr.astype(np.float64) for t in range(graph.num_snapshots)]
    return [(attr - mean) / deviation for attr in windows]


def _event_means(graph: DynamicGraph, t: int, train: int) -> Tensor:
    """Return the means of the features of each node's incoming and outgoing events."""
    attr, events = _scaled(graph, train)[t], graph.edge_events(t)
    rows = np.zeros((graph.num_nodes, 2, attr.shape[1]))
    for v in range(graph.num_nodes):
        for side, ends in enumerate((events.dst, events.src)):
            if (ends == v).any():
                rows[v, side] = attr[ends == v].mean(0)
    return torch.from_numpy(rows.reshape(graph.num_nodes, -1))


def _edge_sums(graph: DynamicGraph, matrices: list[Tensor], walk: Walk) -> list[Tensor]:
    """Return sum_j A_ij e_ij of each snapshot; e_ij of the newest window in which the pair met."""
    scaled, known, found = _scaled(graph, walk.train), {}, []
    for t, matrix in enumerate(matrices):
        events, now = graph.edge_events(t), {}
        for u, v, attr in zip(events.src.tolist(), events.dst.tolist(), scaled[t], strict=True):
            pairs = {(u, v), (v, u)} if graph.symmetric else {(u, v) if walk.outward else (v, u)}
            for pair in pairs:
                now.setdefault(pair, []).append(attr)
        known |= {pair: np.mean(attrs, axis=0) for pair, attrs in now.items()}
        total = np.zeros((graph.num_nodes, graph.event_attr.shape[1]))
        for (i, j), attr in known.items():
            total[i] += float(matrix[i, j]) * attr
        found.append(torch.from_numpy(total))
    return found


def _on_their_scale(edges: list[Tensor], plain: list[Tensor], train: int) -> list[Tensor]:
    """Return sums, (s - mean) / deviation of nodes with edges in the first snapshots, else 0."""
    has_edges = [a.abs().sum(1) > 0 for a in plain]
    seen = torch.cat([s[has] for s, has in zip(edges[:train], has_edges, strict=False)])
    mean, deviation = seen.mean(0), seen.std(0, correction=0)
    deviation[deviation <= 1e-6 * mean.abs()] = 1
    mean, deviation = mean.float().double(), deviation.float().double()
    scaled = [(s - mean) / deviation for s in edges]
    return [torch.where(has[:, None], s, 0) for s, has in zip(scaled, has_edges, strict=True)]


def _edge_term(weights: Parameters, name: str, walk: Walk) -> list[Any]:
    """Return what a layer adds for the features of edges in each snapshot."""
    if name not in weights:
        return [0] * len(walk.edges)
    return [s @ weights[name].t() for s in walk.edges]


def _tm_gcn(
    weights: Parameters,
    matrices: list[Tensor],
    rows: list[Tensor],
    model: DynamicGNN,
    walk: Walk,
) -> Tensor:
    layers, states = len(model.parts) // 2, walk.states
    for layer in range(layers):
        weight = weights[f"parts.{2 * layer + 1}.linear.weight"]
        # Rows that are learnt are the same at all times: those of now.
        before = [] if layer == 0 and walk.inputs is not None else states.get(layer, [])
        states[layer] = [x.detach() for x in [*before, *rows]][1 - model.band :]
        rows = m_transform([*before, *rows], model.band)[len(before) :]
        more = _edge_term(weights, f"parts.{2 * layer + 1}.edges.weight", walk)
        rows = [a @ x @ weight.t() + e for a, x, e in zip(matrices, rows, more, strict=True)]
        if layer < layers - 1:
            rows = [torch.selu(x) for x in rows]
    return torch.stack(rows)


def _recurrent(
    weights: Parameters,
    matrices: list[Tensor],
    rows: list[Tensor],
    kind: tuple[str, int],
    walk: Walk,
) -> Tensor:
    (name, layers), history, states = kind, walk.history, walk.states
    step = _gru_step if name == "gcrn" else _lstm_step
    for layer in range(layers):
        gcn = f"parts.{2 * layer}.gcn."
        cell = f"parts.{2 * layer + 1}.{'layer.' if history else ''}cell."
        linear, bias = weights[gcn + "linear.weight"], weights[gcn + "bias"]
        more = _edge_term(weights, f"parts.{2 * layer}.edges.weight", walk)
        triples = zip(matrices, rows, more, strict=True)
        mixed = [torch.relu(a @ x @ linear.t() + bias + e) for a, x, e in triples]
        if name == "cd-gcn":
            mixed = [torch.cat([x, m], dim=1) for x, m in zip(rows, mixed, strict=True)]
        rows = []
        state = states.get(layer)
        for t in range(len(mixed)):
            if history:
                state = None
                for x in mixed[max(0, t - history + 1) : t]:
                    state = step(weights, cell, x, state)
            state = step(weights, cell, mixed[t], state)
            rows.append(state[0])
        states[layer] = tuple(tensor.detach() for tensor in state)
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
    snapshots: list[Snapshot],
    kind: tuple[str, int],
    walk: Walk,
) -> Tensor:
    (variant, layers), history, states = kind, walk.history, walk.states
    for layer in range(layers):
        prefix = f"parts.{layer}."
        own = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
        q, found = states.get(layer, own["first"]), []
        more = _edge_term(own, "edges.weight", walk)
        for t, (a, x, e) in enumerate(zip(matrices, rows, more, strict=True)):
            past = range(t, t + 1)
            if history:
                q = own["first"]
                past = range(max(0, t - history + 1), t + 1) if variant == "h" else range(history)
            for k in past:
                s = q if variant == "o" else _summary(rows[k], own["scorer"], snapshots[k], q)
                q = _next_weight(own, s, q)
            out = a @ (x @ q) + e
            found.append(torch.where(out > 0, out, out * 0.2291666))
        states[layer] = q.detach()
        rows = found
    return torch.stack(rows)


def _next_weight(own: Parameters, s: Tensor, q: Tensor) -> Tensor:
    (wz, wr, wh), (uz, ur, uh), (bz, br, bh) = own["input_maps"], own["state_maps"], own["biases"]
    update = (wz @ s + uz @ q + bz).sigmoid()
    reset = (wr @ s + ur @ q + br).sigmoid()
    return (1 - update) * q + update * (wh @ s + uh @ (reset * q) + bh).tanh()


def _summary(x: Tensor, scorer: Tensor, snapshot: Snapshot, q: Tensor) -> Tensor:
    count = q.shape[1]
    score = x @ scorer / scorer.norm()
    active = sorted(set(snapshot.src.tolist()) | set(snapshot.dst().tolist()))
    if not active:
        return x.new_zeros(x.shape[1], count)
    ranked = sorted(active, key=lambda v: -float(score[v].detach()))[:count]
    ranked += [ranked[-1]] * (count - len(ranked))
    return torch.stack([x[v] * score[v].tanh() for v in ranked], dim=1)
