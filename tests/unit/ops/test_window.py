"""Means over a band of snapshots, made from counts: to the bit those of the definition."""

import numpy as np
import pytest
import torch

from siafu.errors import PlanError
from siafu.graph import Snapshot, smooth, snapshot_from_keys
from siafu.ops import (
    CSR,
    DeltaStream,
    WindowStream,
    kernels,
    sums_are_exact,
    window_means,
    with_loops,
)
from siafu.ops.delta import reference
from siafu.ops.delta.contract import Slid


def history(seed, num_nodes, num_steps, *, grain=1.0, symmetric=False) -> list[Snapshot]:
    """Snapshots whose edges come, go, come back and change their counts; some have a loop."""
    draw = np.random.default_rng(seed)
    counts = np.zeros((num_nodes, num_nodes))
    found = []
    for step in range(num_steps):
        counts *= draw.random(counts.shape) < 0.7
        more = draw.poisson(0.1 if step % 5 else 0.0, counts.shape) * grain
        counts = (counts + more) * (0 if step == 7 else 1)
        if symmetric:
            counts = np.maximum(counts, counts.T)
        keys = np.flatnonzero(counts)
        found.append(snapshot_from_keys(keys, counts.reshape(-1)[keys], num_nodes))
    return found


def matrix(snapshot: Snapshot) -> CSR:
    indptr, src, weight = (torch.from_numpy(np.array(a)) for a in snapshot.arrays())
    return CSR.checked(indptr, src, snapshot.num_nodes, weight)


def looped(snapshots: list[Snapshot]) -> list[CSR]:
    return [with_loops(matrix(snapshot)) for snapshot in snapshots]


def assert_same(got: CSR, want: CSR) -> None:
    assert torch.equal(got.indptr.cpu(), want.indptr)
    assert torch.equal(got.index.cpu(), want.index)
    assert got.weight.dtype == torch.float32
    assert torch.equal(got.weight.cpu(), want.weight)  # to the bit


def one_by_one(snapshots: list[Snapshot], band: int, step: int) -> np.ndarray:
    """The definition, dense, in float64 throughout."""
    num_nodes, total = snapshots[0].num_nodes, 0.0
    recent = snapshots[max(0, step - band + 1) : step + 1]
    for snapshot in recent:
        dense = np.zeros((num_nodes, num_nodes))
        dense[snapshot.dst(), snapshot.src] = snapshot.weight
        dense[np.diag_indices(num_nodes)] += dense.diagonal() == 0
        root = dense.sum(1) ** -0.5
        total = total + root[:, None] * dense * root
    return total / len(recent)


@pytest.mark.parametrize("num_nodes", [1, 7, 40])
@pytest.mark.parametrize("band", [2, 4, 20])
@pytest.mark.parametrize("grain", [1.0, 0.5])
def test_means_there_and_back_equal_the_definition(device, num_nodes, band, grain):
    snapshots = history(num_nodes, num_nodes, 12, grain=grain)
    want = [matrix(mean) for mean in smooth(snapshots, band)]
    stream = WindowStream(looped(snapshots), band=band, device=device, transpose="sent")
    for times in (range(12), range(11, -1, -1), range(3, 9)):
        for time, got in zip(times, stream.walk(times), strict=True):
            assert_same(got, want[time])
            assert_same(got.transpose(), want[time].transpose())
    assert stream.num_snapshots == 12
    assert stream.has_loops
    dense = np.zeros((num_nodes, num_nodes))
    dense[want[8].rows(), want[8].index] = want[8].weight
    # each value is rounded to float32, and so is the mean
    np.testing.assert_allclose(dense, one_by_one(snapshots, band, 8), rtol=2e-7)


@pytest.mark.parametrize("first", [1, 4])
def test_a_stretch_of_time_starts_with_what_its_band_reaches(device, first):
    snapshots, band = history(3, 15, 9), 3
    want = [matrix(mean) for mean in smooth(snapshots, band)]
    reach = max(0, first - band + 1)
    stream = WindowStream(looped(snapshots)[reach:], band=band, device=device, first=first)
    blocks = [range(low, min(low + 3, 9)) for low in range(first, 9, 3)]
    for block in [*blocks, *reversed(blocks)]:
        for time, got in stream.read(block):
            assert_same(got, want[time])


def test_a_walk_that_is_left_can_be_taken_up_again():
    snapshots = history(5, 9, 8)
    want = [matrix(mean) for mean in smooth(snapshots, 3)]
    stream = WindowStream(looped(snapshots), band=3)
    for stop in (2, 5, 1):
        for time, got in zip(range(stop), stream.walk(range(8)), strict=False):
            assert_same(got, want[time])


def test_a_symmetric_mean_is_its_own_transpose():
    snapshots = history(6, 12, 9, grain=0.5, symmetric=True)
    want = [matrix(mean) for mean in smooth(snapshots, 4)]
    stream = WindowStream(looped(snapshots), band=4, transpose="same")
    for mean, got in zip(want, stream.walk(range(9)), strict=True):
        assert_same(got.transpose(), mean.transpose())


