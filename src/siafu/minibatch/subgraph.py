"""The nodes and edges that one minibatch computes with.

Nodes are numbered seeds first, then those met at hop 1, at hop 2 and so on; a node's in-edges
were drawn when it was first met. So each layer reads a prefix of the rows and writes a shorter one,
and no rows are copied in between.

Shapes: V nodes, E edges, M rows with in-edges, L hops.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from torch import Tensor

from siafu.minibatch.served import EdgeColumn
from siafu.nn import AtHand
from siafu.ops import CSR, Numbering


@dataclass(frozen=True, eq=False)
class Looped:
    """A sub-graph's edges with a loop for each row, in place of those it had."""

    indptr: Tensor
    index: Tensor
    counts: Tensor
    ends: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Subgraph:
    """One minibatch's own graph."""

    number: int
    """Of the minibatch in its epoch."""
    addresses: Tensor
    """int64 [V]."""
    reached: tuple[int, ...]
    """Nodes met up to each hop, from the seeds alone to all."""
    indptr: Tensor
    """int64 [M + 1]: in-edges of the nodes met before the last hop."""
    index: Tensor
    """int32 [E]: sources."""
    edges: dict[EdgeColumn, Tensor]
    ends: tuple[int, ...]
    """Edges of the nodes met before each hop, in their order: known here, since a device that has
    the tensors would be waited for."""
    removed: Tensor | None = None
    """int64 [M]: in-edges of each row taken away since they are to be predicted."""
    counts: Tensor | None = None
    """int64 [M]: in-edges of each row, where they are at hand."""
    longest: int | None = None
    """In-edges that no row has more of, where that is known."""
    looped: Looped | None = None
    """Where that was prepared."""
    turned: tuple[CSR | None, ...] = ()
    """Transposes of the edges up to each hop, with loops if there are any; where prepared."""
    _inverse: dict[torch.dtype, Tensor] = field(default_factory=dict, repr=False)

    @property
    def num_seeds(self) -> int:
        """Nodes whose rows are asked for."""
        return self.reached[0]

    @property
    def tensors(self) -> list[Tensor]:
        """All that it has."""
        more = [column for column in (self.removed, self.counts) if column is not None]
        if self.looped is not None:
            more += [self.looped.indptr, self.looped.index, self.looped.counts]
        for back in self.turned:
            more += [] if back is None else [back.indptr, back.index]
        return [self.addresses, self.indptr, self.index, *self.edges.values(), *more]

    @property
    def num_bytes(self) -> int:
        """What it takes."""
        return sum(array.nbytes for array in self.tensors)

    def moved(self, move: Callable[[Tensor], Tensor]) -> "Subgraph":
        """Return the same with what layers read elsewhere; nothing is prepared yet."""
        assert self.looped is None, "what is prepared stays where it is"
        return replace(
            self,
            indptr=move(self.indptr),
            index=move(self.index),
            edges={name: move(column) for name, column in self.edges.items()},
            removed=None if self.removed is None else move(self.removed),
            counts=None if self.counts is None else move(self.counts),
            _inverse={},
        )

    def layer(self, number: int, layers: int, *, looped: bool = False) -> CSR:
        """Return the edges of a layer: rows written are a prefix of the columns, the rows read."""
        hop = layers - 1 - number
        rows = self.reached[min(hop, len(self.reached) - 1)]
        columns = self.reached[min(hop + 1, len(self.reached) - 1)]
        if hop + 1 >= len(self.reached):  # the first layer's sums are known: it needs no edges
            empty = self.indptr.new_zeros(rows + 1)
            return CSR(empty, self.index[:0], columns)
        if looped:
            assert self.looped is not None, "loops were prepared"
            end = self.looped.ends[hop]
            most = None if self.longest is None else self.longest + 1
            indptr, index = self.looped.indptr[: rows + 1], self.looped.index[:end]
            csr = CSR(indptr, index, columns, longest=most)
        else:
            end, weight = self.ends[hop], self.edges.get("edge_weight")
            weight = None if weight is None else weight[:end]
            indptr, index = self.indptr[: rows + 1], self.index[:end]
            csr = CSR(indptr, index, columns, weight, longest=self.longest)
        # Prepared transposes have no weights, and those of all edges or of all with loops.
        back = self.turned[hop] if self.turned and csr.weight is None else None
        is_same = looped == (self.looped is not None)
        return csr if back is None or not is_same else csr.with_transpose(back)

    def degree(self, rows: int, *, looped: bool = False) -> Tensor:
        """Return int64: the in-edges of each of the first rows."""
        if looped:
            assert self.looped is not None, "loops were prepared"
            return self.looped.counts[:rows]
        return self.indptr[: rows + 1].diff() if self.counts is None else self.counts[:rows]

    def at_hand(self, number: int, layers: int) -> AtHand:
        """Return what is known of a layer's edges beside them."""
        rows = self.reached[min(layers - 1 - number, len(self.reached) - 1)]
        looped = None if self.looped is None else self.layer(number, layers, looped=True)
        return AtHand(lambda dtype: self.inverse_count(dtype)[:rows], looped)

    def inverse_count(self, dtype: torch.dtype) -> Tensor:
        """Return [M]: 1 / the in-edges of each row, 1 where there are none; made once."""
        if dtype not in self._inverse:
            count = self.degree(self.reached[-2]).clamp(min=1).double()
            self._inverse[dtype] = count.reciprocal_().to(dtype)
        return self._inverse[dtype]

    def edge_index(self) -> Tensor:
        """Return int64 [2, E], PyG's form: sources and destinations."""
        degree = self.indptr.diff()
        rows = torch.arange(len(degree), device=degree.device)
        each = rows.repeat_interleave(degree, output_size=len(self.index))
        return torch.stack([self.index.long(), each])


@dataclass(eq=False)
class GrowingSubgraph:
    """A sub-graph while its hops are drawn."""

    number: int
    frontier: Tensor
    """Addresses whose in-edges come next."""
    _numbering: Numbering = field(default_factory=Numbering)
    _reached: list[int] = field(default_factory=list)
    _counts: list[Tensor] = field(default_factory=list)
    _index: list[Tensor] = field(default_factory=list)
    _edges: dict[EdgeColumn, list[Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.frontier = self._numbering.add(self.frontier)[1]
        self._reached.append(len(self.frontier))

    def add_hop(self, counts: Tensor, sources: Tensor, edges: dict[EdgeColumn, Tensor]) -> None:
        """Take the in-edges of the frontier, whose new sources are the next one."""
        numbers, self.frontier = self._numbering.add(sources)
        self._reached.append(self._reached[-1] + len(self.frontier))
        self._counts.append(counts)
        self._index.append(numbers)
        for name, column in edges.items():
            self._edges.setdefault(name, []).append(column)

    def finish(self) -> Subgraph:
        """Return the whole."""
        counts = torch.cat([torch.zeros(1, dtype=torch.int64), *self._counts])
        index = self._index or [torch.zeros(0, dtype=torch.int32)]
        ends = tuple(accumulate(len(numbers) for numbers in self._index))
        return Subgraph(
            self.number,
            self._numbering.keys,
            tuple(self._reached),
            counts.cumsum(0),
            torch.cat(index).to(torch.int32),
            {name: torch.cat(pieces) for name, pieces in self._edges.items()},
            ends,
        )
