"""The training and inference loops; they evaluate and write records."""

from siafu.engine.begin import begin
from siafu.engine.checks import check_model_class, check_model_file, check_network_settings
from siafu.engine.dynamic.infer import infer_dynamic
from siafu.engine.dynamic.network import (
    LOOKS_AHEAD,
    check_time_settings,
    default_task,
    num_embedded,
)
from siafu.engine.dynamic.step_shards import check_grid, make_grid
from siafu.engine.dynamic.workload import begin_dynamic
from siafu.engine.edges import check_edge_settings, write_edges
from siafu.engine.forecast import Counts, check_before_cut, minibatch_remedy
from siafu.engine.infer import write_embeddings, write_predictions
from siafu.engine.links import check_link_settings
from siafu.engine.networks.network import Network, build_network, make_spec
from siafu.engine.networks.own_model import OFFERED, as_given, check_shapes
from siafu.engine.networks.sampled_settings import check_sampled_settings
from siafu.engine.plain import plain_model
from siafu.engine.progress import Progress, RunResult, peak_bytes
from siafu.engine.tasks.task import refuse_one_snapshot
from siafu.engine.trainer import Trainer
from siafu.engine.weights import load_network
from siafu.engine.workload import Evaluation, Workload

__all__ = [
    "LOOKS_AHEAD",
    "OFFERED",
    "Counts",
    "Evaluation",
    "Network",
    "Progress",
    "RunResult",
    "Trainer",
    "Workload",
    "as_given",
    "begin",
    "begin_dynamic",
    "build_network",
    "check_before_cut",
    "check_edge_settings",
    "check_grid",
    "check_link_settings",
    "check_model_class",
    "check_model_file",
    "check_network_settings",
    "check_sampled_settings",
    "check_shapes",
    "check_time_settings",
    "default_task",
    "infer_dynamic",
    "load_network",
    "make_grid",
    "make_spec",
    "minibatch_remedy",
    "num_embedded",
    "peak_bytes",
    "plain_model",
    "refuse_one_snapshot",
    "write_edges",
    "write_embeddings",
    "write_predictions",
]