def test_means_on_the_host_equal_the_definition(threads):
    snapshots = history(7, 300, 9)
    want = [matrix(mean) for mean in smooth(snapshots, 5)]
    for count in (1, 3):
        torch.set_num_threads(count)
        for got, mean in zip(window_means(looped(snapshots), 5), want, strict=True):
            assert_same(got, mean)


def test_slides_of_any_kernel_equal_the_reference():
    found = looped(history(8, 60, 9))
    nothing = torch.zeros(0)
    want = Slid(
        torch.zeros_like(found[0].indptr), found[0].index[:0], nothing.int(), *[nothing] * 2
    )
    for now, csr in enumerate(found):
        edges, oldest = (csr.indptr, csr.index, csr.weight), None
        if now >= 2:
            first = found[now - 2]
            oldest = (first.indptr, first.index, first.weight)
        got = kernels.fast["cpu"].delta.slide(want, edges, oldest, now - 2, now)
        want = reference.slide(want, edges, oldest, now - 2, now)
        for name, one, other in zip(Slid._fields, got, want, strict=True):
            assert torch.equal(one, other), name


@pytest.mark.parametrize("degrees", [[1], [0, 3, 0, 1500, 1, 0], [1] * 513])
@pytest.mark.parametrize(("sign", "steps"), [(1, 0), (1, 1), (1, 3), (-1, 7)])
def test_normalised_sums_equal_the_reference(device, degrees, sign, steps):
    draw = torch.Generator().manual_seed(12)
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    count = int(indptr[-1])
    index = torch.randint(0, len(degrees), (count,), dtype=torch.int32, generator=draw)
    weight = torch.randint(0, 3, (count,), generator=draw).float()
    roots = torch.rand(len(degrees), dtype=torch.float64, generator=draw)
    sums = torch.rand(count, dtype=torch.float64, generator=draw)
    given = (indptr, index, weight), roots, sums
    want = reference.add_normalised(*given, sign, steps)
    edges = tuple(tensor.to(device) for tensor in given[0])
    add = kernels.delta_kernels(device).add_normalised
    got = add(edges, roots.to(device), sums.to(device), sign, steps)
    assert torch.equal(got[0].cpu(), want[0])
    assert got[1] is want[1] or torch.equal(got[1].cpu(), want[1])


def test_counts_travel_where_values_did():
    """Of edges that stay, values change in every place, and nothing is sent for them."""
    draw = np.random.default_rng(9)
    pairs, num_nodes, life, band, steps = 500, 400, 10, 6, 16
    keys = draw.integers(0, num_nodes**2, (steps + life, pairs))
    snapshots = []
    for step in range(steps):
        alive, counts = np.unique(keys[step : step + life], return_counts=True)
        snapshots.append(snapshot_from_keys(alive, counts, num_nodes))
    means = [matrix(mean) for mean in smooth(snapshots, band)]
    whole, counted = DeltaStream(means), WindowStream(looped(snapshots), band=band)
    for got, mean in zip(counted.walk(range(steps)), means, strict=True):
        assert_same(got, mean)
    # The step that fills the window tells all counts of its first snapshot.
    ours = [size for step, size in enumerate(counted.step_bytes(), 1) if step != band - 1]
    assert 4 * np.mean(ours) < np.mean(whole.step_bytes())


@pytest.mark.parametrize(
    ("least", "most", "degree", "band", "exact"),
    [
        (1.0, 20.0, 1000.0, 20, True),
        (0.5, 255.0, 1e5, 20, True),
        (1.0, 1.0, 2.0**23, 2, False),  # roots of so many degrees
        (0.5, 1e4, 4e6, 100, False),
        (0.0, 1.0, 10.0, 4, False),
    ],
)
def test_sums_that_float64_holds(least, most, degree, band, exact):
    assert sums_are_exact(least, most, degree, band) is exact


def test_sums_at_the_bound_do_not_depend_on_their_order():
    draw = np.random.default_rng(10)
    band = 20
    degree = max(2.0**k for k in range(23) if sums_are_exact(0.5, 4.0, 2.0**k, band))
    assert degree >= 1e5
    low, high = 0.5 / degree, (4.0 / 0.5) ** 0.5
    values = np.exp(draw.uniform(np.log(low), np.log(high), (500, band))).astype(np.float32)
    there, back = values.astype(np.float64), values[:, ::-1].astype(np.float64)
    assert np.array_equal(there.cumsum(1)[:, -1], back.cumsum(1)[:, -1])


def test_misuse_is_refused_by_name():
    (one,) = looped(history(11, 3, 1))
    with pytest.raises(PlanError, match="at least two"):
        WindowStream([one], band=1)
    with pytest.raises(PlanError, match="needs a snapshot"):
        WindowStream([], band=2)
