"""Addresses by number: the count of a part's earlier vertices is the row."""

import numpy as np
import pytest
import torch

from siafu.minibatch import ROW_BITS, Directory


@pytest.mark.parametrize(("num_vertices", "num_parts"), [(1, 1), (255, 2), (1300, 3), (513, 4)])
def test_addresses_are_owner_and_row(num_vertices: int, num_parts: int) -> None:
    generator = np.random.default_rng(num_vertices)
    part_of = generator.integers(0, num_parts, num_vertices).astype(np.int32)
    part_of[part_of == 1] = 0  # a part may own nothing
    want = np.empty(num_vertices, np.int64)
    for part in range(num_parts):
        rows = np.flatnonzero(part_of == part)
        want[rows] = part << ROW_BITS | np.arange(len(rows))
    numbers = torch.from_numpy(generator.permutation(num_vertices))
    assert torch.equal(
        Directory(part_of, num_parts).addresses(numbers), torch.from_numpy(want)[numbers]
    )
    assert len(Directory(part_of, num_parts).addresses(numbers[:0])) == 0
