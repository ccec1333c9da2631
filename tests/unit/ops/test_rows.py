"""Rows gathered by number, some of which have copies where they are read."""

import pytest
import torch

from siafu.ops import gather_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8, torch.int64])
@pytest.mark.parametrize("shape", [(50,), (50, 3), (50, 130)])
def test_rows_come_as_they_lie_wherever_they_lie(device, dtype, shape):
    table = torch.randint(0, 200, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    if device.type == "cuda":
        table = table.pin_memory()
    rows = torch.tensor([49, 0, 7, 7, 31, 2, 1], device=device)
    assert torch.equal(gather_rows(table, rows).cpu(), table[rows.cpu()])
    slot = torch.full((50,), -1, dtype=torch.int32)
    slot[[7, 2]] = torch.tensor([1, 0], dtype=torch.int32)
    copies = table[[2, 7]].to(device)
    got = gather_rows(table, rows, slot.to(device), copies)
    assert torch.equal(got.cpu(), table[rows.cpu()])
    table[[2, 7]] = 0  # what has a copy is read there
    assert torch.equal(gather_rows(table, rows, slot.to(device), copies).cpu(), got.cpu())


def test_no_rows_are_gathered(device):
    none = torch.zeros(0, dtype=torch.int64, device=device)
    assert gather_rows(torch.zeros(4, 3), none).shape == (0, 3)
    assert gather_rows(torch.zeros(4, 0), none + 0).shape == (0, 0)
