"""Quantised steps over ranks equal one process fed the same noise; evaluation rounds nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GCNConv, SAGEConv

from siafu.comm import World
from siafu.nn import GNN, Draws, Dropout, LocalNeighbours, ModelSpec
from siafu.ops import Gat
from siafu.partitioning import write_parts
from siafu.shard import open_shard
from siafu.strategy import BlockNeighbours, Strategy, parallelize
from tests.harness import RankPool
from tests.parity.graphs import assignment, awkward_graph
from tests.parity.noisy import Codes, NoisyNeighbours
from tests.parity.steps import Plan, assert_same, distributed_steps, run_steps

EXACT = {"rtol": 1e-10, "atol": 1e-12}
"""float64 steps, so only summation order may differ."""

IN_WIDTH, HIDDEN = 20, 24
MODELS = ("gcn", "sage", "gat", "gatv2", "sage-max")
OTHERS = {"gin": "hash", "rgcn": "typed", "transformer": "hash"}
"""Tried with changes alone, and the cut of it; the rest of them in `test_wire_models.py`."""


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Path]:
    root, graph, folders = tmp_path_factory.mktemp("wire"), graph_of(), {}
    for kind, size in [("hash", 1), ("hash", 2), ("hash", 3), ("hash", 4), ("gap", 4)]:
        folders[kind, size] = root / f"{kind}{size}"
        part_of = assignment(graph, kind, size)
        write_parts(graph, part_of, folders[kind, size], num_parts=size, method=kind, seed=0)
    typed = awkward_graph(weighted=True, width=IN_WIDTH)
    for size in (1, 3):
        folder = folders["typed", size] = root / f"typed{size}"
        part_of = assignment(typed, "hash", size)
        write_parts(typed, part_of, folder, num_parts=size, method="hash", seed=0)
    return folders


def graph_of():
    return awkward_graph(width=IN_WIDTH)


def spec_of(model: str) -> ModelSpec:
    return ModelSpec(
        name=model,
        in_width=IN_WIDTH,
        out_width=3,
        hidden=HIDDEN,
        layers=3,
        heads=2,
        dropout=0.3,
        norm="layer",
        num_types=3 if model == "rgcn" else 0,
    )


@pytest.mark.parametrize(
    ("wire", "model", "stages", "size"), [("bf16", "sage", 4, 3), ("fp8", "gat", 1, 2)]
)
def test_steps_with_narrower_floats_equal_one_process_that_rounds_so(
    ranks: RankPool, parts, wire: str, model: str, stages: int, size: int
) -> None:
    want = noisy_steps(parts["hash", 1], "hash", size, spec_of(model), Strategy(wire=wire))
    strategy = Strategy(wire=wire, stages=stages, recompute=stages > 1)
    got = ranks.run(distributed_steps, size, parts["hash", size], spec_of(model), strategy)
    assert_same(got, want, **EXACT)


def noisy_steps(
    folder: Path,
    kind: str,
    size: int,
    spec: Plan,
    strategy: Strategy | int,
    assigned: Codes | None = None,
    **which: int,
) -> dict[str, Any]:
    """Return the steps of one process that rounds what crosses between these parts."""
    strategy = strategy if isinstance(strategy, Strategy) else Strategy(wire=strategy)
    torch.set_default_dtype(torch.float64)
    try:
        shard, draws = open_shard(folder, World()), Draws(seed=3)
        part_of = torch.from_numpy(assignment(graph_of(), kind, size)).long()
        edges = {"edge_type": shard.edge_type, "edge_attr": shard.edge_attr}
        local = LocalNeighbours(shard.csr, shard.row_ids, draws, **edges)
        noisy = NoisyNeighbours(local, part_of[shard.row_ids], strategy, draws, assigned)
        return run_steps(shard, noisy, draws, spec, Strategy(), **which)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("stages", "kind", "size"), [(1, "hash", 2), (4, "hash", 3), (1, "gap", 4), (4, "hash", 4)]
)
@pytest.mark.parametrize("model", MODELS)
def test_quantised_steps_equal_one_process_fed_the_same_noise(
    ranks: RankPool, parts, model: str, stages: int, kind: str, size: int
) -> None:
    bits = 4 if model != "gat" else 2
    want = noisy_steps(parts["hash", 1], kind, size, spec_of(model), bits)
    strategy = Strategy(wire=bits, stages=stages, recompute=stages > 1)
    got = ranks.run(distributed_steps, size, parts[kind, size], spec_of(model), strategy)
    assert_same(got, want, **EXACT)


KEPT: dict[str, dict[str, Any]] = {
    "changes at 4 bits": {"wire": 4, "changes": True},
    "changes at 2 bits": {"wire": 2, "changes": True},
    "changes at 1 bit": {"wire": 1, "changes": True},
    "renewed now and then": {"wire": 0, "changes": True, "wire_period": 3},
    "narrow at 4 bits": {"wire": 4, "changes": True, "kept_bits": 16},
    "narrow and renewed": {"wire": 0, "changes": True, "wire_period": 3, "kept_bits": 16},
    "narrow late changes": {"wire": 8, "changes": True, "staleness": 1, "kept_bits": 16},
    "late": {"staleness": 1},
    "late and smooth": {"staleness": 1, "smoothing": 0.75},
    "late changes": {"wire": 4, "changes": True, "staleness": 1},
    "late and rounded": {"wire": 8, "staleness": 1},
}
"""Choices whose steps depend on the steps before."""


CUTS = [
    ("gcn", 1, "hash", 2),
    ("sage", 4, "hash", 3),
    ("sage-max", 1, "gap", 4),
    ("gat", 4, "hash", 4),
    ("gatv2", 1, "hash", 3),
]


@pytest.mark.parametrize(
    ("choice", "model", "stages", "kind", "size"),
    [
        (choice, *CUTS[(2 * number + other) % len(CUTS)])
        for number, choice in enumerate(KEPT)
        for other in (0, 1)
    ]
    + [("changes at 2 bits", model, 4, kind, 3) for model, kind in OTHERS.items()],
)
def test_rows_that_both_ends_keep_equal_those_of_one_process(
    ranks: RankPool, parts, choice: str, model: str, stages: int, kind: str, size: int
) -> None:
    chosen, whole = KEPT[choice], parts["typed" if kind == "typed" else "hash", 1]
    want = noisy_steps(whole, kind, size, spec_of(model), Strategy(**chosen))
    strategy = Strategy(**chosen, stages=stages, recompute=stages > 1)
    got = ranks.run(distributed_steps, size, parts[kind, size], spec_of(model), strategy)
    assert_same(got, want, **EXACT)


def test_noise_is_there(parts) -> None:
    exact = noisy_steps(parts["hash", 1], "hash", 1, spec_of("gcn"), 2)
    rough = noisy_steps(parts["hash", 1], "hash", 3, spec_of("gcn"), 2)
    assert not torch.allclose(
        torch.as_tensor(exact["losses"]), torch.as_tensor(rough["losses"]), rtol=1e-4
    )


@pytest.mark.parametrize("stages", [1, 4])
def test_waiting_instead_of_overlapping_changes_nothing(
    ranks: RankPool, parts, stages: int
) -> None:
    want = noisy_steps(parts["hash", 1], "hash", 3, spec_of("gat"), 8)
    strategy = Strategy(wire=8, stages=stages, recompute=stages > 1, overlap=False)
    got = ranks.run(distributed_steps, 3, parts["hash", 3], spec_of("gat"), strategy)
    assert_same(got, want, **EXACT)


def evaluated(world: World, folder: Path, spec: ModelSpec, strategy: Strategy) -> Any:
    """Return logits by node without gradients, then in evaluation with them."""
    shard, draws = open_shard(folder, world), Draws(seed=3)
    neighbours = BlockNeighbours(shard, draws, strategy)
    torch.manual_seed(0)
    model = GNN(spec)
    draws.training = False
    with torch.no_grad():
        first = model(shard.x, neighbours, draws)
    return shard.row_ids, first, model(shard.x, neighbours, draws).detach()


@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_evaluation_rounds_nothing(ranks: RankPool, parts, model: str) -> None:
    arguments = (evaluated, 3, parts["hash", 3], spec_of(model))
    for got, want in zip(
        ranks.run(*arguments, Strategy(wire=2)), ranks.run(*arguments, Strategy()), strict=True
    ):
        assert torch.equal(got[1], want[1])
        assert torch.equal(got[2], want[2])


@pytest.mark.parametrize("stages", [2, 4])
def test_second_fetch_sees_the_noise_of_the_first(ranks: RankPool, parts, stages: int) -> None:
    kept = Strategy(wire=2, stages=stages)
    again = Strategy(wire=2, stages=stages, recompute=True)
    arguments = (gradient_of_attention, 4, parts["hash", 4])
    for first, second in zip(
        ranks.run(*arguments, kept), ranks.run(*arguments, again), strict=True
    ):
        assert torch.equal(first, second)


def gradient_of_attention(world: World, folder: Path, strategy: Strategy) -> torch.Tensor:
    torch.manual_seed(11 + world.rank)
    shard, draws = open_shard(folder, world), Draws(seed=5, epoch=2)
    neighbours = BlockNeighbours(shard, draws, strategy)
    z = torch.randn(shard.num_owned, 2, 12, requires_grad=True)
    score = z.sum(-1)
    out = neighbours.attend(Gat(slope=0.2), (z, score), (score,), dropout=Dropout(0.0, 0))
    out.square().sum().backward()
    assert z.grad is not None
    return z.grad


def refetched(world: World, folder: Path, strategy: Strategy) -> tuple[int, int]:
    """Return the bytes of rows fetched a second time, and the rows sent."""
    gradient_of_attention(world, folder, strategy)
    return world.meter.bytes_sent.get("halo_refetch", 0), len(
        open_shard(folder, world).plan.send_rows
    )


@pytest.mark.parametrize("late", [0, 1])
def test_rows_that_are_kept_are_not_fetched_again(ranks: RankPool, parts, late: int) -> None:
    choices = {"stages": 3, "recompute": True, "staleness": late}
    strategy = Strategy(wire=4, changes=True, **choices)
    for sent, rows in ranks.run(refetched, 3, parts["hash", 3], strategy):
        assert sent == (0 if late else rows * 2 * 4), "scores of two heads travel whole"


class TwoConvs(nn.Module):
    """A model of a user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(IN_WIDTH, HIDDEN), SAGEConv(HIDDEN, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x, edge_index)), edge_index)


