"""Every assignment on small awkward graphs: loops, repeats, isolated nodes, a hub."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from siafu.errors import PartitionError
from siafu.graph import graph_from_edges, load_store, save_store
from siafu.ops import threads
from siafu.partitioning import (
    assign_contiguous,
    assign_hash,
    assign_metis,
    assign_streaming,
    chunks,
    coarse,
    metis,
    metis_child,
    score,
)
from siafu.partitioning.both_ways import BothWays
from siafu.partitioning.metis import symmetric_adjacency
from siafu.partitioning.propagation import move_rows

ASSIGNMENTS = {
    "metis": assign_metis,
    "streaming": assign_streaming,
    "contiguous": assign_contiguous,
    "hash": assign_hash,
}


def _awkward():
    """Return 41 nodes: a hub joined to all, a loop, a repeated edge, ten isolated nodes."""
    n = 41
    spokes = np.arange(1, 31)
    source = np.concatenate([np.zeros(30, int), spokes, [5, 7, 7, 7]])
    destination = np.concatenate([spokes, np.zeros(30, int), [5, 8, 8, 8]])
    return graph_from_edges(source, destination, n, train=np.arange(n) % 3 == 0)


def _rings(num_rings: int = 4, size: int = 50, seed: int = 0):
    """Return rings with no edge between them, their rows shuffled."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(num_rings * size)
    here = np.arange(num_rings * size)
    following = here // size * size + (here + 1) % size
    source = np.concatenate([order[here], order[following]])
    destination = np.concatenate([order[following], order[here]])
    return graph_from_edges(source, destination, num_rings * size, train=rng.random(200) < 0.5)


@pytest.mark.parametrize("name", ASSIGNMENTS)
@pytest.mark.parametrize("num_parts", [1, 2, 3, 7])
def test_each_node_gets_one_part_in_range(name, num_parts):
    graph = _awkward()
    part_of = ASSIGNMENTS[name](graph, num_parts)
    assert part_of.dtype == np.int32
    assert part_of.shape == (graph.num_nodes,)
    assert part_of.min() >= 0
    assert part_of.max() < num_parts


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_a_graph_without_edges_is_cut(name):
    graph = graph_from_edges(np.empty(0, int), np.empty(0, int), 9)
    part_of = ASSIGNMENTS[name](graph, 3)
    if name != "hash":
        assert np.bincount(part_of, minlength=3).tolist() == [3, 3, 3]


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_the_same_input_gives_the_same_parts_mapped_or_not(name, tmp_path):
    graph = _awkward()
    save_store(graph, tmp_path / "store")
    mapped = load_store(tmp_path / "store")
    np.testing.assert_array_equal(ASSIGNMENTS[name](mapped, 3), ASSIGNMENTS[name](graph, 3))


@pytest.mark.parametrize("name", ASSIGNMENTS)
@pytest.mark.parametrize("num_parts", [0, 42])
def test_more_parts_than_nodes_or_none_are_refused(name, num_parts):
    with pytest.raises(PartitionError, match=f"{num_parts} parts, 41 nodes"):
        ASSIGNMENTS[name](_awkward(), num_parts)


def test_metis_finds_the_rings_and_balances_all_three():
    quality = score(graph := _rings(), assign_metis(graph, 4), 4)
    assert quality.cut_fraction < 0.05
    assert max(quality.node_balance, quality.edge_balance, quality.training_balance) < 1.15


