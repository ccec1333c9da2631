"""Making the model of a run and calling it on a shard."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from siafu.config import RunConfig
from siafu.engine.forecast import Counts, minibatch_remedy
from siafu.engine.networks.own_model import EdgeFacts, OutputShape, WholeNetwork, own_model
from siafu.engine.networks.pipelined import PipelinedNetwork, RowsInMemory, check_pipeline
from siafu.engine.networks.sampled_begin import sampled_network
from siafu.engine.networks.trial import first_rows, try_forward
from siafu.errors import ConfigError
from siafu.nn import (
    GNN,
    CachedRows,
    Draws,
    MappedRows,
    ModelSpec,
    Neighbours,
    Rows,
    SparseRows,
    cache_input,
    check_input_cache,
    rows_to_sum_one,
)
from siafu.nn.precision import check_precision, computing, usable, weight_type
from siafu.nn.sparse import dense, held_as
from siafu.ops import CSR, sum_type
from siafu.plan import choose_strategy
from siafu.shard import Shard, WrittenRows, moved_shard
from siafu.strategy import (
    Strategy,
    View,
    WidthBook,
    check_forward,
    check_own,
    edge_arguments,
    leaving,
    message_flow,
    neighbours_of,
    offload_of,
    parallelize,
)


class Network(Protocol):
    """A model bound to a shard."""

    @property
    def module(self) -> nn.Module:
        """The model itself, with the user's parameter names."""
        ...

    @property
    def strategy(self) -> Strategy:
        """The strategy with every choice made."""
        ...

    @property
    def book(self) -> WidthBook:
        """The widths at which rows travel while training."""
        ...

    def training_logits(self) -> Tensor:
        """Return rows of scores of the training nodes alone, to learn from."""
        ...

    def logits(self) -> Tensor:
        """Return one row of scores for each owned node."""
        ...

    def embeddings(self) -> Tensor:
        """Return the rows before the last layer, or the logits where a model has no such rows."""
        ...

    def logit_rows(self) -> WrittenRows:
        """Return the rows of `logits`, which may lie on disk."""
        ...

    def embedding_rows(self) -> WrittenRows:
        """Return the rows of `embeddings`, likewise."""
        ...


class BuiltInNetwork(RowsInMemory):
    """One of siafu's own models with the neighbours of a shard."""

    def __init__(
        self, module: GNN, x: Rows, shard: Shard, draws: Draws, strategy: Strategy
    ) -> None:
        self.module, self.strategy = module, strategy
        self._shard, self._draws = shard, draws
        self._neighbours = neighbours_of(shard, draws, strategy)
        self.book = self._neighbours.book
        self._x = cache_input(x, self._neighbours, module.spec) if strategy.input_cache else x
        self._views: list[View] = []
        if strategy.prune:
            self._views = message_flow(shard, shard.train, module.spec.layers)
            self._x_pruned = _needed(self._x, self._views)
            self._flow: list[Neighbours] = [
                neighbours_of(shard, draws, strategy, view=view, book=self.book)
                for view in self._views
            ]
        read = [self._x_pruned] if self._views else []
        self._offload = offload_of(strategy, shard, [module, self._x, *read])

    def training_logits(self) -> Tensor:
        """Return logits of the training nodes."""
        if self._views:
            return self._computed(self.module, self._x_pruned, self._flow)
        return self.logits()[self._shard.train]

    def logits(self) -> Tensor:
        """Return logits_NO."""
        return self._computed(self.module, self._x, self._neighbours)

    def embeddings(self) -> Tensor:
        """Return hidden_ND."""
        return self._computed(self.module.embed, self._x, self._neighbours)

    def _computed(self, call: Callable[..., Tensor], x: Rows, neighbours: Any) -> Tensor:
        """Return rows in the type of weights, whatever they are computed in."""
        with computing(self.strategy.precision, self._shard.world.device), leaving(self._offload):
            out = call(x, neighbours, self._draws)
        return out.to(sum_type(out.dtype))


def _needed(x: Rows, views: list[View]) -> Rows:
    """Return the rows that the first view reads, and their aggregate where there is one."""
    read = views[0].read_rows_N
    assert read is not None, "a pruned view names its rows"
    if isinstance(x, CachedRows):
        written = read if views[0].own_rows_M is None else read[views[0].own_rows_M]
        return CachedRows(x.rows[read], x.aggregate[written])
    assert not isinstance(x, MappedRows), "these are no input"
    return x.select(read) if isinstance(x, SparseRows) else x[read]


