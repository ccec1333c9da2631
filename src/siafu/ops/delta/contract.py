"""What an implementation of the kernels over deltas must offer, as `ops.contract` has the others.

Shapes: K edges of a window of snapshots.
"""

from typing import NamedTuple, Protocol

from torch import Tensor

SortedEdges = tuple[Tensor, Tensor, Tensor | None]
"""indptr, index and weight of a matrix whose rows are sorted by column, without repeats."""


class Changes(NamedTuple):
    """What differs between two matrices, as `delta.EdgeDelta` has it; int32."""

    born_at: Tensor
    born_dst: Tensor
    gone_at: Tensor
    changed_at: Tensor


class Slid(NamedTuple):
    """The edges of a window of snapshots, sorted, and what each was in some of them."""

    indptr: Tensor
    columns: Tensor
    last: Tensor
    """int32 [K]: the last time that had the edge."""
    joined: Tensor
    """float32 [K]: its weight in the latest snapshot of the window, 0 where that lacks it."""
    oldest: Tensor
    """float32 [K]: its weight in the first one, which leaves next; 0 where that lacks it."""


class DeltaKernels(Protocol):
    """Kernels over deltas between sorted matrices."""

    def changes(self, now: SortedEdges, following: SortedEdges, num_cols: int) -> Changes:
        """Return what leads from one matrix to the other."""

    def move(
        self,
        indptr: Tensor,
        columns: tuple[Tensor, ...],
        fresh: tuple[Tensor, ...],
        delta: Changes,
        num_after: int,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return row starts and columns of the edges after a delta.

        Edges that stay shift, `fresh` fills in; what has changed is not looked at.
        """

    def slide(
        self, window: Slid, joins: SortedEdges, oldest: SortedEdges | None, keep: int, now: int
    ) -> Slid:
        """Return the window one step later: `joins` is in it, edges last seen before `keep` not.

        `oldest` is its first snapshot, whose edges are all in it; None while the window grows.
        """

    def add_normalised(
        self, edges: SortedEdges, root_N: Tensor, sums_K: Tensor, sign: int, steps: int
    ) -> tuple[Tensor, Tensor | None]:
        """Return float64 `sums_K` with each edge's normalised weight added, or taken off by -1.

        That is weight * (root of row * root of column) in float64, rounded to float32. Beside
        them float32 means over `steps`, where that is not 0.
        """
