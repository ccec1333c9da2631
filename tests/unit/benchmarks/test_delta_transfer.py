"""The benchmark's graphs are what it says, and its gate and figures hold at a tiny size."""

from argparse import Namespace

import torch

from benchmarks.delta_transfer import carriers_of, measure_window, sliding_window


def test_snapshots_share_all_but_one_step_of_their_edges():
    first, second = sliding_window(1_000, 8_000, 2, life=10)
    keys = [set((csr.rows() * 1_000 + csr.index).tolist()) for csr in (first, second)]
    assert 0.88 < len(keys[0] & keys[1]) / len(keys[0]) < 0.92
    assert torch.equal(first.transpose().index, first.index)


def test_deltas_are_far_smaller_than_the_leanest_snapshots():
    snapshots = sliding_window(2_000, 40_000, 4, life=29)
    carriers = carriers_of(snapshots, torch.device("cpu"))
    sizes = {
        name: sum(t.nbytes for row in carrier.payloads(range(4)) for t in row)
        for name, carrier in carriers.items()
    }
    assert sizes["coo64"] > 60 * sizes["deltas"]
    assert sizes["csr32"] > 11 * sizes["deltas"]


def test_every_way_gives_the_same_epoch_and_is_timed():
    row = measure_window(10, Namespace(device="cpu", scale=0.0002, steps=3, repeats=1))
    assert row["edge_snapshots"] > 3 * row["edges"] - 3
    for kind in ("transfer", "arrival", "epoch"):
        assert row[f"csr32 / deltas {kind}"] > 0