class OwnNetwork(RowsInMemory):
    """A user's PyG model, run over the ranks unmodified."""

    def __init__(
        self,
        module: nn.Module,
        x: Tensor,
        shard: Shard,
        draws: Draws,
        strategy: Strategy,
        wanted: OutputShape,
    ) -> None:
        self.module, self.strategy, self.wanted = module, strategy, wanted
        self._parallel = parallelize(module, shard, strategy, draws=draws, reduce_gradients=False)
        self.book = self._parallel.book
        self._x, self._train = x, shard.train
        self._offload = offload_of(strategy, shard, [module, x])

    def training_logits(self) -> Tensor:
        """Return logits of the training nodes."""
        return self.logits()[self._train]

    def logits(self) -> Tensor:
        """Return logits_NO."""
        with leaving(self._offload):
            rows = self._parallel(self._x)
        return self.wanted.checked(rows, len(self._x), self.module)

    def embeddings(self) -> Tensor:
        """Return logits_NO: which rows of a foreign model are its embedding is unknown."""
        return self.logits()


class LateNetwork:
    """A network over the whole graph that is made when it is first asked for.

    On a GPU the whole graph has to fit there then, beside what minibatches hold.
    """

    def __init__(self, wanted: OutputShape, make: Callable[[], OwnNetwork]) -> None:
        self.wanted, self._make = wanted, make
        self._made: OwnNetwork | None = None

    def _network(self) -> OwnNetwork:
        if self._made is None:
            self._made = self._make()
        return self._made

    def logits(self) -> Tensor:
        """Return one row of scores for each owned node."""
        return self._network().logits()

    def embeddings(self) -> Tensor:
        """Return one hidden row for each owned node."""
        return self._network().embeddings()


