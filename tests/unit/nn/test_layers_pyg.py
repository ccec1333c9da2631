"""Our attention and relation layers give what PyG's give with the same weights."""

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

from siafu.nn import Draws, Dropout, LocalNeighbours
from siafu.nn.attention import GATLayer, GATv2Layer, Heads, TransformerLayer
from siafu.nn.layers import RGCNLayer
from siafu.ops import CSR
from tests.parity.graphs import awkward_graph

GRAPH = awkward_graph(weighted=True)
N, D, HEADS, OUT = GRAPH.num_nodes, 6, 2, 5
EXACT = {"rtol": 1e-10, "atol": 1e-12}
X = torch.tensor(GRAPH.x).double()
ATTR = torch.tensor(GRAPH.edge_attr).double()
TYPES = torch.tensor(GRAPH.edge_type.astype(np.int64))
DST = np.repeat(np.arange(N), np.diff(GRAPH.indptr))
EDGES = torch.stack([torch.tensor(GRAPH.src).long(), torch.tensor(DST)])


def neighbours() -> LocalNeighbours:
    csr = CSR(torch.tensor(GRAPH.indptr).long(), torch.tensor(GRAPH.src).int(), N)
    draws = Draws(training=False)
    return LocalNeighbours(csr, torch.arange(N), draws, edge_attr=ATTR, edge_type=TYPES)


def copy(pairs: list[tuple[nn.Parameter | torch.Tensor, torch.Tensor]]) -> None:
    with torch.no_grad():
        for ours, theirs in pairs:
            ours.copy_(theirs)


def heads_of(concat: bool, edge_width: int) -> Heads:
    return Heads(count=HEADS, concat=concat, dropout=Dropout(0, 0), edge_width=edge_width)


@pytest.mark.parametrize("edge_width", [0, 2])
@pytest.mark.parametrize("concat", [True, False])
def test_gat_is_that_of_pyg(concat: bool, edge_width: int) -> None:
    ours = GATLayer(D, OUT, heads_of(concat, edge_width)).double()
    conv = pyg.GATConv(D, OUT, HEADS, concat, edge_dim=edge_width or None).double()
    pairs = [
        (ours.linear.weight, conv.lin.weight),
        (ours.left, conv.att_src[0]),
        (ours.right, conv.att_dst[0]),
    ]
    if ours.edge is not None:
        map_HDF = conv.lin_edge.weight.view(HEADS, OUT, edge_width)
        pairs.append((ours.edge.weight, torch.einsum("hd,hdf->hf", conv.att_edge[0], map_HDF)))
    copy(pairs)
    want = conv(X, EDGES, ATTR if edge_width else None)
    torch.testing.assert_close(ours(X, neighbours()), want, **EXACT)


@pytest.mark.parametrize("edge_width", [0, 2])
@pytest.mark.parametrize("concat", [True, False])
def test_gatv2_is_that_of_pyg(concat: bool, edge_width: int) -> None:
    ours = GATv2Layer(D, OUT, heads_of(concat, edge_width)).double()
    conv = pyg.GATv2Conv(D, OUT, HEADS, concat, edge_dim=edge_width or None).double()
    pairs = [
        (ours.source.weight, conv.lin_l.weight),
        (ours.source.bias, conv.lin_l.bias),
        (ours.target.weight, conv.lin_r.weight),
        (ours.target.bias, conv.lin_r.bias),
        (ours.score, conv.att[0]),
    ]
    if ours.edge is not None:
        pairs.append((ours.edge.weight, conv.lin_edge.weight))
    copy(pairs)
    want = conv(X, EDGES, ATTR if edge_width else None)
    torch.testing.assert_close(ours(X, neighbours()), want, **EXACT)


@pytest.mark.parametrize("edge_width", [0, 2])
@pytest.mark.parametrize("concat", [True, False])
def test_transformer_is_that_of_pyg(concat: bool, edge_width: int) -> None:
    ours = TransformerLayer(D, OUT, heads_of(concat, edge_width)).double()
    conv = pyg.TransformerConv(D, OUT, HEADS, concat, edge_dim=edge_width or None).double()
    pairs = []
    for mine, theirs in (
        (ours.query, conv.lin_query),
        (ours.key, conv.lin_key),
        (ours.value, conv.lin_value),
        (ours.own, conv.lin_skip),
    ):
        pairs += [(mine.weight, theirs.weight), (mine.bias, theirs.bias)]
    if ours.edge is not None:
        pairs.append((ours.edge.weight, conv.lin_edge.weight))
    copy(pairs)
    want = conv(X, EDGES, ATTR if edge_width else None)
    torch.testing.assert_close(ours(X, neighbours()), want, **EXACT)


def test_rgcn_is_that_of_pyg() -> None:
    ours = RGCNLayer(D, OUT, num_types=3).double()
    conv = pyg.RGCNConv(D, OUT, 3, num_bases=3).double()
    copy(
        [
            (ours.basis, conv.weight),
            (ours.mixture, conv.comp),
            (ours.own.weight, conv.root.t()),
            (ours.own.bias, conv.bias),
        ]
    )
    want = conv(X, EDGES, TYPES)
    torch.testing.assert_close(ours(X, neighbours()), want, **EXACT)
