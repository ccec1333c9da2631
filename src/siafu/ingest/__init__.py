"""Turning foreign files and objects into a store, once; the built-in data sets."""

from siafu.ingest.builtin import BUILTINS, load_builtin, planted, powerlaw, relations
from siafu.ingest.cache import Kept, empty_cache, list_cache, processes_using
from siafu.ingest.drifting import drifting
from siafu.ingest.dynamic_load import is_dynamic, load_dynamic
from siafu.ingest.event_graph import graph_from_events
from siafu.ingest.event_npz import events_from_npz
from siafu.ingest.event_tables import looks_like_events
from siafu.ingest.events import EventOptions, Events
from siafu.ingest.load import (
    as_tables,
    has_cached_store,
    ingest_to_store,
    load,
    load_as_it_is,
    load_with_notes,
)
from siafu.ingest.masks import with_split
from siafu.ingest.memory import count_vertices, fit_buckets, predict_ingest_bytes
from siafu.ingest.named import NAMED, cache_folder, load_named
from siafu.ingest.npz import graph_from_npz
from siafu.ingest.pyg_hetero import graph_from_pyg
from siafu.ingest.store_builder import Drawing
from siafu.ingest.table_options import TableOptions
from siafu.ingest.tables import Tables, build_store, find_tables
from siafu.ingest.windows import Span
from siafu.record import Progress

__all__ = [
    "BUILTINS",
    "NAMED",
    "Drawing",
    "EventOptions",
    "Events",
    "Kept",
    "Progress",
    "Span",
    "TableOptions",
    "Tables",
    "as_tables",
    "build_store",
    "cache_folder",
    "count_vertices",
    "drifting",
    "empty_cache",
    "events_from_npz",
    "find_tables",
    "fit_buckets",
    "graph_from_events",
    "graph_from_npz",
    "graph_from_pyg",
    "has_cached_store",
    "ingest_to_store",
    "is_dynamic",
    "list_cache",
    "load",
    "load_as_it_is",
    "load_builtin",
    "load_dynamic",
    "load_named",
    "load_with_notes",
    "looks_like_events",
    "planted",
    "powerlaw",
    "predict_ingest_bytes",
    "processes_using",
    "relations",
    "with_split",
]
