"""The training and inference loops; they evaluate and write records."""

from siafu.engine.full_graph import Training, begin, peak_bytes, train
from siafu.engine.infer import write_embeddings, write_predictions
from siafu.engine.links import check_link_settings
from siafu.engine.network import Network, build_network
from siafu.engine.weights import load_network, save_network

__all__ = [
    "Network",
    "Training",
    "begin",
    "build_network",
    "check_link_settings",
    "load_network",
    "peak_bytes",
    "save_network",
    "train",
    "write_embeddings",
    "write_predictions",
]
