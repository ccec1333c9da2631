"""What a PyG model of the user's own need not compute for nodes that are only read."""

from itertools import pairwise

from torch import nn

from siafu.minibatch import Subgraph

_ROWS_OF_THEIR_OWN = ("SAGEConv", "GINConv", "GATConv", "GATv2Conv", "EdgeConv")
"""Layers whose row of a node depends on its in-edges and their sources' rows, not on degrees of
sources as GCN's does: leaving out in-edges of nodes that are read no more changes nothing."""


def hops_for(module: nn.Module, subgraph: Subgraph) -> dict[str, list[int]]:
    """Return nodes and edges of each hop as PyG's own stacks of layers take them, to leave out in
    each layer what no later one reads; nothing where the model takes none, or it would change it.
    """
    of_both = {"edge_weight", "edge_attr"} <= set(subgraph.edges)  # which PyG can't cut together
    if of_both or not trims(module) or len(module.convs) > len(subgraph.ends):  # type: ignore[arg-type]
        return {}
    nodes = [high - low for low, high in pairwise((0, *subgraph.reached))]
    edges = [high - low for low, high in pairwise((0, *subgraph.ends))]
    return {"num_sampled_nodes_per_hop": nodes, "num_sampled_edges_per_hop": edges}


def trims(module: nn.Module) -> bool:
    """Return whether a model leaves out rows by hop, and gives its seeds the same rows then."""
    is_stack = any(
        (kind.__module__, kind.__name__) == ("torch_geometric.nn.models.basic_gnn", "BasicGNN")
        for kind in type(module).__mro__
    )
    if not is_stack or getattr(module, "jk_mode", None) is not None:
        return False
    of_all_rows = any("Norm" in type(part).__name__ for part in module.modules())
    convs = {type(conv).__name__ for conv in module.convs}  # type: ignore[union-attr]
    return not of_all_rows and convs <= set(_ROWS_OF_THEIR_OWN)
