"""Which tables a folder has, and which of their columns are ids, by names people use for them."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from siafu.errors import DataError
from siafu.ingest.tables.columns import index_columns, is_text
from siafu.ingest.tables.files import Table
from siafu.ingest.tables.ids import whole_floats
from siafu.ingest.tables.kinds import Sample, is_id_name
from siafu.ingest.tables.options import TableOptions

SPELLINGS = {
    "src": ("src", "source", "from", "u", "sender", "rater", "i"),
    "dst": ("dst", "target", "to", "v", "destination", "receiver", "ratee", "j"),
}
"""What people call the two ends of an edge; an `_id` may follow."""
_MOSTLY = 0.5
NODE_IDS = ("id", "node", "node_id", "nodeid", "vertex")


def spelled(names: Sequence[str], spellings: Sequence[str]) -> str | None:
    """Return the column that has one of these names, in letters of any size."""
    found = {re.sub(r"[\s_-]?id$", "", name.strip().lower()) or "id": name for name in names}
    found |= {name.strip().lower(): name for name in names}
    return next((found[word] for word in spellings if word in found), None)


def find_ends(
    table: Table, options: TableOptions, nodes: Table | None = None
) -> tuple[TableOptions, list[str]]:
    """Return the options with the columns of the two ends of an edge, and a note where found.

    Without usual names they are the two columns whose values are ids of the node table.
    """
    names = table.schema().names
    asked = [name for name in (options.src, options.dst) if name is not None]
    free = [name for name in names if name not in asked]
    src = options.src or spelled(free, SPELLINGS["src"])
    dst = options.dst or spelled(free, SPELLINGS["dst"])
    if src is None and dst is None and nodes is not None:
        as_numbers = options.id_type == "integer"
        src, dst = ends_by_values(table, nodes, as_numbers=as_numbers) or (None, None)
    if src is None and dst is None and len(names) == 2:
        src, dst = names
    src, dst = src or "src", dst or "dst"
    found = replace(options, src=src, dst=dst)
    if asked or (src, dst) == ("src", "dst") or not {src, dst} <= set(names):
        return found, []
    return found, [f"Edges go from column {src} to column {dst}."]


def ends_by_values(
    table: Table, nodes: Table, *, as_numbers: bool = False
) -> tuple[str, str] | None:
    """Return the first two columns of ids of the node table; None where there are fewer.

    As numbers, 007 is 7.
    """
    found = _named_by_values(table, nodes, as_numbers=as_numbers)
    return None if found is None else (found[1], found[2])


def _named_by_values(table: Table, nodes: Table, *, as_numbers: bool) -> list[str] | None:
    """Return a column of ids of the node table, and two of the edge table that name these."""
    theirs, ours = (_as_text(one, _can_be_ids(one)) for one in (nodes, table))
    for name in theirs.columns:
        if not _all_differ(theirs, name):
            continue
        ids = set(_texts(theirs, name, as_numbers))
        shares = {
            column: sum(text in ids for text in texts) / len(texts)
            for column in ours.columns
            if (texts := _texts(ours, column, as_numbers))
        }
        ends = [column for column, share in shares.items() if share >= _MOSTLY]
        if len(ends) >= 2:
            return [name, *ends[:2]]
    return None


def lost_zeros(table: Table, nodes: Table) -> DataError | None:
    """Return what to say where ids of the two tables, unlike as written, are alike as numbers."""
    found = _named_by_values(table, nodes, as_numbers=True)
    if found is None:
        return None
    theirs, ours = _as_text(nodes, found[:1]), _as_text(table, found[1:])
    written = {plain_number(text): text for text in _texts(theirs, found[0])}
    column, text, other = next(
        (column, text, written[plain_number(text)])
        for column in found[1:]
        for text in _texts(ours, column)
        if written.get(plain_number(text), text) != text
    )
    shorter = (nodes, table)[len(other) > len(text)]
    return DataError(
        f"The ids of the {shorter.what} seem to have lost their leading zeros.",
        seen=f"{other!r} in column {found[0]!r} of {nodes.files[0]}, {text!r} in column "
        f"{column!r} of {table.files[0]}",
        fix="make that table again with its ids as text (pandas: dtype=str), or take ids as whole "
        "numbers: --id-type integer",
    )


def plain_number(text: str) -> str:
    """Return an id without zeros before it; what is no number as it is."""
    digits = re.fullmatch(r"0*(\d+)", text.strip(), re.ASCII)
    return digits[1] if digits else text


def _can_be_ids(table: Table) -> list[str]:
    schema = table.schema()
    index = index_columns(schema, schema.names)
    # A gap makes whole numbers of pandas floats.
    kinds = (pa.types.is_integer, pa.types.is_floating, is_text)
    return [
        field.name
        for field in schema
        if any(is_kind(field.type) for is_kind in kinds) and field.name not in index
    ]


def find_node_id(
    table: Table, options: TableOptions, edges: Table
) -> tuple[TableOptions, list[str]]:
    """Return the options with the id column of the node table, and a note where it was found.

    Without a usual name it is the column of different values most of which edges name too.
    """
    names = table.schema().names
    if options.node_id is not None:
        return options, []
    known = next((name for name in ("id", *NODE_IDS) if name in names), None)
    if known is None:
        known = spelled([name for name in names if not _is_taken(name, options)], NODE_IDS[1:])
    if known is not None:
        return replace(options, node_id=known), _told(known)
    found = _by_values(table, options, edges)
    return replace(options, node_id=found or "id"), _told(found or "id")


def _told(name: str) -> list[str]:
    return [] if name == "id" else [f"Ids of nodes are in column {name}."]


def _is_taken(name: str, options: TableOptions) -> bool:
    labels = (options.label,) if isinstance(options.label, str) else options.label or ()
    return name in labels or name == options.split or name in (options.features or ())


def _by_values(table: Table, options: TableOptions, edges: Table) -> str | None:
    can_be = [name for name in _can_be_ids(table) if not _is_taken(name, options)]
    sample = _as_text(table, can_be)
    different = [name for name in can_be if name in sample.columns and _all_differ(sample, name)]
    ends = [name for name in edges.schema().names if name in (options.src, options.dst)]
    named = _as_text(edges, ends)
    as_numbers = options.id_type == "integer"
    seen = {text for name in named.columns for text in _texts(named, name, as_numbers)}
    shares = {name: len(seen.intersection(_texts(sample, name, as_numbers))) for name in different}
    best = max(shares.values(), default=0)
    if best:
        return next(name for name, share in shares.items() if share == best)
    return next((name for name in different if is_id_name(name)), next(iter(different), None))


def _as_text(table: Table, names: list[str]) -> Sample:
    """Return the first rows with ids as they are written, leading zeros and all."""
    return Sample(table.with_text(names), names)


def _all_differ(sample: Sample, name: str) -> bool:
    """Return whether hardly any value is there twice: a few rows may be."""
    texts = _texts(sample, name)
    return len(set(texts)) >= 0.9 * len(sample.columns[name]) > 0


def _texts(sample: Sample, name: str, as_numbers: bool = False) -> list[str]:
    column = sample.columns[name].drop_null()
    try:
        column = whole_floats(column) if pa.types.is_floating(column.type) else column
        values = column.cast(pa.large_string()).to_pylist()
    except pa.ArrowException:  # lists, bytes and fractions are no ids, told when they are read
        return []
    texts = [re.sub(r"(?<=\d)[.]0+$", "", text) for text in values if text.strip()]
    return [plain_number(text) for text in texts] if as_numbers else texts
