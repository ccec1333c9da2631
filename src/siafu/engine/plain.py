"""The model of a finished run as a plain torch module."""

from pathlib import Path

from torch import nn

from siafu.config import ResolvedConfig
from siafu.engine.networks.network import make_spec
from siafu.engine.networks.own_model import EdgeFacts, own_model
from siafu.engine.weights import NetworkFacts, Weights
from siafu.errors import ConfigError
from siafu.nn import DYNAMIC_CARDS, PlainGNN


def plain_model(config: ResolvedConfig, file: Path) -> nn.Module:
    """Return the model of a run on a static graph with its weights, ready to be called."""
    if config.model in DYNAMIC_CARDS:
        raise ConfigError(
            "A model of a dynamic graph is no module of one graph.",
            seen=config.model,
            fix="use run.predict and run.embeddings",
        )
    if config.task == "edge":
        raise ConfigError(
            "A model of edges is no module of nodes alone: its answers are of pairs of rows.",
            seen=f"{config.model} with --task edge",
            fix="use run.predict and run.embeddings",
        )
    weights = Weights(file)
    facts = weights.facts(NetworkFacts)
    width = config.hidden if config.task == "link" else facts.num_outputs
    edges = EdgeFacts(width=facts.edge_width, num_types=int(facts.edge_types[0]))
    if ":" in config.model:
        model = own_model(config, facts.num_features, width, edges)
    else:
        spec = make_spec(
            config,
            in_width=facts.num_features,
            out_width=width,
            edge_width=edges.width if config.edge_features else 0,
            num_types=edges.num_types,
        )
        model = PlainGNN(spec, sums_to_one=config.normalize_features)
    weights.load_into(model)
    return model.eval()
