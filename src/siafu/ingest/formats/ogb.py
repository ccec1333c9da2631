"""Node-property data sets of the Open Graph Benchmark, as their zip archives hold them.

raw/ has edge, node-feat, node-label and num-node-list as packed CSV without a header; split/NAME/
has the rows of train, valid and test.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from siafu.errors import DataError
from siafu.graph import MASKS, Array, FolderWriter, IntegerIds, make_in_steps
from siafu.ingest.tables.columns import number_block
from siafu.ingest.tables.edges import EdgeTable
from siafu.ingest.tables.files import Table
from siafu.ingest.tables.options import TableOptions
from siafu.ingest.tables.store_builder import (
    Drawing,
    StoreBuilder,
    WrittenNodes,
    drawing_job,
    table_job,
)
from siafu.record import Progress, silent

_ROWS_AT_ONCE = 1 << 15
_FILE_OF_MASK = {"train": "train", "val": "valid", "test": "test"}


def find_ogb(folder: Path) -> Path | None:
    """Return the folder that has raw/edge.csv.gz: this one or one right inside it."""
    inside = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    places = [folder, *inside]
    return next((place for place in places if (place / "raw" / "edge.csv.gz").exists()), None)


def build_ogb_store(
    folder: Path,
    target: Path | str,
    *,
    name: str,
    options: TableOptions,
    drawing: Drawing | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> list[str]:
    """Write the data set as a store, whole or not at all; return notes for the user."""
    report, raw = progress or silent, folder / "raw"
    src, dst = options.src or "src", options.dst or "dst"
    options = replace(options, src=src, dst=dst)
    edges = EdgeTable(
        Table("edge table", (raw / "edge.csv.gz",), header=(src, dst)),
        options,
        report,
        "integer",
    )
    job = table_job([folder], options) | drawing_job(drawing)
    with make_in_steps(target, "store", job=job, overwrite=overwrite) as partial:
        builder = StoreBuilder(partial, name, drawing)
        builder.take_nodes(lambda writer: _write_nodes(writer, folder, report))
        builder.take_edges(edges)
        return builder.finish()


def _write_nodes(writer: FolderWriter, folder: Path, progress: Progress) -> WrittenNodes:
    raw, width, class_names = folder / "raw", 0, list[int | str]()
    num_nodes = int(_numbers(raw / "num-node-list.csv.gz")[0, 0])
    IntegerIds(np.arange(num_nodes)).save(writer)
    if (raw / "node-feat.csv.gz").exists():
        width = _write_features(writer, raw / "node-feat.csv.gz", num_nodes, progress)
    if (raw / "node-label.csv.gz").exists():
        class_names = _write_labels(writer, raw / "node-label.csv.gz")
    masks = _masks(folder / "split", num_nodes)
    return WrittenNodes(masks=masks, class_names=class_names, width=width)


def _numbers(file: Path) -> Array:
    """Return all numbers of a file without a header, NaN where one is missing."""
    try:
        table = pa_csv.read_csv(file, pa_csv.ReadOptions(autogenerate_column_names=True))
        columns = [column.cast(pa.float64()).to_numpy() for column in table.columns]
        return np.stack(columns, axis=1)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            "A file of the data set can't be read.",
            seen=f"{file}: {error}",
            fix="download the data set again",
        ) from error


def _write_features(writer: FolderWriter, file: Path, num_nodes: int, progress: Progress) -> int:
    width = len(Table("features", (file,)).names_as_read())
    names = tuple(f"f{i}" for i in range(width))
    table = Table("features", (file,), header=names, types=dict.fromkeys(names, pa.float32()))
    stream = writer.stream("x", (num_nodes, width), np.float32)
    for piece in table.pieces(names, rows=_ROWS_AT_ONCE):
        stream.append(number_block(piece, names))
        progress("writing nodes", stream.written_rows, num_nodes)
    _check_rows(file, stream.written_rows, num_nodes)
    writer.close("x")
    return width


def _check_rows(file: Path, rows: int, num_nodes: int) -> None:
    if rows != num_nodes:
        raise DataError(
            "A file of the data set has another number of rows than there are nodes.",
            seen=f"{file}: {rows} rows, {num_nodes} nodes",
            fix="download the data set again",
        )


def _write_labels(writer: FolderWriter, file: Path) -> list[int | str]:
    labels = _numbers(file)
    several = labels.shape[1] > 1
    kept = np.where(np.isnan(labels), 0 if several else -1, labels)
    y = kept.astype(np.uint8) if several else kept[:, 0].astype(np.int64)
    writer.save("y", y)
    num_classes = y.shape[1] if several else int(y.max(initial=-1)) + 1
    return list(range(num_classes))


def _masks(folder: Path, num_nodes: int) -> dict[str, Array]:
    """Return the masks of the first split that is complete; empty where there is none."""
    for split in sorted(folder.iterdir()) if folder.is_dir() else []:
        files = {name: split / f"{_FILE_OF_MASK[name]}.csv.gz" for name in MASKS}
        if all(file.exists() for file in files.values()):
            masks = {name: np.zeros(num_nodes, dtype=bool) for name in MASKS}
            for name, file in files.items():
                masks[name][_numbers(file)[:, 0].astype(np.int64)] = True
            return masks
    return {}