def _directed(n: int = 3000):
    """Return groups of 50 nodes in mixed order; edges lead to the first ten of a group alone."""
    rng = np.random.default_rng(1)
    order = rng.permutation(n)
    one = rng.integers(0, n, 8 * n)
    other = np.where(rng.random(8 * n) < 0.9, one // 50 * 50 + rng.integers(0, 10, 8 * n), 7)
    return graph_from_edges(order[one], order[other], n, train=rng.random(n) < 0.3)


def test_streaming_comes_near_metis_within_its_slack():
    for graph in (_rings(), _directed()):
        by_hash = score(graph, assign_hash(graph, 4), 4)
        by_metis = score(graph, assign_metis(graph, 4), 4)
        streamed = score(graph, assign_streaming(graph, 4), 4)
        assert streamed.cut_edges < 0.3 * by_hash.cut_edges
        assert streamed.cut_edges < 1.5 * by_metis.cut_edges + 20
        assert max(streamed.node_balance, streamed.edge_balance) <= 1.06
        assert streamed.training_balance <= 1.06


@pytest.mark.parametrize("has_metis", [True, False])
def test_streaming_gives_the_same_parts_on_any_threads(monkeypatch, has_metis):
    monkeypatch.setattr(coarse, "has_metis", lambda: has_metis)
    monkeypatch.setattr(chunks, "EDGES_AT_ONCE", 1000)  # so that out-edges are sorted in files
    graph, before = _directed(), threads.num_threads()
    found = []
    for count in (1, 2, 5):
        try:
            threads.set_threads(count)
            found.append(assign_streaming(graph, 3))
        finally:
            threads.set_threads(before)
    for part_of in found[1:]:
        np.testing.assert_array_equal(part_of, found[0])


def test_neighbours_are_seen_both_ways(monkeypatch, tmp_path):
    graph = _directed(400)
    offsets, neighbours = symmetric_adjacency(graph)
    for most in (1 << 22, 100):  # in memory, and sorted in files
        monkeypatch.setattr(chunks, "EDGES_AT_ONCE", most)
        rows = BothWays(graph, tmp_path, None)
        row, ends = 0, 0
        for piece in rows.pieces():
            assert piece.low == row
            for row in range(piece.low, piece.high):
                at = row - piece.low
                seen = {
                    int(v) for bounds, of in piece.sides for v in of[bounds[at] : bounds[at + 1]]
                }
                want = set(neighbours[offsets[row] : offsets[row + 1]].tolist())
                # Of a row larger than a piece some neighbours are seen.
                assert seen - {row} == want if piece.ends[at] < 100 else seen - {row} <= want
            ends, row = ends + int(piece.ends.sum()), piece.high
        assert (row, ends) == (400, 2 * graph.num_edges)


def test_streaming_keeps_a_good_row_order():
    here = np.arange(2000)
    source = np.concatenate([here + step for step in range(1, 9)]) % 2000
    graph = graph_from_edges(source, np.tile(here, 8), 2000)
    by_range = score(graph, assign_contiguous(graph, 4), 4)
    assert score(graph, assign_streaming(graph, 4), 4).cut_edges <= by_range.cut_edges


def test_contiguous_parts_are_ranges_with_even_edges():
    graph = _rings()
    part_of = assign_contiguous(graph, 3)
    assert (np.diff(part_of) >= 0).all()
    assert score(graph, part_of, 3).edge_balance < 1.03


def test_a_hash_depends_on_the_seed_and_may_leave_parts_empty():
    graph = _awkward()
    assert (assign_hash(graph, 4, seed=1) != assign_hash(graph, 4, seed=2)).any()
    tiny = graph_from_edges(np.array([0]), np.array([1]), 3)
    counts = [np.bincount(assign_hash(tiny, 3, seed=s), minlength=3) for s in range(9)]
    assert any((count == 0).any() for count in counts)


def test_adjacency_has_each_edge_both_ways_once():
    offsets, neighbours = symmetric_adjacency(_awkward())
    rows = np.repeat(np.arange(41), np.diff(offsets))
    pairs = list(zip(rows.tolist(), neighbours.tolist(), strict=True))
    star = {(0, v) for v in range(1, 31)} | {(7, 8)}
    assert sorted(pairs) == sorted(star | {(b, a) for a, b in star})


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGKILL"])
def test_a_metis_that_dies_of_a_signal_is_named(monkeypatch, name):
    code = f"import os, signal; os.kill(os.getpid(), signal.{name})"
    monkeypatch.setattr(metis, "_child_command", lambda *_: [sys.executable, "-S", "-c", code])
    with pytest.raises(PartitionError, match=name) as caught:
        assign_metis(_awkward(), 2)
    assert "--method streaming" in caught.value.fix
    assert ("out of memory" in caught.value.fix) == (name == "SIGKILL")
    assert signal.Signals[name].name in caught.value.seen


def test_a_metis_that_fails_is_quoted(monkeypatch):
    command = [sys.executable, "-S", "-c", "raise SystemExit('Input Error: bad weights')"]
    monkeypatch.setattr(metis, "_child_command", lambda *_: command)
    with pytest.raises(PartitionError, match="code 1; Input Error: bad weights"):
        assign_metis(_awkward(), 2)


def test_metis_through_the_wrapper_balances_the_sum(tmp_path, monkeypatch):
    graph = _rings()
    metis._write_inputs(graph, tmp_path)
    arrays = [np.load(tmp_path / f"{name}.npy") for name in ("offsets", "neighbours", "weights")]
    part_of = metis_child._one_constraint(4, 0, *arrays)
    quality = score(graph, part_of, 4)
    assert quality.cut_fraction < 0.05
    assert quality.node_balance < 1.15


def test_the_child_loads_neither_siafu_nor_numba():
    text = f"import runpy, sys; runpy.run_path({str(metis._CHILD)!r}); print(sorted(sys.modules))"
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert "'pymetis'" in found.stdout
    assert "'siafu" not in found.stdout
    assert "'numba" not in found.stdout


WITHOUT_PYMETIS = """
import sys
sys.modules["pymetis"] = None
import siafu
from siafu.errors import PartitionError
from siafu.partitioning import partition_graph
try:
    partition_graph(siafu.load("planted:60"), sys.argv[1], num_parts=2, method="metis")
except PartitionError as error:
    assert "pip install pymetis" in error.fix, error
else:
    raise AssertionError("METIS without pymetis")
partition_graph(siafu.load("planted:60"), sys.argv[1], num_parts=2, method="streaming")
"""


def test_only_metis_needs_pymetis(tmp_path):
    target = str(tmp_path / "parts")
    subprocess.run([sys.executable, "-W", "error", "-c", WITHOUT_PYMETIS, target], check=True)


STARTS_METIS = """
import subprocess, sys
code = '''import os, sys, time
sys.path.insert(0, sys.argv[1])
import metis_child
metis_child._end_with(int(sys.argv[2]))
print(os.getpid(), flush=True)
time.sleep(600)'''
import os
subprocess.run([sys.executable, "-c", code, sys.argv[1], str(os.getpid())])
"""


def test_metis_ends_with_the_process_that_started_it() -> None:
    command = [sys.executable, "-c", STARTS_METIS, str(Path(metis_child.__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        child = psutil.Process(int(launcher.stdout.readline()))
        launcher.kill()
    with suppress(psutil.NoSuchProcess):  # a zombie is one that ended
        deadline = time.monotonic() + 30.0
        while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_metis_whose_launcher_is_gone_does_not_begin(tmp_path: Path) -> None:
    not_its_parent = str(os.getpid() + 1)
    command = [sys.executable, "-P", metis_child.__file__, str(tmp_path), "2", "0", not_its_parent]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "offsets" not in ended.stderr


def test_parts_with_too_much_of_different_things_exchange_nodes(tmp_path) -> None:
    # Many nodes of few edges, and few of many: one part has too many nodes, the other too many
    # edges, and neither has room for any node.
    generator, kind = np.random.default_rng(0), np.tile([0, 1, 0, 1, 0], 800)
    degree = np.where(kind == 1, 9, 5)
    src = np.concatenate(
        [generator.choice(np.flatnonzero(kind == k), d) for k, d in zip(kind, degree, strict=True)]
    )
    graph = graph_from_edges(src, np.repeat(np.arange(len(kind)), degree), len(kind))
    part_of, none = kind.astype(np.int8), np.zeros(len(kind), bool)
    loads_P3 = np.zeros((2, 3))
    for k in range(2):
        loads_P3[k, :2] = (kind == k).sum(), degree[kind == k].sum()
    room = 1.05 * loads_P3.mean(axis=0)
    assert ((loads_P3 > room).argmax(axis=0)[:2] == [0, 1]).all()
    for piece in BothWays(graph, tmp_path, None).pieces():
        move_rows(piece, none[slice(*piece.whole)], part_of, loads_P3, room)
    assert (loads_P3[:, :2] <= room[:2] + 10).all()
    assert (np.bincount(part_of) == loads_P3[:, 0]).all()
    assert (np.bincount(part_of, degree) == loads_P3[:, 1]).all()
