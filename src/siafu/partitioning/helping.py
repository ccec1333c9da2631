"""What ranks beside the first do of a cut: they open the graph as it is told, then what it asks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from siafu.graph import MASKS, Crew, Graph, Help, Partial, Schema, Told, load_store
from siafu.partitioning.both_ways import DEAL, SORT, deal_out_edges, sort_out_edges
from siafu.partitioning.prepared import prepared_as_fitted
from siafu.partitioning.streaming import PASS, follow_pass
from siafu.partitioning.write import WRITE, write_told_parts

_OPEN = "open the graph"


def open_on_ranks(partial: Partial, store: Path, graph: Graph) -> None:
    """Have the other ranks open the graph that was made of a store: its masks and columns too."""
    if partial.crew.size == 1:
        return
    folder = partial.scratch / "masks"
    folder.mkdir(exist_ok=True)
    masks = {name: mask for name in MASKS if (mask := getattr(graph, name)) is not None}
    for name, mask in masks.items():
        np.save(folder / f"{name}.npy", mask)
    told: Told = {"store": str(store.absolute()), "folder": str(folder.absolute())}
    told |= {"masks": list(masks), "schema": graph.schema and graph.schema.to_dict()}
    with partial.crew.together(_OPEN, told):
        pass


class CutHelps:
    """The graph of a cut on a rank beside the first."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def helps(self) -> dict[str, Help]:
        """Return what is done of it, by task."""
        return {
            _OPEN: self._open,
            DEAL: lambda told, span: deal_out_edges(self._graph, told, span),
            SORT: lambda told, bucket: sort_out_edges(self._graph, told, bucket),
            PASS: lambda told, _: follow_pass(self._graph, self._crew, told),
            WRITE: lambda told, share: write_told_parts(self._graph, told, share),
        }

    def _open(self, told: Told, _: Any) -> None:
        graph, folder = load_store(told["store"], verify=False), Path(told["folder"])
        masks: dict[str, Any] = dict.fromkeys(MASKS)
        masks |= {name: np.load(folder / f"{name}.npy") for name in told["masks"]}
        graph = replace(graph, **masks)
        if graph.schema is not None and not graph.schema.is_fitted:
            graph = prepared_as_fitted(graph, Schema.from_dict(told["schema"]))
        self._graph = graph
