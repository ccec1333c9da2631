"""What a graph, a snapshot sequence and a delta are, in memory and on disk."""

from siafu.graph.array_stream import Array, forget
from siafu.graph.dynamic import (
    DegreeScale,
    Deltas,
    DynamicGraph,
    EdgeEvents,
    degree_features,
    fingerprint_dynamic,
    join_deltas,
)
from siafu.graph.dynamic_store import check_dynamic, load_dynamic_store, save_dynamic
from siafu.graph.edge_types import (
    EdgeTypeName,
    count_edge_types,
    edge_type_dtype,
    number_edge_types,
)
from siafu.graph.features import Features, SparseFeatures, rows_to_sum_one
from siafu.graph.folder import (
    Folder,
    FolderWriter,
    folder_kind,
    open_folder,
    unwritable,
    write_folder,
    write_text_atomically,
    writing,
)
from siafu.graph.graph import (
    MASKS,
    Graph,
    check_graph,
    fingerprint_graph,
    graph_facts,
    graph_from_edges,
    graph_from_folder,
    index_dtype,
    load_features,
    load_store,
    save_store,
    save_vertices,
)
from siafu.graph.ids import Ids, IntegerIds, TextIds, load_ids
from siafu.graph.lock import LockedError, locked
from siafu.graph.partial import Job, Partial, file_facts, make_in_steps, partial_path, sync
from siafu.graph.scratch import scratch_folder
from siafu.graph.smoothing import normalised, smooth
from siafu.graph.snapshot import (
    Delta,
    Replay,
    Snapshot,
    difference,
    empty_snapshot,
    snapshot_from_keys,
)
from siafu.graph.split import add_reverse_edges, draw_split, parse_split
from siafu.graph.vertex_parts import VertexPart, vertex_part

__all__ = [
    "MASKS",
    "Array",
    "DegreeScale",
    "Delta",
    "Deltas",
    "DynamicGraph",
    "EdgeEvents",
    "EdgeTypeName",
    "Features",
    "Folder",
    "FolderWriter",
    "Graph",
    "Ids",
    "IntegerIds",
    "Job",
    "LockedError",
    "Partial",
    "Replay",
    "Snapshot",
    "SparseFeatures",
    "TextIds",
    "VertexPart",
    "add_reverse_edges",
    "check_dynamic",
    "check_graph",
    "count_edge_types",
    "degree_features",
    "difference",
    "draw_split",
    "edge_type_dtype",
    "empty_snapshot",
    "file_facts",
    "fingerprint_dynamic",
    "fingerprint_graph",
    "folder_kind",
    "forget",
    "graph_facts",
    "graph_from_edges",
    "graph_from_folder",
    "index_dtype",
    "join_deltas",
    "load_dynamic_store",
    "load_features",
    "load_ids",
    "load_store",
    "locked",
    "make_in_steps",
    "normalised",
    "number_edge_types",
    "open_folder",
    "parse_split",
    "partial_path",
    "rows_to_sum_one",
    "save_dynamic",
    "save_store",
    "save_vertices",
    "scratch_folder",
    "smooth",
    "snapshot_from_keys",
    "sync",
    "unwritable",
    "vertex_part",
    "write_folder",
    "write_text_atomically",
    "writing",
]
