"""Running a user's own PyG model over the ranks, unmodified and exactly."""

import hashlib
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.nn.parameter import UninitializedParameter

from siafu.comm import World
from siafu.errors import PlanError
from siafu.nn import Draws
from siafu.nn.precision import computing, widened_message
from siafu.ops import sum_type
from siafu.shard import Shard
from siafu.strategy.neighbours import BlockNeighbours
from siafu.strategy.pyg.edge_arguments import (
    EdgeArgument,
    as_given,
    check_forward,
    edge_arguments,
)
from siafu.strategy.pyg.intercept import RankMode, SourceSumError
from siafu.strategy.pyg.refusal import refuse_inexact, refusing_checkpoints
from siafu.strategy.pyg.staged import StagedLayers
from siafu.strategy.rounding import WidthBook
from siafu.strategy.strategy import Strategy, find_strategy


class ParallelModel(nn.Module):
    """A model whose rows are this rank's; `forward` takes and returns owned rows."""

    def __init__(
        self, module: nn.Module, shard: Shard, draws: Draws | None, strategy: Strategy
    ) -> None:
        super().__init__()
        self.module = module
        self._shard = shard
        self._draws = draws or Draws()
        self._counts_epochs = draws is None
        self._neighbours = BlockNeighbours(shard, self._draws, strategy)
        self._edge_index = shard.edge_index
        self._extras = _edge_columns(module, shard)
        self._mode: RankMode | None = None
        self._precision = strategy.precision
        # At any number of ranks, so that what is refused does not depend on it.
        in_stages = strategy.stages != 1
        self._staged = StagedLayers(module, self._neighbours) if in_stages else None
        self._gradient_nodes: list[Node] = []
        """Kept, since a parameter forgets its own."""
        _ = shard.column_ids  # fetched now, by every rank, and not in some rank's dropout alone
        for layer in module.modules():
            self._watch(layer)

    def forward(self, x_ND: Tensor, edge_index: Tensor | None = None, **extra: Any) -> Tensor:
        """Return the model's rows for the owned nodes; edges come from the shard."""
        if self._counts_epochs:
            self._shard.world.bad_rows.check()  # of the step before, whose loss was read since
            self._draws.training = self.training
            self._draws.epoch += self.training
        edges = self._edge_index if edge_index is None else edge_index
        given = {**self._extras, **extra}
        check_forward(self.module, given, self._shard.name)
        try:
            in_stages = self._staged is not None
            mode = RankMode(self._neighbours, self._draws, in_stages=in_stages)
            with (
                self._staged.installed(mode) if self._staged else nullcontext(),
                refusing_checkpoints() if torch.is_grad_enabled() else nullcontext(),
                mode as self._mode,
                computing(self._precision, x_ND.device),
            ):
                out: Tensor = self.module(x_ND, edges, **given)
            # What it is to be told otherwise is for others to say.
            return out.to(sum_type(out.dtype)) if isinstance(out, Tensor) else out
        except (IndexError, RuntimeError, ValueError) as error:
            if self._shard.world.size == 1 or not _is_about_sources(error):
                raise
            raise PlanError(
                "A layer uses the sources of edges in a way that can't be spread over ranks.",
                seen=f"{type(self.module).__name__}: {str(error).splitlines()[0]}",
                fix="use a convolution that reads rows at edge_index[0] and adds up at "
                "edge_index[1], such as GCNConv, TAGConv, SAGEConv or GATConv",
            ) from error

    @property
    def book(self) -> WidthBook:
        """The widths at which rows travel while training."""
        return self._neighbours.book

    def sum_gradients(self) -> None:
        """Let every gradient be summed over the ranks as it arrives."""
        # Where gradients are about to be added to .grad: what earlier backwards left there is
        # summed already, and layers in stages ask for gradients of weights piece by piece.
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                node = get_gradient_edge(parameter).node
                node.register_prehook(self._summed)
                self._gradient_nodes.append(node)

    def _summed(self, grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(self._shard.world.sum_in_place(grad.clone(), "gradient") for grad in grads)

    def _watch(self, layer: nn.Module) -> None:
        """Learn from PyG's own hooks when a layer is working on edges."""
        widen_messages(layer, self._precision)
        for step in ("propagate", "edge_update"):
            before = getattr(layer, f"register_{step}_forward_pre_hook", None)
            after = getattr(layer, f"register_{step}_forward_hook", None)
            if before is not None and after is not None:
                before(lambda *_: self._set_in_message(True))
                after(lambda *_: self._set_in_message(False))

    def _set_in_message(self, value: bool) -> None:
        if self._mode is not None:
            self._mode.in_message = value


def widen_messages(layer: nn.Module, precision: str) -> None:
    """Have a PyG layer add up messages in float32, where its rows are bfloat16."""
    after = getattr(layer, "register_message_forward_hook", None)
    if after is not None and precision == "bf16":
        after(widened_message)


_SOURCES_ARE_TOO_LARGE = (
    "out of bounds",
    "index out of range in self",
    "Found indices in 'edge_index' that are larger",
    "Encountered invalid 'dim_size'",
)
"""What torch and PyG say where columns of halo rows are used as owned rows."""


def _is_about_sources(error: Exception) -> bool:
    is_known = any(words in str(error) for words in _SOURCES_ARE_TOO_LARGE)
    return is_known or isinstance(error, SourceSumError)


def _edge_columns(module: nn.Module, shard: Shard) -> dict[str, Tensor]:
    columns: dict[EdgeArgument, Tensor | None] = {
        "edge_weight": shard.csr.weight,
        "edge_attr": shard.edge_attr,
        "edge_type": shard.edge_type,
    }
    return as_given(module, {name: columns[name] for name in edge_arguments(module, shard)})


def check_own(model: nn.Module, world: World) -> None:
    """Raise unless ranks can run the model exactly, from weights that are alike on all of them."""
    refuse_inexact(model)
    _check_weights(model, world)


def _check_weights(model: nn.Module, world: World) -> None:
    lazy = [n for n, p in model.named_parameters() if isinstance(p, UninitializedParameter)]
    if lazy:
        raise PlanError(
            "The model has layers whose width is not set yet.",
            seen=", ".join(lazy),
            fix="give their in_channels; a width found in the first step is drawn rank by rank",
        )
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        flat = tensor.detach().cpu().reshape(-1).contiguous()
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    world.check_agreement(
        "initial weights (seed torch before making the model)", digest.hexdigest()
    )


def parallelize(
    model: nn.Module,
    shard: Shard,
    strategy: str | Strategy = "halo",
    *,
    draws: Draws | None = None,
    reduce_gradients: bool = True,
) -> ParallelModel:
    """Return the model as one that takes this rank's rows and gives what one process would.

    Weights must start alike on every rank (seed torch before making the model); that is checked.
    After `backward`, each gradient is already summed over the ranks unless `reduce_gradients` is
    False. `draws` sets the seed of dropout; without it the seed is 0 and each call in training
    mode is another epoch.
    """
    chosen = find_strategy(strategy) if isinstance(strategy, str) else strategy
    if chosen.stages == "auto":
        raise PlanError(
            "A model of one's own takes a number of stages.",
            seen="stages='auto'",
            fix=f"give stages=1 to {shard.world.size}, or train it by `siafu train --memory`",
        )
    if chosen.by_columns:
        raise PlanError(
            "A model of one's own reads whole rows, and by columns no rank has them.",
            seen="by_columns",
            fix="use strategy 'halo' or 'sar', or a built-in model",
        )
    if chosen.prune or chosen.input_cache:
        raise PlanError(
            "A model of your own is not taken apart into layers.",
            seen="prune" if chosen.prune else "input_cache",
            fix="leave it out, or use a built-in model",
        )
    check_own(model, shard.world)
    parallel = ParallelModel(model, shard, draws, chosen)
    if reduce_gradients and shard.world.size > 1:
        parallel.sum_gradients()
    return parallel
