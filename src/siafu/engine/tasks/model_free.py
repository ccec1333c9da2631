"""Rankings of pairs that no model makes: what a link score has to be compared with.

Shapes: N nodes, C classes of nodes with equal degrees, E pairs.
"""

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from siafu.engine.tasks.all_pairs import Scored
from siafu.engine.tasks.pair_history import PairHistory
from siafu.graph import DynamicGraph

Kind = Literal["last seen", "degrees", "edgebank"]
MODEL_FREE: tuple[Kind, ...] = ("last seen", "degrees", "edgebank")
"""Pairs that met in the snapshot first, then by the product of degrees in it (of the source's
outgoing and the target's incoming events; of all of both in a graph without directions); by that
product alone; and pairs that ever met before all others (Poursafaei et al., 2022, with unlimited
memory)."""


class ModelFree:
    """Such rankings of the pairs of snapshot `step`."""

    def __init__(
        self, graph: DynamicGraph, history: PairHistory, step: int, device: torch.device
    ) -> None:
        events, count = graph.edge_events(step), graph.num_nodes
        out, come = (np.bincount(ends, minlength=count) for ends in (events.src, events.dst))
        if graph.symmetric:
            out = come = out + come
        self._out_N, self._in_N = (torch.from_numpy(d).double().to(device) for d in (out, come))
        self._history, self._step = history, step

    def scores(self, kind: Kind, source_E: Tensor, target_E: Tensor) -> Tensor:
        """Return float64 [E]; a product of degrees is at most 1."""
        most = float(self._out_N.max() * self._in_N.max()) or 1.0
        product_E = self._out_N[source_E] * self._in_N[target_E] / most
        if kind == "degrees":
            return product_E
        last_E = self._history.last_met(self._step, source_E, target_E)
        if kind == "edgebank":
            return (last_E >= 0).double()
        return torch.where(last_E == self._step, 2.0 + product_E, product_E)

    def all_pairs(self, kind: Kind) -> Scored:
        """Return the ranking of all pairs of all nodes."""
        degrees_N2 = torch.stack([self._out_N, self._in_N], dim=1)
        if kind == "edgebank":
            degrees_N2 = torch.zeros_like(degrees_N2)
        degrees_C2, class_N = degrees_N2.unique(dim=0, return_inverse=True)
        most = float(self._out_N.max() * self._in_N.max()) or 1.0

        def pieces() -> Iterator[tuple[int, Tensor]]:
            yield 0, degrees_C2[:, :1] * degrees_C2[:, 1] / most

        source_X, target_X = self._history.until(self._step)
        score_X = self.scores(kind, source_X, target_X)
        return Scored(class_N, pieces, len(degrees_C2), source_X, target_X, score_X)
