"""The size of macrobatches, features at 8 bits, rows of files, fan-outs."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from siafu.config import make_config
from siafu.engine.networks.sampled_memory import read_fanout
from siafu.errors import ConfigError
from siafu.launch import fit
from siafu.minibatch import Sampling
from siafu.minibatch.fetched_rows import CodedRows, decode_coded_rows
from siafu.minibatch.macrobatch_size import StepCosts, Trial, choose_macrobatch
from siafu.ops.rows import files
from siafu.shard import FileRows, HeldRows

SHARED, APART = [100.0, 130.0, 150.0, 160.0], [100.0, 200.0, 300.0, 400.0]
FAR = {"fixed": 0.1, "drawn": 0.1, "row": 0.01, "busy": 0.0}


@pytest.mark.parametrize(
    ("curve", "costs", "budget", "steps", "want"),
    [
        # Rows that steps share are fetched once: many steps where fetching is what takes long.
        (SHARED, FAR, 10**9, 10_000, 64),
        (SHARED, FAR | {"trained": 0.8}, 10**9, 10, 2),  # but the first one is waited for
        (SHARED, FAR, 2 * 150 * 10, 10_000, 2),  # memory for two steps' rows
        (SHARED, FAR, 0, 10_000, 1),
        # Nothing is shared, but rounds are saved.
        (APART, FAR, 10**9, 10_000, 8),
        (APART, FAR | {"fixed": 10.0}, 10**9, 10_000, 64),
        # Fetching hides behind training, unless it takes the same cores.
        (SHARED, FAR | {"trained": 2.0}, 10**9, 10_000, 1),
        (SHARED, FAR | {"trained": 2.0, "busy": 1.0}, 10**9, 10_000, 32),
    ],
)
def test_macrobatches_are_the_fewest_steps_near_the_best(curve, costs, budget, steps, want) -> None:
    trial = Trial(curve=curve, graph_bytes=0.0, row_bytes=10, reached=(1,), edges=0)
    assert choose_macrobatch(trial, StepCosts(**costs), budget, steps) == want


def test_the_choice_is_told_and_training_starts_as_if_nothing_had_been_tried(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    losses = []
    for size in ("auto", "1"):
        settings = {"strategy": "batchgnn", "batch_size": 50, "norm": "batch", "fanout": "3,3"}
        out = str(tmp_path / size)
        run = fit("planted:2000", epochs=2, macrobatch=size, out=out, **settings)
        losses.append(list(run.metrics["loss"]))
        told = "Macrobatches of " in capfd.readouterr().err
        assert told == (size == "auto")
    assert losses[0] == losses[1]


def test_features_at_8_bits_are_right_on_average_and_alike_from_disk(tmp_path: Path) -> None:
    x = torch.randn(300, 7, generator=torch.Generator().manual_seed(0))
    np.save(tmp_path / "x.npy", x.numpy())
    ids, rows = torch.arange(300) + 5, torch.tensor([299, 0, 7, 7])
    held = CodedRows(HeldRows(x), ids, seed=1)
    mapped = CodedRows(FileRows(np.load(tmp_path / "x.npy", mmap_mode="r")), ids, seed=1)
    assert torch.equal(held.read(rows), mapped.read(rows))
    assert 0 < held.error() < 0.01
    many = torch.stack(
        [decode_coded_rows(CodedRows(HeldRows(x), ids, seed=s).read(rows), 7) for s in range(400)]
    )
    step = (x.amax(1) - x.amin(1))[rows, None] / 255
    assert ((many.mean(0) - x[rows]).abs() < 5 * step / (12 * 400) ** 0.5 + 1e-6).all()


@pytest.mark.parametrize("memory_bytes", [1 << 40, 1], ids=["cached", "direct"])
@pytest.mark.parametrize("compiled", [True, False])
def test_rows_of_a_file_come_in_the_order_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, compiled: bool, memory_bytes: int
) -> None:
    if not compiled:
        monkeypatch.setattr("siafu.ops.rows.files._pread", None)
    rows = np.arange(500_000, dtype=np.int64).reshape(50_000, 10)
    np.save(tmp_path / "x.npy", rows)
    array = np.load(tmp_path / "x.npy", mmap_mode="r")
    reader = FileRows(array, memory_bytes=memory_bytes)
    assert not (reader._direct and memory_bytes > 1)
    generator = torch.Generator().manual_seed(0)
    for count in (0, 1, 300, 40_000):  # apart, near each other, all but all
        wanted = torch.randint(0, 50_000, (count,), generator=generator)
        assert torch.equal(reader.read(wanted), torch.from_numpy(rows)[wanted])
    os.truncate(tmp_path / "x.npy", 2_000_000)
    assert torch.equal(reader.read(wanted[:0]), torch.from_numpy(rows)[:0])
    with pytest.raises(OSError, match="ended early"):
        reader.read(torch.tensor([3, 49_999]))


@pytest.mark.skipif(not files._NOWAIT, reason="reads can't be told not to wait here")
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_rows_that_are_not_in_memory_are_waited_for_by_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, known: bool
) -> None:
    rows = torch.arange(80_000).reshape(20_000, 4)
    np.save(tmp_path / "x.npy", rows.numpy())
    reader = FileRows(np.load(tmp_path / "x.npy", mmap_mode="r"), memory_bytes=1 << 40)
    if not known:  # a kernel or a file system without such reads
        monkeypatch.setattr(files, "_NOWAIT", 1 << 30)
    os.fsync(reader._fd)
    os.posix_fadvise(reader._fd, 0, 0, os.POSIX_FADV_DONTNEED)
    wanted = torch.arange(19_999, 0, -150)
    assert torch.equal(reader.read(wanted), rows[wanted])
    assert torch.equal(reader.read(wanted[:1]), rows[wanted[:1]])


def test_layers_are_as_many_as_fan_outs_unless_they_are_named() -> None:
    assert make_config(data="planted", fanout="15,10,5").resolved().layers == 3
    assert make_config(data="planted", fanout="15,10,5", layers=2).resolved().layers == 2
    assert make_config(data="planted").resolved().layers == 2


def test_fan_outs_are_checked_before_the_data() -> None:
    with pytest.raises(ConfigError, match="fanout='5,0' with 2 layers"):
        fit("absent", strategy="batchgnn", fanout="5,0")


@pytest.mark.parametrize("text", ["5", "5,x", "5,0", "5,-2", "5,5,5", ""])
def test_fan_outs_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="fan-out"):
        read_fanout(text, 2)


@pytest.mark.parametrize("how", [{"fanouts": (3,), "replace": True}, {"fanouts": (-1, -1)}])
def test_what_can_not_be_shared_is_refused(how) -> None:
    with pytest.raises(ConfigError, match="share"):
        Sampling(shared=True, **how)


def test_draws_are_shared_only_where_some_are_made() -> None:
    with pytest.raises(ConfigError, match="no draws to share"):
        fit("planted:60", strategy="batchgnn", fanout="-1,-1", share_draws=2, ranks=1)
