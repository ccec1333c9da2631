"""What the settings of a run mean for its minibatches, and which of them mean nothing."""

from collections.abc import Sequence

from siafu.config import RunConfig
from siafu.engine.networks.sampled_memory import read_fanout
from siafu.errors import ConfigError
from siafu.minibatch import Needs, Sampling
from siafu.minibatch.served import EdgeColumn
from siafu.nn import ModelSpec
from siafu.nn.named_code import forward_takes
from siafu.nn.precision import stored_type
from siafu.options import read_bytes
from siafu.strategy import Strategy


def needs_of(config: RunConfig, spec: ModelSpec, strategy: Strategy) -> Needs:
    """Return what a built-in model reads."""
    edge_columns: tuple[EdgeColumn, ...] = ("edge_weight",)
    if spec.edge_width:
        edge_columns = (*edge_columns, "edge_attr")
    if spec.num_types:
        edge_columns = (*edge_columns, "edge_type")
    return Needs(
        facts=spec.card.scales_sampled or config.sample_weighted,
        aggregate=spec.card.input_aggregation if strategy.input_cache else None,
        rows_too=spec.card.reads_own_row or spec.residual,
        edge_columns=edge_columns,
        normalise=config.normalize_features,
        feature_bits=config.feature_bits,
        sparse=True,
        hot_bytes=_hot_bytes(config),
        loops=spec.card.adds_loops and not spec.edge_width,
        projects=spec.card.maps_first == "always",
        dtype=stored_type(config.precision),
        rows_on=config.rows_on,
    )


def needs_of_own(config: RunConfig, edge_columns: tuple[EdgeColumn, ...]) -> Needs:
    """Return what a model of the user's own reads: the edges as they are drawn, nothing scaled."""
    check_weights_count_once(config, edge_columns)
    return Needs(
        edge_columns=edge_columns,
        normalise=config.normalize_features,
        feature_bits=config.feature_bits,
        hot_bytes=_hot_bytes(config),
        dtype=stored_type(config.precision),
        rows_on=config.rows_on,
    )


def check_weights_count_once(config: RunConfig, taken: Sequence[str]) -> None:
    """Raise where edges are drawn by weight for a model of the user's own that takes weights."""
    if config.sample_weighted and "edge_weight" in taken:
        raise ConfigError(
            "Edges drawn by weight have their weights in the draw, and the model takes them too.",
            seen=f"--sample-weighted with {config.model}, whose forward takes edge_weight",
            fix="leave --sample-weighted out, or let forward take no edge_weight",
        )


def _hot_bytes(config: RunConfig) -> int:
    return 0 if config.hot_rows is None else read_bytes(config.hot_rows)


def check_sampled_settings(config: RunConfig) -> None:
    """Raise where the settings of minibatches mean nothing, before any data is looked at."""
    if ":" in config.model and config.launcher == "local":
        check_weights_count_once(config, forward_takes(config.model))
    sampling_of(config)
    minibatches_a_step(config)
    if config.hot_rows is not None:
        read_bytes(config.hot_rows, "size of --hot-rows")


def fanouts_of(config: RunConfig) -> tuple[int, ...]:
    """Return the in-edges drawn at each hop; raise where they can't be drawn so."""
    fanouts = read_fanout(config.fanout, config.layers)
    if config.share_draws and config.sample_weighted:
        raise ConfigError(
            "Edges drawn by weight do not share draws.",
            seen=f"--share-draws {config.share_draws} with --sample-weighted",
            fix="leave one of them out",
        )
    if config.sample_weighted and not (config.sample_replace and min(fanouts) > 0):
        # Only then is the plain mean of what is drawn the weighted one on average.
        raise ConfigError(
            "Edges drawn by weight are drawn with replacement, and some of them.",
            seen=f"--sample-weighted with fan-out {','.join(map(str, fanouts))}"
            + ("" if config.sample_replace else " and no --sample-replace"),
            fix="add --sample-replace and use fan-outs from 1, or leave --sample-weighted out",
        )
    return fanouts


def sampling_of(config: RunConfig) -> Sampling:
    """Return how neighbours are drawn; raise where they can't be drawn so."""
    # With the first layer's input aggregated once, its hop is not drawn.
    layers = config.layers - int(config.chosen.input_cache)
    return Sampling(
        fanouts=fanouts_of(config)[:layers],
        replace=config.sample_replace,
        weighted=config.sample_weighted,
        shared=bool(config.share_draws),
    )


def minibatches_a_step(config: RunConfig) -> int | None:
    """Return how many minibatches a step has, if that was told; raise where it means nothing."""
    if config.step_minibatches is not None and config.seed_order == "local":
        raise ConfigError(
            "Minibatches of own nodes are one per rank.",
            seen=f"--step-minibatches {config.step_minibatches}",
            fix="add --seed-order global, or leave it out",
        )
    return config.step_minibatches
