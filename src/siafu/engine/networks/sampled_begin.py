"""The network of a run on minibatches, made of its settings."""

from collections.abc import Callable

from torch import nn

from siafu.config import RunConfig
from siafu.engine.links import link_batching
from siafu.engine.networks.own_model import WholeNetwork
from siafu.engine.networks.sampled import SampledNetwork
from siafu.engine.networks.sampled_memory import check_inference, memory_left, settle_macrobatch
from siafu.engine.networks.sampled_settings import (
    minibatches_a_step,
    needs_of,
    needs_of_own,
    sampling_of,
)
from siafu.engine.networks.trial import first_rows, reads_beyond
from siafu.minibatch import Batching, Feed
from siafu.nn import Draws, ModelSpec, SparseRows
from siafu.ops import CSR
from siafu.record import counted
from siafu.shard import Shard
from siafu.strategy import Strategy, edge_arguments, message_passing_class, widen_messages

_RING = 64
"""Nodes whose features are at hand where it is tried how far a model reads."""


def say_hops(module: nn.Module, hops: int, say: Callable[[str], None]) -> None:
    """Tell where a model's layers reach further than what is drawn for it."""
    layers = sum(message_passing_class(layer) is not None for layer in module.modules())
    if hops < layers:
        say(
            f"{counted(hops, 'hop')} drawn for {counted(layers, 'layer')} that pass messages. "
            f"If one reads another, --fanout {','.join(['10'] * layers)} draws what is missing."
        )


def _say_reach(
    module: nn.Module, shard: Shard, config: RunConfig, hops: int, say: Callable[[str], None]
) -> None:
    """Tell where answers would differ from those of the whole graph."""
    assert shard.x is not None, "features are there"
    x = SparseRows(shard.x, shard.row_ids) if isinstance(shard.x, CSR) else shard.x
    if reads_beyond(module, first_rows(x, config, _RING), shard, hops):
        more = ",".join(["10"] * (hops + 1))
        say(
            f"{type(module).__name__} reads more of the graph than {counted(hops, 'hop')} of "
            "in-edges: its scores and predictions differ from those of the whole graph. Where that "
            f"is one hop (degrees of sources), --layers {hops + 1} --fanout {more} has it."
        )


def sampled_network(  # noqa: PLR0913 - what a run is made of, and whom it tells
    config: RunConfig,
    spec: ModelSpec | None,
    module: nn.Module,
    shard: Shard,
    draws: Draws,
    strategy: Strategy,
    say: Callable[[str], None],
    whole: WholeNetwork | None = None,
    *,
    training: bool,
) -> SampledNetwork:
    """Return the network of a run on minibatches, its macrobatches as large as pays.

    `say` is told where rows lie, how many steps are fetched together, if that was a choice, and how
    a model is scored that is not taken apart. Where it is not `training` it infers alone.
    """
    sampling = sampling_of(config)
    batching = Batching(
        batch_size=config.batch_size,
        order=config.seed_order,
        step_minibatches=minibatches_a_step(config),
        links=link_batching(config),
        most_steps=config.steps_per_epoch,
        share_draws=config.share_draws,
    )
    if spec is None:
        for layer in module.modules():
            widen_messages(layer, config.precision)
        needs = needs_of_own(config, edge_arguments(module, shard))
        if training:
            say_hops(module, len(sampling.fanouts), say)
    else:
        needs = needs_of(config, spec, strategy)
    feed = Feed(shard, sampling, batching, needs, draws, memory_left(config, shard))
    # Minibatches that wait for their rows take memory, too.
    feed.sampler.looks_ahead &= not feed.is_limited
    if feed.place.told:
        say(feed.place.told)
    network = SampledNetwork(module, feed, shard, draws, strategy, whole)
    pieces = network.pieces if config.is_scored or not training else None
    if training:
        macrobatch = strategy.macrobatch
        size = settle_macrobatch(config, spec, feed, macrobatch, network.try_step, say, pieces)
    else:
        size = 1
        check_inference(config, spec, feed, pieces)
    network.strategy = strategy.with_choices(macrobatch=size)
    if pieces is not None:
        _say_reach(module, shard, config, pieces.hops, say)
        hops, count = counted(pieces.hops, "hop"), counted(pieces.count(), "piece")
        say(
            f"Memory is limited: {type(module).__name__} scores and predicts nodes with all their "
            f"in-edges of {hops}, in about {count} on a rank. None is larger than a minibatch of "
            "training unless it is of one node."
        )
    return network
