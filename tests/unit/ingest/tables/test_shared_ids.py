"""Ids looked up by several ranks in files that the first one makes: the store of one process."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siafu.errors import CommError, DataError
from siafu.graph import Crew, FolderWriter, Help, IntegerIds, TextIds, Told, open_folder
from siafu.ingest import TableOptions, build_store, find_tables
from siafu.ingest.tables import id_kernels
from siafu.ingest.tables.build import table_helps
from siafu.ingest.tables.ids import index_ids, map_rows, save_made

NODES, EDGES = 700, 20_000
KINDS = ("range", "close", "scattered", "text")


class Ranks(Crew):
    """Ranks that do items in turn, the others than the first as helping ranks do them."""

    def __init__(self, size: int, source: Path, *, ends_after: int | None = None) -> None:
        self.size, self.looked_up = size, list[str]()
        self._helps = [table_helps(source, TableOptions()) for _ in range(1, size)]
        self._left = ends_after

    def share(
        self, task: str, work: Help, told: Told, items: Sequence[Any], *, at_once: int = 1
    ) -> Iterator[Any]:
        """Yield what comes of each item."""
        del at_once
        told = json.loads(json.dumps(told))
        made = sorted(path.name for path in (Path(told["scratch"]) / "lookup").glob("*"))
        self.looked_up += [f"{task}: {' '.join(made)}"]
        for number, item in enumerate(items):
            if self._left == 0:
                raise CommError("A rank ended.", seen="nothing", fix="again")
            does = ([work] + [helps[task] for helps in self._helps])[number % self.size]
            yield json.loads(json.dumps(does(told, item)))
            self._left = None if self._left is None else self._left - 1


def ids_of(kind: str) -> np.ndarray[Any, Any]:
    draw = np.random.default_rng(3)
    if kind == "range":
        return np.arange(NODES) - 20
    if kind == "close":
        return draw.permutation(NODES) * 3
    apart = draw.integers(-(2**62), 2**62, NODES)
    return apart if kind == "scattered" else np.array([f"node {one}" for one in apart])


@pytest.fixture(params=KINDS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Tables whose edges name a few nodes that there are not."""
    return tables(tmp_path / "tables", ids_of(request.param))


def tables(
    folder: Path, ids: np.ndarray[Any, Any], again: Sequence[int] = (), told: float = 0.0
) -> Path:
    """Write tables whose nodes have some rows again, of which the second has another number."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    rows = np.append(np.arange(NODES), again).astype(int)
    number = rows / 7 + told * (np.arange(len(rows)) >= NODES)
    pq.write_table(pa.table({"id": ids[rows], "a": number}), folder / "nodes.parquet")
    src, dst = ids[draw.integers(0, len(ids), (2, EDGES))]
    stranger = 10**15 if ids.dtype.kind == "i" else "nobody"
    src[[5, EDGES - 5]] = stranger
    edges = pa.table({"src": src, "dst": dst, "cost": draw.random(EDGES)})
    pq.write_table(edges, folder / "edges.parquet", row_group_size=EDGES // 10)
    return folder


def built(source: Path, target: Path, crew: Crew | None = None) -> tuple[str, list[str]]:
    """Return the fingerprint of the store and what was told."""
    notes = build_store(find_tables(source, TableOptions()), target, crew=crew or Crew())
    return open_folder(target, "store").fingerprint, notes


def test_any_ids_become_the_store_of_one_process(source: Path, tmp_path: Path) -> None:
    alone = built(source, tmp_path / "alone")
    for size in (2, 3, 4):
        crew = Ranks(size, source)
        assert built(source, tmp_path / f"by{size}", crew) == alone
        assert crew.looked_up[0].startswith("read a span: ")
        assert crew.looked_up[0].endswith(".npy")
        assert crew.looked_up[1] == "sort a bucket: ", "files of ids stay no longer than need be"


@pytest.mark.parametrize("ranks", [1, 2])
def test_reading_that_was_stopped_goes_on(source: Path, tmp_path: Path, ranks: int) -> None:
    with pytest.raises(CommError):
        built(source, tmp_path / "store", Ranks(3, source, ends_after=2))
    lookup = tmp_path / "store.partial" / "scratch" / "lookup"
    assert any(lookup.iterdir())
    (lookup / "slots.npy").write_bytes(b"of a process that was killed")
    crew = Ranks(ranks, source) if ranks > 1 else None
    made, notes = built(source, tmp_path / "store", crew)
    assert "Went on from earlier work: nodes." in notes
    assert made == built(source, tmp_path / "alone")[0]
    assert not (tmp_path / "store.partial").exists()


@pytest.mark.parametrize("told", [0.0, 1.0])
def test_repeated_ids_are_told_as_by_one_process(tmp_path: Path, told: float) -> None:
    source = tables(tmp_path / "tables", ids_of("scattered"), again=[9, 9], told=told)
    said = list[Any]()
    for crew in (None, Ranks(3, source)):
        target = tmp_path / f"store{len(said)}"
        try:
            said.append(built(source, target, crew))
        except DataError as error:
            said.append(str(error))
            assert not list(tmp_path.glob("store*"))
    assert said[0] == said[1]
    assert "same id" in said[0] if told else "2 rows" in str(said[0])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_in_files_are_those_in_memory_by_the_same_kernels(tmp_path: Path, kind: str) -> None:
    column = pa.array(ids_of(kind))
    ids = TextIds.from_arrow(column) if kind == "text" else IntegerIds(column.to_numpy())
    held = index_ids(ids)
    column = column.cast(pa.large_string() if kind == "text" else pa.int64()).take(
        pa.array(np.arange(NODES)[::-1])
    )
    np.testing.assert_array_equal(held.find(column), np.arange(NODES)[::-1])
    before = _compiled()
    (tmp_path / "new").mkdir()
    writer = FolderWriter(tmp_path / "new", "store")
    ids.save(writer)
    save_made(held, tmp_path / "lookup")
    mapped = map_rows(writer, tmp_path / "lookup")
    assert type(mapped) is type(held)
    np.testing.assert_array_equal(mapped.find(column), np.arange(NODES)[::-1])
    assert _compiled() == before


def _compiled() -> list[int]:
    kernels = (id_kernels.find_integers, id_kernels.find_text, id_kernels.hash_text)
    return [len(getattr(kernel, "signatures", ())) for kernel in kernels]
