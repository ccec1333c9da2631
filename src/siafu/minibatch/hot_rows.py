"""Rows of other ranks that stay here from one macrobatch to the next, within a budget.

The start has the halo rows that most edges here read; after that a row's score is the number of
macrobatches that used it, old ones counting less, and the lowest scores make room for higher ones.
What is kept changes how many bytes travel, never what is computed.

Shapes: U distinct vertices asked for, K vertices kept.
"""

from collections.abc import Callable

import torch
from torch import Tensor

_FADING = 0.9
"""What a use counts for one macrobatch later."""

Fetch = Callable[[Tensor], dict[str, Tensor]]


class HotRows:
    """A cache of rows by address; `get` asks the others for what it has not."""

    def __init__(self, capacity: int, first: Tensor, fetch: Fetch) -> None:
        """`first` are the addresses to start with, the best first; all ranks call together."""
        self.capacity = capacity
        self.hits = self.misses = 0
        self._kept_K = first[:capacity].sort().values
        fetched = fetch(self._kept_K)
        # All the room at once: pages of it that stay empty cost nothing.
        self._rows = {
            name: rows.new_empty(capacity, *rows.shape[1:]) for name, rows in fetched.items()
        }
        for name, rows in fetched.items():
            self._rows[name][: self.num_kept] = rows
        self._score_K = torch.ones(self.num_kept)
        self._sorted_K, self._slots_K = self._kept_K.sort()

    @property
    def num_kept(self) -> int:
        """K."""
        return len(self._kept_K)

    @property
    def free_bytes(self) -> int:
        """What rows that are kept later will take."""
        rows = (kept[: self.capacity - self.num_kept] for kept in self._rows.values())
        return sum(part.nbytes for part in rows)

    def get(self, addresses_U: Tensor, fetch: Fetch) -> dict[str, Tensor]:
        """Return the rows of these addresses, which rise; every rank calls this together."""
        known, slots = self._known(addresses_U)
        is_missing_U = torch.ones(len(addresses_U), dtype=torch.bool)
        is_missing_U[known] = False
        missing = is_missing_U.nonzero().squeeze(1)
        fetched = fetch(addresses_U[missing])
        self.hits += len(slots)
        self.misses += len(missing)
        found = {}
        for name, rows in fetched.items():
            out = rows.new_empty(len(addresses_U), *rows.shape[1:])
            out.index_copy_(0, known, self._rows[name].index_select(0, slots))
            found[name] = out.index_copy_(0, missing, rows)
        self._score_K *= _FADING
        self._score_K[slots] += 1
        self._learn(addresses_U[missing], fetched)
        return found

    def _known(self, addresses_U: Tensor) -> tuple[Tensor, Tensor]:
        """Return which of the addresses are kept, and where."""
        if not self.num_kept:
            nothing = addresses_U[:0]
            return nothing, nothing
        place_U = torch.searchsorted(self._sorted_K, addresses_U).clamp_(max=self.num_kept - 1)
        known = (self._sorted_K[place_U] == addresses_U).nonzero().squeeze(1)
        return known, self._slots_K[place_U[known]]

    def _learn(self, addresses: Tensor, rows: dict[str, Tensor]) -> None:
        """Keep new rows in free places, then in those whose score is lower than theirs."""
        free = min(self.capacity - self.num_kept, len(addresses))
        weak = (self._score_K < 1).nonzero().squeeze(1)
        weak = weak[self._score_K[weak].argsort(stable=True)][: len(addresses) - free]
        slots = torch.cat([torch.arange(self.num_kept, self.num_kept + free), weak])
        if not len(slots):
            return
        for name, kept in self._rows.items():
            kept.index_copy_(0, slots, rows[name][: len(slots)])
        self._score_K = torch.cat([self._score_K, torch.ones(free)])
        self._kept_K = torch.cat([self._kept_K, addresses[:free]])
        self._score_K[weak], self._kept_K[weak] = 1.0, addresses[free : len(slots)]
        self._sorted_K, self._slots_K = self._kept_K.sort()
