"""Where a vertex lives, from its number in the whole graph, without a table of all vertices.

Rows of a part rise with their numbers, so a vertex's row is the count of vertices of its part
before it: counted up to each block beforehand, and within the block when asked.
"""

import numpy as np
import torch
from torch import Tensor

from siafu.graph import Array, forget
from siafu.minibatch.served import ROW_BITS

_BLOCK = 256
_BLOCKS_AT_ONCE = 1 << 12


class Directory:
    """Addresses by number; 1/32 byte a vertex and part is kept, the rest stays in the file."""

    def __init__(self, part_of: Array, num_parts: int) -> None:
        """`part_of` has the part of each vertex of the whole graph; it may be memory-mapped."""
        self._part_of, self._num_parts = part_of, num_parts
        num_blocks = -(-len(part_of) // _BLOCK)
        counts = np.zeros((num_blocks, num_parts), np.int64)
        for low in range(0, num_blocks, _BLOCKS_AT_ONCE):
            high = min(low + _BLOCKS_AT_ONCE, num_blocks)
            piece = np.asarray(part_of[low * _BLOCK : high * _BLOCK], np.int64)
            cell = np.arange(len(piece)) // _BLOCK * num_parts + piece
            found = np.bincount(cell, minlength=(high - low) * num_parts)
            counts[low:high] = found.reshape(high - low, num_parts)
            forget(part_of)
        self._before = counts.cumsum(axis=0) - counts

    def addresses(self, numbers: Tensor) -> Tensor:
        """Return the address of each vertex."""
        if self._num_parts == 1:
            return numbers.clone()
        pieces = [self._look_up(piece.numpy()) for piece in numbers.split(_BLOCKS_AT_ONCE)]
        return torch.from_numpy(np.concatenate(pieces))

    def _look_up(self, number_Q: Array) -> Array:
        owner_Q = np.asarray(self._part_of[number_Q], np.int64)
        block_Q = number_Q // _BLOCK
        window = block_Q[:, None] * _BLOCK + np.arange(_BLOCK)
        earlier = window < number_Q[:, None]
        parts = self._part_of[np.minimum(window, number_Q[:, None])]
        within_Q = ((parts == owner_Q[:, None]) & earlier).sum(axis=1)
        return owner_Q << ROW_BITS | self._before[block_Q, owner_Q] + within_Q
