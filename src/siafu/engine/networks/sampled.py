"""A model on sampled minibatches: training epochs, and inference over the whole graph.

Shapes: N owned rows, O classes, T minibatches of a step.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from siafu.comm import sum_in_order, tell
from siafu.engine.links import link_loss
from siafu.engine.networks.inferred import Inferred
from siafu.engine.networks.layer_pass import LayerPass, on_device
from siafu.engine.networks.own_model import WholeNetwork
from siafu.engine.networks.pieces import Pieces, columns_of
from siafu.engine.networks.recorded import RecordedSteps, can_record_minibatches
from siafu.engine.networks.step_state import StepsTaken, StepState
from siafu.engine.networks.trimming import hops_for
from siafu.engine.workload import OnStep, no_step
from siafu.minibatch import (
    ROW_BITS,
    Columns,
    Feed,
    Flow,
    Keeper,
    Macrobatch,
    Minibatch,
    Sampling,
    Step,
    Subgraph,
    epoch_of_draws,
)
from siafu.nn import GNN, Draws, Neighbours, Rows
from siafu.nn.losses import total_loss
from siafu.nn.precision import computing
from siafu.ops import sum_type
from siafu.shard import HeldRows, PickedRows, RowReader, Shard, WrittenRows
from siafu.strategy import Strategy, WidthBook, as_given


class SampledNetwork:
    """A model bound to a shard through minibatches."""

    def __init__(
        self,
        module: nn.Module,
        feed: Feed,
        shard: Shard,
        draws: Draws,
        strategy: Strategy,
        whole: WholeNetwork | None = None,
    ) -> None:
        """`whole` is of a model that is not taken apart into layers, and infers over the whole
        graph where memory is not limited."""
        self.module, self.strategy, self.feed, self._whole = module, strategy, feed, whole
        self.book = WidthBook(strategy, shard.world, draws.seed)
        self._shard, self._draws = shard, draws
        self._state = StepState(module)
        self.taken = StepsTaken()
        """Of the epoch that is trained, or that was left before its end."""
        self._recorded: RecordedSteps | None = None
        if can_record_minibatches(module, shard, feed):
            self._recorded = RecordedSteps(feed, draws, module, self.loss_through)
        self._inferred: Inferred | None = None
        """Of all nodes, by the last weights that were asked."""
        self.on_answers: Callable[[Tensor, Tensor], None] | None = None
        """Told the logits and targets of minibatches as they are trained on."""
        self._pieces: Pieces | None = None
        self.keeper: Keeper | None = None
        """Has passes over all nodes that go to files outlast this process."""

    @property
    def recorded_tensors(self) -> list[Tensor]:
        """The buffers of a recorded step."""
        return [] if self._recorded is None else self._recorded.tensors

    @property
    def pieces(self) -> Pieces | None:
        """What a model that is not taken apart infers by, where the whole graph may not fit.

        All ranks ask for it together first.
        """
        if self._whole is None or not (self.feed.is_limited or self._shard.is_mapped):
            return None
        self._pieces = self._pieces or Pieces(self.feed)
        return self._pieces

    def logits_of(self, subgraph: Subgraph, columns: Columns) -> Tensor:
        """Return a row of scores for each seed of a minibatch."""
        columns = on_device(self.feed, columns)
        with self._computing():
            if isinstance(self.module, GNN):
                logits = self._gnn_logits(subgraph, columns)
            else:
                logits = self._own_logits(subgraph, columns["x"])[: subgraph.num_seeds]
        return logits.to(sum_type(logits.dtype))

    def loss_through(
        self, x: Rows, flow: list[Neighbours], target: Tensor, num_seeds: Tensor
    ) -> Tensor:
        """Return the loss of a built-in model on rows and the neighbours of each layer."""
        with self._computing():
            logits = self.module(x, flow, self._draws)
        return self._loss_of(logits.to(sum_type(logits.dtype)), target, num_seeds)

    def _computing(self) -> AbstractContextManager[object]:
        return computing(self.strategy.precision, self._shard.world.device)

    def _gnn_logits(self, subgraph: Subgraph, columns: Columns) -> Tensor:
        assert isinstance(self.module, GNN)
        layers = self.module.spec.layers
        flow: list[Neighbours] = [
            self.feed.neighbours(subgraph, columns, number, layers) for number in range(layers)
        ]
        logits: Tensor = self.module(self.feed.input_of(columns), flow, self._draws)
        return logits

    def _own_logits(self, subgraph: Subgraph, x_VF: Tensor) -> Tensor:
        """Return the rows of a model of the user's own, on the sub-graph as PyG would have it."""
        assert self._whole is not None, "a model of the user's own has one"
        edges = {name: rows.to(x_VF.device) for name, rows in subgraph.edges.items()}
        given = as_given(self.module, edges)
        hops = hops_for(self.module, subgraph)
        out = self.module(x_VF, subgraph.edge_index().to(x_VF.device), **given, **hops)
        count = subgraph.reached[1] if hops else len(x_VF)
        return self._whole.wanted.checked(out, count, self.module)

    def loss(
        self, batch: Minibatch, subgraph: Subgraph, columns: Columns, num_seeds: int
    ) -> Tensor:
        """Return this minibatch's share of the mean loss over the seeds, or edges, of a step."""
        logits = self.logits_of(subgraph, columns)
        if (links := self.feed.links) is not None:
            return link_loss(logits, batch.seeds, links.batching.negatives) / num_seeds
        target = columns["y"].to(logits.device)
        if self.on_answers is not None:
            self.on_answers(logits, target)
        return self._loss_of(logits, target, num_seeds)

    def _loss_of(self, logits: Tensor, target: Tensor, num_seeds: int | Tensor) -> Tensor:
        objective = self._shard.objective
        total = total_loss(
            logits, objective.prepared(target), objective.loss, objective.weight_C(logits)
        )
        return total / (num_seeds * objective.per_row)

    def run_epoch(
        self,
        optimiser: torch.optim.Optimizer,
        epoch: int,
        *,
        goes_on: bool = False,
        on_step: OnStep = no_step,
    ) -> float:
        """Train on every seed once and return the mean loss; each step is one minibatch a rank.

        `goes_on`: another epoch will follow, whose start may be fetched already.
        """
        self.module.train()
        self._draws.training = True
        self._inferred = None
        assert self.strategy.macrobatch != "auto", "the engine settles that"
        taken, sampler = self.taken, self.feed.sampler
        self._state = StepState(self.module)
        # It would take memory that inference between the epochs is to have.
        goes_on = goes_on and not self.feed.is_limited
        for macrobatch in sampler.macrobatches(
            epoch, self.strategy.macrobatch, goes_on=goes_on, first=len(taken)
        ):
            for step, subgraphs in zip(macrobatch.steps, macrobatch.subgraphs, strict=True):
                sampler.check()
                with sampler.abandoned_on_error():
                    loss = self._take_step(optimiser, epoch, macrobatch, step, subgraphs)
                taken.note(loss, step.num_seeds)
                on_step(len(taken), sampler.schedule.num_steps)
        self.taken = StepsTaken()
        return taken.mean()

    def _take_step(
        self,
        optimiser: torch.optim.Optimizer,
        epoch: int,
        macrobatch: Macrobatch,
        step: Step,
        subgraphs: list[Subgraph],
    ) -> Tensor:
        """Return the mean loss over the seeds of a step, before it was taken."""
        world, state = self._shard.world, self._state
        state.begin()
        mine = step.mine[: step.holders.count(world.rank)]
        terms, is_alone = [], world.size == len(step.holders) == 1 and subgraphs[0].num_seeds > 0
        loss = torch.zeros(())
        for batch, subgraph in zip(mine, subgraphs, strict=False):
            state.rewind()
            loss = torch.zeros(())
            if subgraph.num_seeds:
                loss = self._loss_and_gradients(epoch, macrobatch, batch, subgraph, step.num_seeds)
            if not is_alone:
                terms.append(state.flat(loss, is_empty=not subgraph.num_seeds))
        if is_alone:
            state.settle_alone()
        else:
            mine_TK = torch.stack(terms) if terms else state.empty_terms()
            loss = state.load(sum_in_order(mine_TK, step.holders, world, "gradient"))
        optimiser.step()
        return loss

    def _loss_and_gradients(
        self,
        epoch: int,
        macrobatch: Macrobatch,
        batch: Minibatch,
        subgraph: Subgraph,
        num_seeds: int,
    ) -> Tensor:
        """Set gradients to those of one minibatch, by a recording where there is one."""
        if self._recorded is not None and self.on_answers is None:
            self._draws.epoch = epoch_of_draws(epoch, subgraph.number)
            told = self._recorded.run(macrobatch, subgraph, num_seeds)
            if told is not None:
                return told
        with self._drawing(epoch, subgraph.number):
            graph, columns = macrobatch.given(subgraph)
            total = self.loss(batch, graph, columns, num_seeds)
            total.backward()
        return total.detach()

    def try_step(self, macrobatch: Macrobatch) -> None:
        """Train on the first step of a macrobatch for nothing: a copy, and no step is taken.

        A model that can't be copied is left alone.
        """
        step, kept = macrobatch.steps[0], self.module
        try:
            self.module = copy.deepcopy(kept).train()
        except Exception:  # noqa: BLE001 - it is not wrong for that
            return
        self._draws.training = True
        try:
            for batch, subgraph in zip(step.mine, macrobatch.subgraphs[0], strict=True):
                if subgraph.num_seeds:
                    with self._drawing(0, subgraph.number):
                        columns = macrobatch.columns_of(subgraph)
                        self.loss(batch, subgraph, columns, step.num_seeds).backward()
        finally:
            self.module = kept

    @contextmanager
    def _drawing(self, epoch: int, number: int) -> Iterator[None]:
        """Key all draws inside by epoch and minibatch, those of foreign layers too."""
        self._draws.epoch = epoch_of_draws(epoch, number)
        if isinstance(self.module, GNN):
            yield
            return
        device = self._shard.world.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(hash((self._draws.seed, epoch, number)))
            yield

    def training_logits(self) -> Tensor:
        """Return rows of training nodes with all their neighbours."""
        return self.logits()[self._shard.train]

    def logits(self) -> Tensor:
        """Return logits_NO of every owned node with all its neighbours, layer by layer."""
        return _all_rows(self.logit_rows())

    def embeddings(self) -> Tensor:
        """Return hidden_ND of every owned node; the logits of a foreign model."""
        return _all_rows(self.embedding_rows())

    @torch.no_grad()
    def logit_rows(self) -> WrittenRows:
        """Return the rows of `logits`, on disk where memory is limited.

        Asked for again, the same weights need no second inference.
        """
        kept = self._kept()
        if kept.logits is None:
            kept.logits = self._infer_own(embed=False) or self._infer_all(embed=False)
        return kept.logits

    @torch.no_grad()
    def embedding_rows(self) -> WrittenRows:
        """Return the rows of `embeddings`, likewise; `logit_rows` goes on from their layer."""
        kept = self._kept()
        if kept.embeddings is None:
            kept.embeddings = self._infer_own(embed=True) or self._infer_all(embed=True)
        return kept.embeddings

    def _infer_own(self, *, embed: bool) -> WrittenRows | None:
        """Return rows of a model that is not taken apart, whose embeddings are its logits."""
        if self._whole is None:
            return None
        if self.pieces is not None:
            # Whichever is asked for first, the other is the same rows.
            kept = self._kept()
            return kept.logits or kept.embeddings or self._by_pieces(self.pieces, None)
        whole = self._whole
        return HeldRows((whole.embeddings() if embed else whole.logits()).cpu())

    def _by_pieces(self, pieces: Pieces, rows_R: Tensor | None) -> WrittenRows:
        assert self._whole is not None, "a model of the user's own has one"
        self.module.eval()
        self._draws.training = False
        rows = torch.arange(self._shard.num_owned) if rows_R is None else rows_R
        width = self._whole.wanted.width or self.feed.width
        return pieces.rows(rows, width, self.logits_of)

    def _kept(self) -> Inferred:
        """Return what the present weights have given so far."""
        self._rest()
        if self._inferred is None or not self._inferred.is_by(self.module):
            self._inferred = Inferred.by(self.module)
        return self._inferred

    def _rest(self) -> None:
        """Wait for what is fetched ahead: inference and its scores use the same line."""
        self.feed.sampler.settle()
        self.feed.sampler.check()

    def close(self) -> None:
        """Give up what other ranks share with this one."""
        self.feed.close()

    def abandon(self) -> None:
        """End the thread that fetches ahead, after a failure."""
        self.feed.sampler.abandon()

    @torch.no_grad()
    def flow_rows(self, flow: Flow) -> RowReader:
        """Return logits of the nodes that a flow was planned for, and of none else."""
        self._rest()
        return self._infer(embed=False, flow=flow)

    @torch.no_grad()
    def rows_in_pieces(self, pieces: Pieces, rows_R: Tensor) -> RowReader:
        """Return logits of owned nodes, rising, by all their neighbours."""
        self._rest()
        return PickedRows(rows_R, self._by_pieces(pieces, rows_R), self._shard.num_owned)

    @torch.no_grad()
    def seed_rows(self, rows_R: Tensor, sampling: Sampling, size: int) -> RowReader:
        """Return logits of owned nodes, rising, through minibatches of so many of them.

        For models that are not taken apart into layers. All ranks call this together.
        """
        self._rest()
        self.module.eval()
        relay, channel = self.feed.relay_for(sampling), self.feed.channel
        spans = range(0, max(1, len(rows_R)), size)
        rounds = int(max(row[0] for row in tell([float(len(spans))], channel, "control")))
        found = [rows_R.new_zeros(0, self._shard.num_outputs).float().to(self._shard.world.device)]
        for at in range(rounds):
            seeds = rows_R[at * size : (at + 1) * size] | channel.rank << ROW_BITS
            # One number for all: a node met at the same hop has the same draws in all of them.
            graph = relay.sample(0, [Minibatch(0, seeds)])[0]
            columns = columns_of(self.feed, relay, graph)
            if len(seeds):
                found.append(self.logits_of(graph, columns))
        return PickedRows(rows_R, HeldRows(torch.cat(found).cpu()), self._shard.num_owned)

    def _infer_all(self, *, embed: bool) -> WrittenRows:
        rows = self._infer(embed=embed)
        assert not isinstance(rows, PickedRows)
        return rows

    def _infer(self, *, embed: bool, flow: Flow | None = None) -> WrittenRows | PickedRows:
        self.module.eval()
        self._draws.training = False
        assert isinstance(self.module, GNN)
        precision = self.strategy.precision
        layers = LayerPass(self.module, self.feed, self._draws, precision, self.keeper)
        before = Inferred([]) if flow is not None or self._inferred is None else self._inferred
        return layers.run(before, embed=embed, flow=flow)


def _all_rows(rows: WrittenRows) -> Tensor:
    return rows.slice(0, rows.shape[0])
