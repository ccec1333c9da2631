"""Numeric kernels on CPU and CUDA, each beside the slow reference that defines it.

Knows tensors, not graphs or ranks.
"""

from siafu.ops.activation.activate import (
    Activated,
    activate_rows,
    activated_own_and_sum,
    can_activate,
)
from siafu.ops.attention.attend import attend, fold_backward, fold_into
from siafu.ops.attention.kinds import Attention, DotProduct, Gat, GatV2, attend_reference
from siafu.ops.attention.softmax import EdgeDraw, SoftmaxState, delta_of, finish
from siafu.ops.contract import Requests, sum_type
from siafu.ops.csr.gcn import gcn_scales, gcn_values
from siafu.ops.csr.matrix import CSR
from siafu.ops.csr.maximum import (
    csr_max_reference,
    fold_max,
    max_gradients,
    max_with_argument,
    neighbour_max,
)
from siafu.ops.csr.sum import (
    csr_sum_reference,
    neighbour_sum,
    own_and_sum,
    sum_into,
    sum_with_own,
)
from siafu.ops.delta.edges import EdgeDelta, apply_delta, apply_delta_reference, edge_delta
from siafu.ops.delta.stream import DeltaStream
from siafu.ops.delta.window import (
    GRAIN,
    WindowStream,
    copies_are_slow,
    sums_are_exact,
    window_means,
    with_loops,
)
from siafu.ops.delta.wire import DeltaLayout, decode_delta, encode_delta
from siafu.ops.group_numbering import GroupNumbering, NewKeys
from siafu.ops.kernels import adds_own, has_fast_kernels
from siafu.ops.numba_jit import load_compiler
from siafu.ops.numbering import Numbering, union
from siafu.ops.product import linear, linear_onto, map_gradient, map_rows
from siafu.ops.random.draws import (
    DrawKey,
    HeldKey,
    dropout_grad,
    dropout_pairs,
    dropout_rows,
    uniform_pairs,
    uniform_reference,
    uniform_rows,
)
from siafu.ops.rows.gather import gather_rows
from siafu.ops.runtime import (
    HUGE_PAGES_VARIABLE,
    fast_paths,
    set_threads,
    spare_memory,
    spare_page_faults,
    telling_compilation,
    warm_up,
)
from siafu.ops.sample.positions import (
    draw_positions,
    key_words,
    sample_positions,
    sample_reference,
    shared_positions,
    warm_up_sampling,
)
from siafu.ops.sample.reference import ALL
from siafu.ops.sample.running import running_sums
from siafu.ops.threads import num_threads
from siafu.ops.wire.rows import (
    Encoded,
    WireLayout,
    bad_row,
    decode,
    decode_changes,
    decode_into,
    encode,
    encode_changes,
    row_bytes,
    row_range,
    warm_up_wire,
    wire_bytes,
)

__all__ = [
    "ALL",
    "CSR",
    "GRAIN",
    "HUGE_PAGES_VARIABLE",
    "Activated",
    "Attention",
    "DeltaLayout",
    "DeltaStream",
    "DotProduct",
    "DrawKey",
    "EdgeDelta",
    "EdgeDraw",
    "Encoded",
    "Gat",
    "GatV2",
    "GroupNumbering",
    "HeldKey",
    "NewKeys",
    "Numbering",
    "Requests",
    "SoftmaxState",
    "WindowStream",
    "WireLayout",
    "activate_rows",
    "activated_own_and_sum",
    "adds_own",
    "apply_delta",
    "apply_delta_reference",
    "attend",
    "attend_reference",
    "bad_row",
    "can_activate",
    "copies_are_slow",
    "csr_max_reference",
    "csr_sum_reference",
    "decode",
    "decode_changes",
    "decode_delta",
    "decode_into",
    "delta_of",
    "draw_positions",
    "dropout_grad",
    "dropout_pairs",
    "dropout_rows",
    "edge_delta",
    "encode",
    "encode_changes",
    "encode_delta",
    "fast_paths",
    "finish",
    "fold_backward",
    "fold_into",
    "fold_max",
    "gather_rows",
    "gcn_scales",
    "gcn_values",
    "has_fast_kernels",
    "key_words",
    "linear",
    "linear_onto",
    "load_compiler",
    "map_gradient",
    "map_rows",
    "max_gradients",
    "max_with_argument",
    "neighbour_max",
    "neighbour_sum",
    "num_threads",
    "own_and_sum",
    "row_bytes",
    "row_range",
    "running_sums",
    "sample_positions",
    "sample_reference",
    "set_threads",
    "shared_positions",
    "spare_memory",
    "spare_page_faults",
    "sum_into",
    "sum_type",
    "sum_with_own",
    "sums_are_exact",
    "telling_compilation",
    "uniform_pairs",
    "uniform_reference",
    "uniform_rows",
    "union",
    "warm_up",
    "warm_up_sampling",
    "warm_up_wire",
    "window_means",
    "wire_bytes",
    "with_loops",
]
