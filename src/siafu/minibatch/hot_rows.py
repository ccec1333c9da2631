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
        chosen = first[:capacity].sort().values
        self._addresses_K, self._slots_K = chosen, torch.arange(len(chosen))
        self._rows = fetch(chosen)
        self._score_K = torch.ones(len(chosen))
        self.hits = self.misses = 0

    @property
    def num_kept(self) -> int:
        """K."""
        return len(self._addresses_K)

    def get(self, addresses_U: Tensor, fetch: Fetch) -> dict[str, Tensor]:
        """Return the rows of these addresses, which rise; every rank calls this together."""
        place_U = torch.searchsorted(self._addresses_K, addresses_U)
        place_U.clamp_(max=max(0, self.num_kept - 1))
        known_U = torch.zeros(len(addresses_U), dtype=torch.bool)
        if self.num_kept:
            known_U = self._addresses_K[place_U] == addresses_U
        slots = self._slots_K[place_U[known_U]]
        missing = addresses_U[~known_U]
        fetched = fetch(missing)
        self.hits += len(slots)
        self.misses += len(missing)
        found = {}
        for name, rows in fetched.items():
            found[name] = rows.new_empty(len(addresses_U), *rows.shape[1:])
            found[name][known_U] = self._rows[name][slots]
            found[name][~known_U] = rows
        self._score_K *= _FADING
        self._score_K[slots] += 1
        self._learn(missing, fetched)
        return found

    def _learn(self, addresses: Tensor, rows: dict[str, Tensor]) -> None:
        """Keep new rows in free places, then in those whose score is lower than theirs."""
        free = min(self.capacity - self.num_kept, len(addresses))
        if free:
            self._rows = {n: torch.cat([old, rows[n][:free]]) for n, old in self._rows.items()}
            self._score_K = torch.cat([self._score_K, torch.ones(free)])
        kept = torch.empty(self.num_kept + free, dtype=torch.int64)
        kept[self._slots_K] = self._addresses_K
        kept[self.num_kept :] = addresses[:free]
        weak = (self._score_K < 1).nonzero().squeeze(1)
        weak = weak[self._score_K[weak].argsort(stable=True)][: len(addresses) - free]
        newcomers = slice(free, free + len(weak))
        for name, old in self._rows.items():
            old[weak] = rows[name][newcomers]
        kept[weak], self._score_K[weak] = addresses[newcomers], 1.0
        self._addresses_K, self._slots_K = kept.sort()
