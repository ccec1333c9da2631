"""The training and inference loops; they evaluate and write records."""

from siafu.engine.full_graph import Training, begin, peak_bytes, train
from siafu.engine.infer import write_predictions
from siafu.engine.network import Network, build_network

__all__ = [
    "Network",
    "Training",
    "begin",
    "build_network",
    "peak_bytes",
    "train",
    "write_predictions",
]
