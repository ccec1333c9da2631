"""Frames of pandas, polars and Arrow, and networkx graphs, as table files of the cache.

From there they are read as any file is: one way for columns, however they come. The libraries are
recognised by their objects and never imported.
"""

import hashlib
import re
import tempfile
from collections.abc import Iterable
from numbers import Number
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from siafu.errors import DataError
from siafu.files import cache_folder
from siafu.graph import writing

_LIBRARIES = ("pandas", "polars", "pyarrow")


def is_frame(data: object) -> bool:
    """Return whether an object is a table in memory, or a list of such."""
    if isinstance(data, list | tuple):
        return bool(data) and all(is_frame(one) for one in data)
    return library_of(data) in _LIBRARIES and type(data).__name__ in (
        *("DataFrame", "LazyFrame", "Table", "RecordBatch"),
    )


def library_of(data: object) -> str:
    """Return the package that the class of an object, or one it is derived from, comes from."""
    roots = [kind.__module__.partition(".")[0] for kind in type(data).__mro__]
    known = (root for root in roots if root in (*_LIBRARIES, "networkx", "scipy"))
    return next(known, roots[0])


def file_of_frame(data: Any, name: str) -> Path:
    """Return a Parquet file of the cache with the rows of a frame; the same rows give the same."""
    home = cache_folder() / "frames"
    with writing(home):
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=home) as scratch:
            made = Path(scratch) / name
            pq.write_table(_as_arrow(data, name), made)
            with made.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            target = home / content[:16] / f"{name}.parquet"
            if not target.exists():
                target.parent.mkdir(exist_ok=True)
                made.rename(target)
    return target


def _as_arrow(data: Any, name: str) -> pa.Table:
    if isinstance(data, list | tuple):
        return pa.concat_tables([_as_arrow(one, name) for one in data], promote_options="default")
    library = library_of(data)
    if library == "pandas":
        # An index without a name only counts rows.
        named = any(level is not None for level in data.index.names)
        twins = sorted({str(column) for column in data.columns[data.columns.duplicated()]})
        if twins:
            raise DataError(
                "Two columns have one name.",
                seen=f"{', '.join(twins)} in the {name}",
                fix="rename one of them",
            )
        try:
            return pa.Table.from_pandas(data.reset_index() if named else data, preserve_index=False)
        except pa.ArrowException as error:
            raise _mixed(data, name, error) from error
    if library == "polars":
        return _plain_text((data.collect() if hasattr(data, "collect") else data).to_arrow())
    return pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data


def _mixed(data: Any, name: str, error: pa.ArrowException) -> DataError:
    """Return what to do about a column of pandas with several kinds of values."""
    told = "; ".join(map(str, error.args))
    column = next((one for one in data.columns if f"column {one} with" in told), "COLUMN")
    cells = data[column].dropna() if column in data.columns else []
    others = [one for one in cells if not isinstance(one, Number)]
    at = f"df[{column!r}]"
    fix = f"make it one kind: {at} = {at}.astype(str)"
    if 2 * len(others) < len(cells):
        told = f"column {column!r} has {len(cells) - len(others):,} numbers and {len(others):,} "
        told += f"that are none, such as {str(others[0])[:40]!r}"
        as_number = f'pd.to_numeric({at}, errors="coerce")'
        fix = (
            f"look at them with {at}[{as_number}.isna()], mend them, or have gaps in their place: "
            f"{at} = {as_number}"
        )
    return DataError(
        "A column can't be read as one kind of value.", seen=f"{name}: {told}", fix=fix
    )


def is_kept_frame(path: str) -> bool:
    """Return whether a file holds a frame that was given in memory."""
    return Path(path).parent.parent == cache_folder() / "frames"


def frames_named(text: str) -> str:
    """Return a text with frames in the place of the files that hold them."""
    home = re.escape(str(cache_folder() / "frames"))
    return re.sub(rf"{home}/[0-9a-f]{{16}}/(\w+)[.]parquet", r"the frame given as \1", text)


def _plain_text(table: pa.Table) -> pa.Table:
    """Return a table whose text is of the kind that files have."""
    fields = [
        field.with_type(pa.large_string()) if field.type == pa.string_view() else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))


def tables_of_networkx(graph: Any) -> tuple[pa.Table, pa.Table]:
    """Return the nodes and the edges of a networkx graph with their attributes as columns.

    An undirected graph has each edge both ways.
    """
    ids = list(graph.nodes)
    is_plain = all(isinstance(one, int) for one in ids) or all(isinstance(one, str) for one in ids)
    name_of = {one: one if is_plain else str(one) for one in ids}
    nodes = _columns({"id": name_of[one], **facts} for one, facts in graph.nodes(data=True))
    rows = [
        {"src": name_of[source], "dst": name_of[target], **facts}
        for source, target, facts in graph.edges(data=True)
    ]
    if not graph.is_directed():
        back = ({**row, "src": row["dst"], "dst": row["src"]} for row in rows)
        rows += [row for row in back if row["src"] != row["dst"]]
    return nodes, _columns(rows)


def _columns(rows: Iterable[dict[str, Any]]) -> pa.Table:
    """Return rows as a table; an attribute that a row has not is missing there."""
    listed = list(rows)
    names = dict.fromkeys(str(name) for row in listed for name in row)
    columns = {}
    for name in names:
        try:
            columns[name] = pa.array([row.get(name) for row in listed])
        except pa.ArrowException as error:
            raise DataError(
                "An attribute can't be read as one kind of value.",
                seen=f"{name}: {error}",
                fix="give it the same kind of value everywhere",
            ) from error
    return pa.table(columns)
