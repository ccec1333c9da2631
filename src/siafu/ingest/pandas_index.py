"""Columns that hold the index of a pandas table, which nobody meant as a feature."""

import json
import re
from collections.abc import Sequence

import pyarrow as pa

_UNNAMED = re.compile(r"(__index_level_\d+__|Unnamed: \d+)?")
"""What pandas calls an index without a name: in Parquet, in CSV (nothing), and read from that."""


def index_columns(schema: pa.Schema, names: Sequence[str]) -> tuple[str, ...]:
    """Return which of the columns are an index, by the notes pandas leaves or by their names."""
    noted = _noted(schema)
    return tuple(name for name in names if name in noted or _UNNAMED.fullmatch(name))


def _noted(schema: pa.Schema) -> set[str]:
    try:
        notes = json.loads((schema.metadata or {})[b"pandas"])
        # A range is noted as a dict, and is no column.
        return {name for name in notes["index_columns"] if isinstance(name, str)}
    except (KeyError, TypeError, ValueError, RecursionError):
        return set()
