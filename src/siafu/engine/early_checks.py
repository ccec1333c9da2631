"""Refusals that settings alone call for: before any data is read or any rank is started."""

from pathlib import Path

import torch

from siafu.config import RunConfig
from siafu.elastic import inspect_parts
from siafu.elastic.open import check_pool_settings
from siafu.elastic.options import PoolOptions
from siafu.engine.network import check_strategy
from siafu.engine.own_model import no_such_file
from siafu.engine.pipelined import check_pipeline
from siafu.nn import GNN, ModelSpec
from siafu.plan import check_budget, named_strategy, read_prices


def check_network_settings(config: RunConfig) -> None:
    """Raise where the network of a run on a static graph can't be made, whatever the graph.

    The settings are resolved ones. Ranks check the same again, and what depends on the graph.
    """
    strategy = named_strategy(config)
    check_budget(config, strategy)
    if strategy.unit == "interval":
        check_pipeline(config)
        named = {name: getattr(config, name) for name in PoolOptions.model_fields}
        check_pool_settings(PoolOptions(**named), strategy.pool)
        if config.launcher == "local":  # elsewhere ranks read it, from their own disks
            read_prices(config.prices)
    if ":" in config.model:
        check_strategy(strategy, None)
        return
    spec = _spec_of_any_graph(config)
    check_strategy(strategy, spec)
    with torch.random.fork_rng(devices=[]):
        if strategy.unit == "interval":
            inspect_parts(spec)
        else:
            with torch.device("meta"):
                GNN(spec)


def check_model_file(config: RunConfig) -> None:
    """Raise where the file of a model of the user's own is not there.

    Ranks on other machines may have it where this one has not.
    """
    place, _, _ = config.model.rpartition(":")
    if config.launcher == "local" and place.endswith(".py") and not Path(place).is_file():
        raise no_such_file(config.model, "no such file")


def _spec_of_any_graph(config: RunConfig) -> ModelSpec:
    """Return the model with the narrowest rows and one type of edges: those are the graph's."""
    names = ("hidden", "layers", "heads", "dropout", "input_dropout", "norm", "residual", "jk")
    return ModelSpec(
        name=config.model,
        in_width=1,
        out_width=1,
        edge_width=1 if config.edge_features else 0,
        num_types=1,
        **{name: getattr(config, name) for name in names},
    )
