"""Deltas on every implementation: awkward sizes, the codes of places and weights, the stream."""

import numpy as np
import pytest
import torch

from siafu.errors import PlanError
from siafu.ops import (
    CSR,
    DeltaStream,
    apply_delta,
    apply_delta_reference,
    decode_delta,
    edge_delta,
    encode_delta,
    gcn_scales,
    gcn_values,
    neighbour_sum,
)


def random_csr(seed: int, num_rows: int, num_edges: int, *, kinds: tuple[float, ...] = ()) -> CSR:
    """A sorted matrix without repeats; weights are drawn from `kinds` where there are some."""
    draw = np.random.default_rng(seed)
    keys = np.unique(draw.integers(0, num_rows * num_rows, num_edges))
    counts = np.bincount(keys // num_rows, minlength=num_rows)
    indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
    index = torch.from_numpy((keys % num_rows).astype(np.int32))
    weight = torch.from_numpy(draw.choice(kinds, len(keys)).astype(np.float32)) if kinds else None
    return CSR.checked(indptr, index, num_rows, weight)


def grown(csr: CSR, seed: int, *, kinds: tuple[float, ...] = ()) -> CSR:
    """Some edges of the matrix, and some others."""
    draw = np.random.default_rng(seed)
    other = random_csr(seed, csr.num_rows, csr.num_edges // 4 + 1, kinds=kinds)
    keys = [m.rows().numpy() * csr.num_rows + m.index.numpy() for m in (csr, other)]
    kept = draw.random(csr.num_edges) < 0.8
    keys = np.unique(np.concatenate([keys[0][kept], keys[1]]))
    counts = np.bincount(keys // csr.num_rows, minlength=csr.num_rows)
    indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
    index = torch.from_numpy((keys % csr.num_rows).astype(np.int32))
    weight = torch.from_numpy(draw.choice(kinds, len(keys)).astype(np.float32)) if kinds else None
    return CSR.checked(indptr, index, csr.num_rows, weight)


def assert_same(got: CSR, want: CSR) -> None:
    assert torch.equal(got.indptr.cpu(), want.indptr)
    assert torch.equal(got.index.cpu(), want.index)
    assert got.weight is None or torch.equal(got.weight.cpu(), want.weight)


@pytest.mark.parametrize("num_rows", [1, 3, 129, 300])
@pytest.mark.parametrize("kinds", [(), (1.0, 2.0), (0.1, -3.0)], ids=["bare", "counts", "floats"])
def test_applied_delta_equals_the_definition(device, num_rows, kinds):
    now = random_csr(1, num_rows, 5 * num_rows, kinds=kinds)
    empty = CSR(
        torch.zeros_like(now.indptr), now.index[:0], num_rows, None if not kinds else now.weight[:0]
    )
    for before, after in [(now, grown(now, 2, kinds=kinds)), (now, empty), (empty, now)]:
        delta = edge_delta(before, after)
        assert_same(apply_delta_reference(before, delta), after)
        layout, payload = encode_delta(delta)
        moved = decode_delta(layout, payload.to(device))
        assert_same(apply_delta(before.to(device), moved), after)


def test_many_edges_are_merged_alike_on_any_number_of_threads(threads):
    now = random_csr(3, 3000, 200_000, kinds=(1.0, 2.0))
    then = grown(now, 4, kinds=(1.0, 2.0))
    for count in (1, 3):
        torch.set_num_threads(count)
        assert_same(apply_delta(now, edge_delta(now, then)), then)


def test_places_take_a_byte_and_whole_weights_another():
    now = random_csr(5, 2000, 60_000, kinds=(1.0, 2.0, 3.0))
    then = grown(now, 6, kinds=(1.0, 2.0, 3.0))
    delta = edge_delta(now, then)
    layout, payload = encode_delta(delta)
    assert (layout.bits, layout.grain) == (8, 1.0)
    born, gone = len(delta.born_at), len(delta.gone_at)
    weights = len(delta.weight)
    least = 4 * born + 2 * born + gone + len(delta.changed_at) + weights
    assert least <= payload.nbytes <= least + 8 * layout.rests + 16
    assert layout.rests < 0.01 * (2 * born + gone) + 5


@pytest.mark.parametrize(("spread", "bits"), [(40_000, 16), (70_000, 32)])
def test_wide_gaps_take_wider_places(spread, bits):
    """A few edges change among many rows, so neighbours lie far apart."""
    num_rows = 20 * spread
    rows = torch.arange(0, num_rows, spread)
    indptr = torch.zeros(num_rows + 1, dtype=torch.int64)
    indptr[rows + 1] = 1
    now = CSR(indptr.cumsum(0), torch.zeros(len(rows), dtype=torch.int32), num_rows)
    empty = CSR(torch.zeros_like(indptr), now.index[:0], num_rows)
    delta = edge_delta(empty, now)
    layout, payload = encode_delta(delta)
    assert layout.bits == bits
    assert_same(apply_delta(empty, decode_delta(layout, payload)), now)


def test_most_weights_changed_are_sent_without_places():
    now = random_csr(7, 50, 900, kinds=(0.3,))
    then = CSR(now.indptr, now.index, 50, now.weight * 2)
    delta = edge_delta(now, then)
    assert delta.rewrites
    assert len(delta.changed_at) == 0
    assert_same(apply_delta(now, decode_delta(*encode_delta(delta))), then)


def test_stream_counts_its_bytes_and_sends_the_base_once(device):
    matrices = [random_csr(8, 40, 300)]
    for seed in range(5):
        matrices.append(grown(matrices[-1], 10 + seed))
    stream = DeltaStream(iter(matrices), device=device, transpose="sent")
    assert stream.sent_bytes == 0
    for got, want in zip(stream.walk(range(6)), matrices, strict=True):
        assert_same(got, want)
        assert_same(got.transpose(), want.transpose())
    there = stream.base_bytes + sum(stream.step_bytes())
    assert stream.sent_bytes == there
    for got, want in zip(stream.walk(range(5, -1, -1)), reversed(matrices), strict=True):
        assert_same(got, want)
    back = sum(payload.nbytes for payload in stream.payloads(range(5, -1, -1)))
    assert stream.sent_bytes == there + back
    assert stream.has_loops == any(bool((m.index == m.rows()).any()) for m in matrices)


def test_blocks_are_read_from_the_end_that_is_nearer():
    matrices = [random_csr(0, 9, 20)]
    for step in range(31):
        matrices.append(grown(matrices[-1], step))
    stream, blocks = DeltaStream(matrices), [range(low, low + 8) for low in range(0, 32, 8)]
    for _ in range(2):
        for block in [*blocks, *reversed(blocks)]:  # forward, then backward
            for time, got in stream.read(block):
                assert_same(got, matrices[time])
    # 31 there; the last block again from its end, and so on to the start, which the next epoch
    # finds where it left off.
    assert stream.sent_deltas == 31 + 31 + 31 + 31
    one_way = DeltaStream(matrices, both_ways=False)
    assert [time for time, _ in one_way.read(range(8))] == list(range(8))
    assert [time for time, _ in one_way.read(range(8))] == list(range(8))


def test_next_delta_travels_while_a_snapshot_is_used():
    matrices = [random_csr(9, 20, 60)]
    matrices.append(grown(matrices[0], 20))
    stream = DeltaStream(iter(matrices))
    walk = stream.walk(range(2))
    next(walk)
    assert stream.sent_bytes == stream.base_bytes + stream.step_bytes()[0]


def test_a_symmetric_snapshot_is_its_own_transpose():
    one = CSR(torch.tensor([0, 1, 2]), torch.tensor([1, 0], dtype=torch.int32), 2)
    (got,) = DeltaStream([one], transpose="same").walk([0])
    assert got.transpose().index is got.index
    assert len(DeltaStream([one]).step_bytes()) == 0


def test_misuse_is_refused_by_name():
    now = random_csr(11, 10, 30)
    then = grown(now, 12)
    with pytest.raises(PlanError, match="another snapshot"):
        apply_delta(now, edge_delta(random_csr(13, 10, 70), now))
    with pytest.raises(PlanError, match="one shape"):
        edge_delta(now, random_csr(1, 11, 30))
    stream = DeltaStream([now, then], both_ways=False)
    with pytest.raises(PlanError, match="does not hold"):
        next(stream.walk([2]))
    with pytest.raises(PlanError, match="the one before"):
        list(stream.walk([1, 0]))
    with pytest.raises(PlanError, match="needs a snapshot"):
        DeltaStream([])


def test_gcn_values_equal_the_dense_formula(device):
    csr = random_csr(14, 12, 60, kinds=(1.0, 2.0)).to(device)
    dense = torch.zeros(12, 12, dtype=torch.float64)
    dense[csr.rows().cpu(), csr.index.long().cpu()] = csr.weight.double().cpu()
    looped = dense + torch.diag((dense.diagonal() == 0).double())
    root = looped.sum(1).rsqrt()
    want = root[:, None] * looped * root
    root_N, own_N = gcn_scales(csr)
    x = torch.randn(12, 3, dtype=torch.float64).to(device)
    exact = csr.with_weight(csr.weight.double())
    got = neighbour_sum(exact, x, row_scale_M=root_N, col_scale_C=root_N) + own_N[:, None] * x
    torch.testing.assert_close(got.cpu(), want @ x.cpu())
    spelt = torch.zeros_like(dense)
    spelt[csr.rows().cpu(), csr.index.long().cpu()] = gcn_values(csr).cpu()
    torch.testing.assert_close(spelt + torch.diag(own_N.cpu()), want)
    without = CSR(torch.tensor([0, 1, 3, 3]), torch.tensor([1, 0, 2], dtype=torch.int32), 3)
    torch.testing.assert_close(gcn_scales(without), gcn_scales(without, loops=False))
