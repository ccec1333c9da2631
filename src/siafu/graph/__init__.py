"""What a graph, a snapshot sequence and a delta are, in memory and on disk."""

from siafu.graph.array_stream import Array, forget
from siafu.graph.classes import class_rows, count_classes
from siafu.graph.columns import (
    Column,
    Facts,
    check_columns,
    counts_of,
    read_facts,
    verify_columns,
)
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
    writing,
)
from siafu.graph.graph import (
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
from siafu.graph.manifest import first_fault
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
from siafu.graph.stored import (
    MASKS,
    Count,
    GraphFacts,
    check_nodes,
    edge_columns,
    id_columns,
    node_columns,
)
from siafu.graph.vertex_parts import VertexPart, vertex_part

__all__ = [
    "MASKS",
    "Array",
    "Column",
    "Count",
    "DegreeScale",
    "Delta",
    "Deltas",
    "DynamicGraph",
    "EdgeEvents",
    "EdgeTypeName",
    "Facts",
    "Features",
    "Folder",
    "FolderWriter",
    "Graph",
    "GraphFacts",
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
    "check_columns",
    "check_dynamic",
    "check_graph",
    "check_nodes",
    "class_rows",
    "count_classes",
    "count_edge_types",
    "counts_of",
    "degree_features",
    "difference",
    "draw_split",
    "edge_columns",
    "edge_type_dtype",
    "empty_snapshot",
    "file_facts",
    "fingerprint_dynamic",
    "fingerprint_graph",
    "first_fault",
    "folder_kind",
    "forget",
    "graph_facts",
    "graph_from_edges",
    "graph_from_folder",
    "id_columns",
    "index_dtype",
    "join_deltas",
    "load_dynamic_store",
    "load_features",
    "load_ids",
    "load_store",
    "locked",
    "make_in_steps",
    "node_columns",
    "normalised",
    "number_edge_types",
    "open_folder",
    "parse_split",
    "partial_path",
    "read_facts",
    "rows_to_sum_one",
    "save_dynamic",
    "save_store",
    "save_vertices",
    "scratch_folder",
    "smooth",
    "snapshot_from_keys",
    "sync",
    "unwritable",
    "verify_columns",
    "vertex_part",
    "write_folder",
    "writing",
]
