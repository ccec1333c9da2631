"""The size of macrobatches, features at 8 bits, rows of files, fan-outs."""

from pathlib import Path

import numpy as np
import pytest
import torch

from siafu.config import make_config
from siafu.engine.networks.sampled_memory import read_fanout
from siafu.errors import ConfigError
from siafu.launch import fit
from siafu.minibatch.fetched_rows import CodedRows, decode_coded_rows
from siafu.minibatch.macrobatch import Trial, largest_that_pays
from siafu.shard import FileRows, HeldRows


@pytest.mark.parametrize(
    ("curve", "budget", "steps", "want"),
    [
        ([100, 130, 150, 160], 10**9, 100, 64),  # much is shared: as many as there may be
        ([100, 130, 150, 160], 10**9, 10, 8),  # but not more than there are steps
        ([100, 200, 300, 400], 10**9, 100, 1),  # nothing is shared
        ([100, 130, 150, 160], 2 * 150 * 10, 100, 2),  # memory for two steps' rows
        ([100, 130, 150, 160], 0, 100, 1),
    ],
)
def test_macrobatches_grow_while_it_pays_and_fits(curve, budget, steps, want) -> None:
    trial = Trial(curve=curve, graph_bytes=0.0, row_bytes=10, reached=(1,), edges=0)
    assert largest_that_pays(trial, budget, steps) == want


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


def test_rows_of_a_file_come_in_the_order_asked(tmp_path: Path) -> None:
    rows = np.arange(100_000, dtype=np.int64).reshape(50_000, 2)
    np.save(tmp_path / "x.npy", rows)
    reader = FileRows(np.load(tmp_path / "x.npy", mmap_mode="r"))
    wanted = torch.randint(0, 50_000, (40_000,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(reader.read(wanted), torch.from_numpy(rows)[wanted])
    assert reader.read(wanted[:0]).shape == (0, 2)


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
