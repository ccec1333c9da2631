"""Small numbers for the nodes of several sub-graphs at once, each in its order of first appearance.

What `Numbering` gives one sub-graph after another, in whole-tensor operations for a device: a table
with a place for each node of each sub-graph, where the earliest of equal keys leaves its mark.

Shapes: G sub-graphs, K keys there may be, S keys added, U new ones.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from siafu.errors import PlanError

_FREE = 2**31 - 1
_FIRST_MARK = 2**30
"""Numbers are below this, marks of keys that are being added from here on."""


@dataclass(frozen=True, eq=False)
class NewKeys:
    """Keys that were not met before, in the order of their numbers, sub-graph after sub-graph."""

    keys_U: Tensor
    group_U: Tensor
    bounds: list[int]
    """Where the new keys of each sub-graph begin, and the end of the last: G + 1 of them."""
    added: list[int]
    """The same of all keys that were added."""


class GroupNumbering:
    """Numbers 0, 1, 2 ... of keys below `num_keys`, for `num_groups` sub-graphs side by side."""

    def __init__(self, num_groups: int, num_keys: int, device: torch.device) -> None:
        self._num_keys = num_keys
        self._table = torch.full((num_groups * num_keys,), _FREE, dtype=torch.int32, device=device)
        self._groups = torch.arange(num_groups + 1, device=device)
        self._known_G = torch.zeros(num_groups, dtype=torch.int64, device=device)
        self._slots: list[Tensor] = []

    def add(self, keys_S: Tensor, group_S: Tensor) -> tuple[Tensor, NewKeys]:
        """Return int32 numbers_S and the new keys; `group_S` never falls."""
        if len(keys_S) >= _FIRST_MARK:
            raise PlanError(
                "Sub-graphs that are numbered together have too many edges.",
                seen=f"{len(keys_S)} at one hop",
                fix="use a smaller --macrobatch or --batch-size",
            )
        device, table = keys_S.device, self._table
        slot_S = group_S * self._num_keys + keys_S
        mark_S = torch.arange(
            _FIRST_MARK, _FIRST_MARK + len(keys_S), dtype=torch.int32, device=device
        )
        table.scatter_reduce_(0, slot_S, mark_S, "amin")
        first_U = (table.index_select(0, slot_S) == mark_S).nonzero().squeeze(1)
        slot_U, group_U = slot_S.index_select(0, first_U), group_S.index_select(0, first_U)
        bounds = torch.searchsorted(group_U, self._groups)
        before_G = self._known_G - bounds[:-1]
        number_U = torch.arange(len(first_U), device=device) + before_G.index_select(0, group_U)
        table.index_copy_(0, slot_U, number_U.to(torch.int32))
        self._known_G = self._known_G + bounds.diff()
        self._slots.append(slot_U)
        added = torch.searchsorted(group_S, self._groups)
        new = NewKeys(
            keys_S.index_select(0, first_U), group_U, *torch.stack([bounds, added]).tolist()
        )
        return table.index_select(0, slot_S), new

    def clear(self) -> None:
        """Forget all keys, at the cost of those that were added."""
        for slot_U in self._slots:
            self._table.index_fill_(0, slot_U, _FREE)
        self._slots = []
        self._known_G = torch.zeros_like(self._known_G)
