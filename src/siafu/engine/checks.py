"""What a run is refused for by its settings alone, with its graph, or with its class."""

from pathlib import Path

import torch
from torch import Tensor

from siafu.config import RunConfig, is_asked
from siafu.elastic import inspect_parts
from siafu.elastic.open import check_pool_settings
from siafu.engine.networks.network import check_strategy
from siafu.engine.networks.own_model import arguments_taken
from siafu.engine.networks.pipelined import check_pipeline
from siafu.errors import ConfigError
from siafu.nn import GNN, ModelSpec
from siafu.nn.named_code import check_name_in_file, no_such_file
from siafu.nn.options import OWN_ARGUMENTS
from siafu.plan import check_budget, read_prices
from siafu.shard import Shard


def check_network_settings(config: RunConfig) -> None:
    """Raise where the network of a run on a static graph can't be made, whatever the graph.

    The settings are resolved ones. Ranks check the same again, and what depends on the graph.
    """
    strategy = config.chosen
    check_budget(config, strategy)
    if strategy.unit == "interval":
        check_pipeline(config)
        if ":" in (config.loss or ""):
            raise ConfigError(
                "A loss of your own is not computed by a pipeline's pool.",
                seen=f"--loss {config.loss} with --strategy {config.strategy}",
                fix="use another strategy, or one of siafu's losses",
            )
        check_pool_settings(config, strategy.pool)
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
    for what, name in (("model", config.model), ("loss", config.loss or "")):
        place, _, _ = name.rpartition(":")
        if config.launcher == "local" and place.endswith(".py") and not Path(place).is_file():
            raise no_such_file(name, "no such file", what)


def check_model_class(config: RunConfig) -> None:
    """Raise where the file of a model, or loss, of the user's own has nothing of that name."""
    for what, name in (("model", config.model), ("loss", config.loss or "")):
        if config.launcher == "local" and ":" in name:
            check_name_in_file(name, what)


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


def check_residual(config: RunConfig, shard: Shard) -> None:
    """Raise where no layer's input is as wide as its output, so that nothing could be added."""
    hidden_layers = config.layers if config.jk != "none" else config.layers - 1
    width = shard.x.size(1) if isinstance(shard.x, Tensor) else None
    if not config.residual or hidden_layers > 1 or width == config.hidden:
        return
    raise ConfigError(
        "--residual has no meaning where no hidden layer's input is as wide as its output.",
        seen=f"--layers {config.layers} --hidden {config.hidden} with "
        + ("sparse features" if width is None else f"{width} features"),
        fix="use --layers 3 or more, or leave --residual out",
    )


def check_own_settings(config: RunConfig) -> None:
    """Raise where a setting is asked for that the user's own class does not take."""
    asked = [name for name in OWN_ARGUMENTS if is_asked(config, name)]
    if config.chosen.unit == "macrobatch" and "layers" in asked:
        asked.remove("layers")  # as many hops are sampled
    if ":" not in config.model or not asked:
        return
    taken = arguments_taken(config)
    for name in asked:
        if OWN_ARGUMENTS[name] not in taken:
            raise ConfigError(
                f"--{name} has no meaning for a class that does not take it.",
                seen=f"--{name} {getattr(config, name)} with --model {config.model}",
                fix=f"let the class take {OWN_ARGUMENTS[name]}, or leave --{name} out",
            )
