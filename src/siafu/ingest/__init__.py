"""Turning foreign files and objects into a store, once; the built-in data sets.

Where a new thing has its seat, and where else it is named:

- a file or object that holds a graph: `formats/NAME.py` with a `graph_from_NAME`; `_open_path` (a
  file) or `_open` (an object) of `load.py`;
- a file or object that holds events: `events/NAME.py` with an `events_from_NAME`; `events/load.py`;
- an ending of tables: `TABLE_ENDINGS` and its reader in `tables/files.py`;
- a type of column: `tables/columns.py` (numbers), `tables/classes.py` (labels, types of edges) or
  `tables/ids.py`;
- a public data set: a row of `NAMED` in `datasets/named.py`;
- a data set made from a seed: `datasets/builtin.py`, a function with its rows of `BUILTINS` and
  `_NODE_BYTES`.

`load` and `events/load.py` find the reader of any source; `cache` lists and empties what they keep;
`arrays` has the checks that all readers share.
"""

from siafu.files import cache_folder
from siafu.ingest.arrays import with_split
from siafu.ingest.cache import CUTS, Kept, empty_cache, list_cache, processes_using
from siafu.ingest.datasets.builtin import BUILTINS, load_builtin, planted, powerlaw, relations
from siafu.ingest.datasets.drifting import drifting
from siafu.ingest.datasets.named import NAMED, load_named
from siafu.ingest.events.events import EventOptions, Events
from siafu.ingest.events.graph import graph_from_events
from siafu.ingest.events.load import is_dynamic, load_dynamic
from siafu.ingest.events.npz import events_from_npz
from siafu.ingest.events.tables import looks_like_events
from siafu.ingest.events.times import WindowLength
from siafu.ingest.formats.npz import graph_from_npz
from siafu.ingest.formats.pyg_hetero import graph_from_pyg
from siafu.ingest.frames import frames_named, is_kept_frame
from siafu.ingest.load import (
    as_tables,
    count_nodes,
    has_cached_store,
    ingest_helps,
    ingest_to_store,
    load,
    load_as_it_is,
    load_with_notes,
    told_of_tables,
)
from siafu.ingest.objects import Given, given_data
from siafu.ingest.tables.budget import fit_tables, least_ingest_bytes, predict_ingest_bytes
from siafu.ingest.tables.build import (
    Tables,
    build_store,
    find_tables,
)
from siafu.ingest.tables.options import TableOptions
from siafu.ingest.tables.store_builder import Drawing
from siafu.ingest.tables.told import (
    told_where_edges_are_read,
    told_where_own_model_may,
    told_where_they_can_not_be,
)
from siafu.record import Progress

__all__ = [
    "BUILTINS",
    "CUTS",
    "NAMED",
    "Drawing",
    "EventOptions",
    "Events",
    "Given",
    "Kept",
    "Progress",
    "TableOptions",
    "Tables",
    "WindowLength",
    "as_tables",
    "build_store",
    "cache_folder",
    "count_nodes",
    "drifting",
    "empty_cache",
    "events_from_npz",
    "find_tables",
    "fit_tables",
    "frames_named",
    "given_data",
    "graph_from_events",
    "graph_from_npz",
    "graph_from_pyg",
    "has_cached_store",
    "ingest_helps",
    "ingest_to_store",
    "is_dynamic",
    "is_kept_frame",
    "least_ingest_bytes",
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
    "told_of_tables",
    "told_where_edges_are_read",
    "told_where_own_model_may",
    "told_where_they_can_not_be",
    "with_split",
]