def build_network(
    config: RunConfig,
    shard: Shard,
    draws: Draws,
    *,
    training: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> Network:
    """Return the model of the run, its weights drawn from the seed alike on every rank."""
    if not training:
        # Where training had them, there may be no device now; several ranks infer through hosts.
        kind, rows_on = usable(config.precision, shard.world.device), "auto"
        rows_on = rows_on if shard.world.size == 1 else "host"
        config = config.model_copy(update={"rows_on": rows_on, "precision": kind})
    spec = None if ":" in config.model else model_spec(config, shard)
    check_precision(config.precision, shard.world.device)
    strategy = choose_strategy(
        config,
        spec,
        shard,
        training=training,
        say=say,
        remedy=partial(_remedy, config, spec, shard),
    )
    if strategy.unit == "interval":
        check_pipeline(config)
    if strategy.unit == "macrobatch" and not training:
        strategy = strategy.with_choices(macrobatch=1)  # nothing is fetched for steps
    check_strategy(strategy, spec)
    is_limited = shard.is_mapped or config.memory is not None
    reads_all = strategy.unit != "macrobatch" or (spec is None and not is_limited)
    x = prepare_features(shard, normalize=config.normalize_features and reads_all)
    if reads_all:
        x = held_as(x, config.precision)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if spec is None:
            own = own_model(config, x.shape[1], out_width(config, shard), _edge_facts(shard))
            own = own.to(shard.world.device, weight_type(config.precision))
            check_forward(own, edge_arguments(own, shard), shard.name)
            if training:
                few = x if reads_all else first_rows(x, config)
                try_forward(own, few, shard, _wanted(config, shard))
            return _own_network(config, own, x, shard, draws, strategy, say, training=training)
        gnn = GNN(spec).to(shard.world.device, weight_type(config.precision))
    if strategy.unit == "macrobatch":
        return sampled_network(config, spec, gnn, shard, draws, strategy, say, training=training)
    if strategy.unit == "interval":
        return PipelinedNetwork(gnn, dense(x), shard, draws, strategy, config)
    return BuiltInNetwork(gnn, x, shard, draws, strategy)


def _remedy(config: RunConfig, spec: ModelSpec | None, shard: Shard) -> str:
    assert spec is not None, "only the memory of a known model is predicted"
    csr, x = shard.csr, shard.x
    weights = [part for part in (csr.weight, shard.edge_attr, shard.edge_type) if part is not None]
    row_bytes = 0 if x is None or isinstance(x, CSR) else x[:1].nbytes
    edge_bytes = csr.index.itemsize + sum(part[:1].nbytes for part in weights)
    counts = Counts(
        rows=shard.num_owned,
        edges=csr.num_edges,
        row_bytes=row_bytes,
        edge_bytes=edge_bytes,
        ranks=shard.world.size,
    )
    return minibatch_remedy(config, spec, counts)


def _own_network(  # noqa: PLR0913 - what a run is made of, and whom it tells
    config: RunConfig,
    module: nn.Module,
    x: Rows,
    shard: Shard,
    draws: Draws,
    strategy: Strategy,
    say: Callable[[str], None],
    *,
    training: bool,
) -> Network:
    wanted = _wanted(config, shard)
    if strategy.unit == "graph":
        return OwnNetwork(module, dense(x), shard, draws, strategy, wanted)
    whole: WholeNetwork = _whole_on_device(config, module, shard, draws, wanted)
    if shard.is_mapped or config.memory is not None:
        check_own(module, shard.world)  # as the whole graph's network does
    elif shard.world.device.type == "cpu":
        whole = OwnNetwork(module, dense(x), shard, draws, whole_strategy(config), wanted)
    return sampled_network(
        config, None, module, shard, draws, strategy, say, whole, training=training
    )


def _whole_on_device(
    config: RunConfig, module: nn.Module, shard: Shard, draws: Draws, wanted: OutputShape
) -> LateNetwork:
    """Return what infers over the whole graph on a GPU, where minibatches are drawn elsewhere."""

    def make() -> OwnNetwork:
        there = moved_shard(shard, shard.world.device)
        rows = prepare_features(there, normalize=config.normalize_features)
        rows = held_as(rows, config.precision)
        return OwnNetwork(module, dense(rows), there, draws, whole_strategy(config), wanted)

    return LateNetwork(wanted, make)


def whole_strategy(config: RunConfig) -> Strategy:
    """Return how minibatches' models infer over the whole graph."""
    return Strategy(precision=config.precision)


def _wanted(config: RunConfig, shard: Shard) -> OutputShape:
    # Edges are scored by rows of any width.
    return OutputShape(
        None if config.task == "link" else out_width(config, shard),
        "targets" if shard.num_targets else "classes",
    )


def _edge_facts(shard: Shard) -> EdgeFacts:
    width = 0 if shard.edge_attr is None else shard.edge_attr.size(1)
    return EdgeFacts(width=width, num_types=shard.num_edge_types)


def check_strategy(strategy: Strategy, spec: ModelSpec | None) -> None:
    """Raise where a choice would change what the model computes, or can't be made for it."""
    if spec is None and (strategy.input_cache or strategy.prune):
        raise ConfigError(
            "A model of your own is not taken apart into layers.",
            seen="--input-cache" if strategy.input_cache else "--prune",
            fix="leave it out, or use a built-in model",
        )
    if spec is None:
        if strategy.by_columns:
            raise ConfigError(
                "A model of your own reads whole rows, and by columns no rank has them.",
                seen="--by-columns (--strategy columns) with a model of your own",
                fix="use --strategy halo or sar, or a built-in model",
            )
        return
    if strategy.input_cache:
        check_input_cache(spec, sampled=strategy.unit == "macrobatch")
    if strategy.prune and spec.norm == "batch":
        raise ConfigError(
            "Batch norm needs the rows of all nodes, so none can be left out.",
            seen="--prune with --norm batch",
            fix="use --norm layer or none, or leave --prune out",
        )


def out_width(config: RunConfig, shard: Shard) -> int:
    """Return the width of a model's rows: what is told of nodes, or what edges are scored by."""
    if config.task not in ("link", "edge"):
        return shard.num_outputs
    assert config.hidden is not None
    return config.hidden


def model_spec(config: RunConfig, shard: Shard) -> ModelSpec:
    """Return the part of the settings that shapes the model."""
    assert shard.x is not None, "require(shard, 'x') comes first"
    return make_spec(
        config,
        in_width=shard.x.num_cols if isinstance(shard.x, CSR) else shard.x.size(1),
        out_width=out_width(config, shard),
        edge_width=_edge_width(shard) if config.edge_features else 0,
        num_types=shard.num_edge_types,
    )


def make_spec(
    config: RunConfig, *, in_width: int, out_width: int, edge_width: int, num_types: int
) -> ModelSpec:
    """Return the model that the settings make for data of these widths."""
    names = ("hidden", "layers", "heads", "dropout", "input_dropout", "norm", "residual", "jk")
    return ModelSpec(
        name=config.model,
        in_width=in_width,
        out_width=out_width,
        edge_width=edge_width,
        num_types=num_types,
        **{name: getattr(config, name) for name in names},
    )


def _edge_width(shard: Shard) -> int:
    if shard.edge_attr is None:
        raise ConfigError(
            "The graph has no edge features.",
            seen=f"--edge-features with {shard.name}",
            fix="leave --edge-features out, or ingest them with the edges",
        )
    return shard.edge_attr.size(1)


def prepare_features(shard: Shard, *, normalize: bool) -> Rows:
    """Return the shard's features, each row scaled to sum to 1 if asked."""
    x = shard.x
    assert x is not None, "require(shard, 'x') comes first"
    rows = SparseRows(x, shard.row_ids) if isinstance(x, CSR) else x
    return rows_to_sum_one(rows) if normalize else rows
