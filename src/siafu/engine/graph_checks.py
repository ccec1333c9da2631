"""Refusals that settings call for together with the graph, or with the user's own class."""

from torch import Tensor

from siafu.config import RunConfig, is_asked
from siafu.engine.own_model import OWN_ARGUMENTS, arguments_taken
from siafu.errors import ConfigError
from siafu.shard import Shard


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
