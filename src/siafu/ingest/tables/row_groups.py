"""The row groups of Parquet files, which are decoded one without the other."""

from collections.abc import Sequence

import pyarrow.parquet as pa_parquet

Place = tuple[int, int]
"""A row of a table: the number of its file, and which row of that."""


def even_starts(rows_of_files: Sequence[Sequence[int]], count: int) -> list[Place]:
    """Return where up to so many spans of about as many rows start, given those of row groups."""
    starts, before = list[Place](), 0
    total = sum(sum(rows) for rows in rows_of_files)
    for number, groups in enumerate(rows_of_files):
        begins = 0
        for rows in groups:
            if before * count >= len(starts) * total:
                starts.append((number, begins))
            begins, before = begins + rows, before + rows
    return starts


def largest_group(metadata: pa_parquet.FileMetaData, columns: Sequence[str]) -> int:
    """Return about how many bytes the largest row group takes, decoded."""
    largest, wanted = 1, set(columns)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = (group.column(place) for place in range(group.num_columns))
        size = sum(
            max(one.total_uncompressed_size, 8 * one.num_values)
            for one in chunks
            if one.path_in_schema.split(".")[0] in wanted
        )
        largest = max(largest, size)
    return largest
