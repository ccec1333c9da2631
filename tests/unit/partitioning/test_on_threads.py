"""What threads share out of a cut comes to what one pass in order would."""

from collections.abc import Iterator

import numpy as np
import pytest

from siafu.graph import forget
from siafu.ops import threads
from siafu.partitioning import chunks
from siafu.partitioning.both_ways import _even_rows
from siafu.partitioning.coarse import _merged, _sorted_order, number_from_zero
from siafu.partitioning.split import PartRows


@pytest.fixture(params=[1, 3], autouse=True)
def shared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread, and several that share out work of any size."""
    before = threads.num_threads()
    monkeypatch.setattr(threads, "SMALL_WORK", 0)
    threads.set_threads(request.param)
    yield
    threads.set_threads(before)


@pytest.mark.parametrize("num", [0, 1, 2, 1000])
def test_clusters_are_numbered_in_order(num: int) -> None:
    cluster = np.random.default_rng(num).integers(0, max(1, num), num).astype(np.int32)
    known, number = np.unique(cluster, return_inverse=True)
    assert number_from_zero(cluster) == len(known)
    assert cluster.tolist() == number.tolist()


@pytest.mark.parametrize("lists", [1, 5])
def test_counts_of_a_key_are_added_up(lists: int) -> None:
    rng = np.random.default_rng(lists)
    found = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for _ in range(lists):
        keys = np.unique(rng.integers(0, 200, 90))
        found.append((keys, rng.integers(1, 9, len(keys))))
    keys, counts = _merged(found)
    every, at = np.unique(np.concatenate([keys for keys, _ in found]), return_inverse=True)
    assert keys.tolist() == every.tolist()
    weights = np.concatenate([counts for _, counts in found])
    assert counts.tolist() == np.bincount(at, weights).tolist()
    assert not len(_merged(found[:1])[0])


@pytest.mark.parametrize("num", [0, 1, 1000])
def test_equal_numbers_keep_their_order(num: int) -> None:
    numbers = -np.random.default_rng(0).integers(0, 7, num) / 10
    assert _sorted_order(numbers).tolist() == np.argsort(numbers, kind="stable").tolist()


def test_rows_of_parts_are_in_the_order_of_the_store() -> None:
    part_of = np.random.default_rng(0).integers(0, 4, 1000)
    part_of[part_of == 2] = 3
    rows = PartRows(part_of, 4)
    for part in range(4):
        owned = np.flatnonzero(part_of == part)
        assert rows.owned(part).tolist() == owned.tolist()
        assert rows.local[owned].tolist() == list(range(len(owned)))
    halo = np.flatnonzero(part_of == 3)[::-1]
    with rows.columns_of(0, halo) as columns:
        assert columns[rows.owned(0)].tolist() == list(range(rows.counts()[0]))
        assert (columns[halo] - rows.counts()[0]).tolist() == list(range(len(halo)))
    with rows.columns_of(1, halo[:0]) as columns:
        assert columns.tolist() == rows.local.tolist()


def test_runs_of_rows_have_about_as_many_ends() -> None:
    ends = np.random.default_rng(0).integers(0, 9, (2, 300))
    ends[0, 100] = 5000  # a row that several runs would have to share
    sides = np.concatenate([np.zeros((2, 1), np.int64), ends.cumsum(axis=1)], axis=1)
    bounds = _even_rows(*sides, 8)
    assert bounds[0] == 0
    assert bounds[-1] == 300
    assert (np.diff(bounds) > 0).all()
    assert sorted(sides.sum(axis=0)[bounds[1:]] - sides.sum(axis=0)[bounds[:-1]])[-2] < 1200
    assert _even_rows(np.zeros(1, np.int64), np.zeros(1, np.int64), 8).tolist() == [0, 0]


def test_a_large_piece_is_read_by_several_threads(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(chunks, "_BYTES_A_READ", 64)
    array = np.random.default_rng(0).random((101, 3), np.float32)
    np.save(tmp_path / "a.npy", array)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    for low, high in ((0, 101), (5, 77), (40, 40), (99, 500)):
        assert chunks.read(mapped, low, high).tobytes() == array[low:high].tobytes()
    forget(mapped)
