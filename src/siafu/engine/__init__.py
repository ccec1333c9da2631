"""The training and inference loops; they evaluate and write records."""

from siafu.engine.dynamic import (
    DynamicTraining,
    begin_dynamic,
    default_task,
    num_embedded,
    train_dynamic,
)
from siafu.engine.dynamic_infer import (
    infer_dynamic,
    save_dynamic_network,
    write_dynamic_predictions,
)
from siafu.engine.early_checks import check_model_file, check_network_settings
from siafu.engine.forecast import Counts, check_before_cut
from siafu.engine.full_graph import Training, begin, peak_bytes, train
from siafu.engine.grid import check_grid, make_grid
from siafu.engine.infer import write_embeddings, write_predictions
from siafu.engine.links import check_link_settings
from siafu.engine.network import Network, build_network, logit_rows, make_spec
from siafu.engine.pipeline_report import write_trace
from siafu.engine.sampled import check_sampled_settings
from siafu.engine.weights import load_network, save_network

__all__ = [
    "Counts",
    "DynamicTraining",
    "Network",
    "Training",
    "begin",
    "begin_dynamic",
    "build_network",
    "check_before_cut",
    "check_grid",
    "check_link_settings",
    "check_model_file",
    "check_network_settings",
    "check_sampled_settings",
    "default_task",
    "infer_dynamic",
    "load_network",
    "logit_rows",
    "make_grid",
    "make_spec",
    "num_embedded",
    "peak_bytes",
    "save_dynamic_network",
    "save_network",
    "train",
    "train_dynamic",
    "write_dynamic_predictions",
    "write_embeddings",
    "write_predictions",
    "write_trace",
]
