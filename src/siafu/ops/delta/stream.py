"""Snapshots on a device, one after another, where only what changes travels."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from siafu.errors import PlanError
from siafu.ops.csr.matrix import CSR
from siafu.ops.delta.edges import EdgeDelta, apply_delta, edge_delta
from siafu.ops.delta.walk import Encoder, Walk

Transpose = Literal["none", "same", "sent"]
"""How a snapshot gets its transpose, which gradients of sums need: made when asked for (a sort),
the snapshot itself (symmetric graphs), or kept beside it by deltas of its own."""

Matrices = tuple[CSR, ...]
"""A snapshot, and its transpose where that is sent."""


class DeltaStream(Walk[Matrices]):
    """Snapshots `first` to `first + T - 1` of a dynamic graph on one device."""

    def __init__(
        self,
        snapshots: Iterable[CSR],
        *,
        device: torch.device | str = "cpu",
        transpose: Transpose = "none",
        first: int = 0,
        both_ways: bool = True,
    ) -> None:
        """Encode the deltas between the snapshots, which lie on the CPU, in one pass over them.

        With `both_ways` a walk may also go back in time, for twice the pinned memory.
        """
        super().__init__(device, first)
        self.has_loops = False
        """Whether an edge of any snapshot starts and ends at one node; see `gcn_scales`."""
        self._longest = [0, 0]
        """Most edges of a row of any snapshot, and of any transpose."""
        self._transpose = transpose
        self._base, self._buffer = self._encode(snapshots, both_ways)

    @property
    def base_bytes(self) -> int:
        """Bytes of the first snapshot, which travels whole."""
        return sum(csr.nbytes for csr in self._base)

    def _encode(self, snapshots: Iterable[CSR], both_ways: bool) -> tuple[Matrices, Tensor]:
        """Return the matrices of the first snapshot, and the buffer of all steps."""
        encoder = Encoder()
        base: Matrices = ()
        now: Matrices = ()
        for csr in snapshots:
            then = (csr, csr.transpose()) if self._transpose == "sent" else (csr,)
            if now:
                self._ahead.append(encoder.add(_deltas(now, then)))
            if now and both_ways:
                self._back.append(encoder.add(_deltas(then, now)))
            for place, matrix in enumerate(then):
                most = int(matrix.degree().max()) if matrix.num_rows else 0
                self._longest[place] = max(self._longest[place], most)
            base, now = base or then, then
            self.has_loops = self.has_loops or bool((csr.index == csr.rows()).any())
        if not base:
            raise PlanError(
                "A stream needs a snapshot.", seen="none", fix="give the snapshots in order"
            )
        if self._on_cuda:
            base = tuple(_pinned(csr) for csr in base)
        return base, encoder.join(pinned=self._on_cuda)

    def _sent_base(self) -> Matrices:
        return tuple(csr.to(self.device) for csr in self._base)

    def _made(self, held: Matrices, time: int, deltas: list[EdgeDelta]) -> Matrices:
        return tuple(apply_delta(*pair) for pair in zip(held, deltas, strict=True))

    def _shown(self, held: Matrices) -> CSR:
        known = zip(held, self._longest, strict=False)
        csr, *turned = (replace(matrix, longest=longest) for matrix, longest in known)
        if self._transpose == "none":
            return csr
        return csr.with_transpose(turned[0] if turned else csr)

    def _tensors(self, held: Matrices) -> list[Tensor]:
        return [
            tensor
            for csr in held
            for tensor in (csr.indptr, csr.index, csr.weight)
            if tensor is not None
        ]


def _deltas(now: Matrices, then: Matrices) -> list[EdgeDelta]:
    return [edge_delta(*pair) for pair in zip(now, then, strict=True)]


def _pinned(csr: CSR) -> CSR:
    weight = None if csr.weight is None else csr.weight.pin_memory()
    return CSR(csr.indptr.pin_memory(), csr.index.pin_memory(), csr.num_cols, weight)