def foreign_steps(world: World, folder: Path, strategy: Strategy) -> dict[str, Any]:
    """Return the gradients of two steps of a foreign model, and what it evaluates to."""
    torch.manual_seed(0)
    shard, module = open_shard(folder, world), TwoConvs().double()
    model = parallelize(module, shard, strategy)
    x = shard.x.double()
    for _ in range(2):
        out = model(x)
        functional.cross_entropy(out[shard.train], shard.y[shard.train]).backward()
    model.eval()
    grads = {name: weight.grad for name, weight in module.named_parameters()}
    return grads | {"evaluated": model(x).detach(), "trained": out.detach()}


def test_foreign_model_sees_one_noise_in_any_number_of_stages(ranks: RankPool, parts) -> None:
    choices = [Strategy(wire=4), Strategy(wire=4, stages=3, recompute=True), Strategy()]
    once, staged, exact = (
        ranks.run(foreign_steps, 3, parts["hash", 3], strategy) for strategy in choices
    )
    for mine, other, plain in zip(once, staged, exact, strict=True):
        for name, tensor in mine.items():
            torch.testing.assert_close(tensor, other[name], **EXACT)
        torch.testing.assert_close(mine["evaluated"], plain["evaluated"], **EXACT)
        assert not torch.allclose(mine["trained"], plain["trained"], rtol=1e-4)
