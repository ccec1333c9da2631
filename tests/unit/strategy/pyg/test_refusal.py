"""What ranks can't carry out exactly is refused by name, at any number of them."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric import nn as pyg
from torch_geometric.nn.models import GroupAddRev

from siafu.comm import World
from siafu.errors import PlanError
from siafu.partitioning import write_parts
from siafu.shard import Shard, open_shard
from siafu.strategy import parallelize
from siafu.strategy.pyg.refusal import refuse_inexact
from tests.parity.graphs import assignment, awkward_graph
from tests.parity.pyg_models import AGGREGATIONS, INEXACT_AGGREGATIONS, Aggregating


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    graph, target = awkward_graph(), tmp_path_factory.mktemp("inexact") / "1.parts"
    write_parts(graph, assignment(graph, "hash", 1), target, num_parts=1, method="hash", seed=0)
    return open_shard(target, World())


class OwnPadding(pyg.Aggregation):
    """Pads as the recurrent ones do."""

    def forward(self, x: Tensor, index: Tensor, ptr=None, dim_size=None, dim=-2) -> Tensor:
        dense, _ = self.to_dense_batch(x, index, ptr, dim_size, dim)
        return dense.mean(dim=1)


class Derived(pyg.LSTMAggregation):
    """Another name for the same."""

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        return super().forward(*args, **kwargs)


REFUSED: dict[str, Callable[[], object]] = INEXACT_AGGREGATIONS | {
    "OwnPadding": OwnPadding,
    "Derived": lambda: Derived(4, 4),
    "MultiAggregation": lambda: pyg.MultiAggregation(["mean", pyg.GRUAggregation(4, 4)]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_aggregation_that_depends_on_other_rows_is_refused(name: str) -> None:
    with pytest.raises(PlanError, match=r"aggr") as caught:
        refuse_inexact(Aggregating(REFUSED[name]()))
    assert "conv.aggr_module" in caught.value.seen


def test_sage_with_lstm_is_refused_by_name() -> None:
    with pytest.raises(PlanError, match="LSTMAggregation"):
        refuse_inexact(pyg.SAGEConv(6, 3, aggr="lstm"))


def test_every_aggregation_of_pyg_is_known_to_be_exact_or_refused() -> None:
    plain = {"Sum", "Mean", "Max", "Min", "Var", "Std", "Softmax", "Multi", "DegreeScaler"}
    tried = {type(make()).__name__ for make in AGGREGATIONS.values()} | {
        "MulAggregation",  # by their short names
        "MedianAggregation",
    }
    known = {f"{name}Aggregation" for name in plain} | tried | set(INEXACT_AGGREGATIONS)
    assert set(pyg.aggr.__all__) - {"Aggregation"} <= known


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        (lambda: pyg.DirGNNConv(pyg.SAGEConv(6, 3)), "both ways"),
        (lambda: GroupAddRev(pyg.SAGEConv(4, 4), num_groups=2), "recomputes"),
        (lambda: pyg.HeteroBatchNorm(4, 2), "nn.BatchNorm1d"),
        (lambda: pyg.LayerNorm(4, mode="graph"), "mode='node'"),
    ],
)
def test_module_is_refused_by_name(layer: Callable[[], nn.Module], told: str) -> None:
    with pytest.raises(PlanError, match=told) as caught:
        refuse_inexact(nn.ModuleList([layer()]))
    assert type(layer()).__name__ in caught.value.seen


class Checkpointed(nn.Module):
    """Recomputes its layer in backward."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.map, self.conv = nn.Linear(6, 6), pyg.SAGEConv(6, 3)
        self.reentrant = reentrant

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.map(x)
        out: Tensor = checkpoint(self.conv, x, edge_index, use_reentrant=self.reentrant)
        return out


class Deep(nn.Module):
    """PyG's own way to checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(6, 6)
        self.deep = pyg.DeepGCNLayer(pyg.SAGEConv(6, 6), nn.LayerNorm(6), ckpt_grad=True)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.deep(self.map(x), edge_index)
        return out


MODELS = {
    "reentrant": lambda: Checkpointed(reentrant=True),
    "plain": lambda: Checkpointed(reentrant=False),
    "deep": Deep,
}


@pytest.mark.parametrize("kind", MODELS)
def test_checkpoints_are_refused_in_training_and_run_in_inference(shard: Shard, kind: str) -> None:
    model = parallelize(MODELS[kind](), shard)
    with pytest.raises(PlanError, match="ckpt_grad=False"):
        model(shard.x)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of checkpoints without gradients
        want = model.module(shard.x, shard.edge_index)
        torch.testing.assert_close(model.eval()(shard.x), want)
    # Afterwards, and elsewhere, torch's checkpoints are as they were.
    model.module(shard.x, shard.edge_index).sum().backward()


def test_mistake_of_the_model_in_one_process_is_not_told_as_one_of_ranks(shard: Shard) -> None:
    class Slip(nn.Module):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return x[torch.tensor([len(x)])]

    with pytest.raises(IndexError, match="out of bounds"):
        parallelize(Slip(), shard)(shard.x)


@pytest.mark.parametrize(
    ("takes", "told"),
    [("x", "x, edge_index"), ("x, edge_index, edge_attr", "edge_attr"), ("x, edge_index, t", "t=")],
)
def test_forward_that_can_not_be_called_is_refused(shard: Shard, takes: str, told: str) -> None:
    module = nn.Linear(6, 3)
    module.forward = eval(f"lambda {takes}: x")  # signatures are what is tried
    with pytest.raises(PlanError, match=told):
        parallelize(module, shard)(shard.x)
