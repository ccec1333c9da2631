"""Where in the sequence of random draws a run is, and the places in a model that draw."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from siafu.ops import DrawKey, EdgeDraw, HeldKey

_FIRST_MESSAGE_SITE = 1 << 17
"""Streams of draws for users' message functions, apart from those of layers and foreign models."""


@dataclass(frozen=True, slots=True)
class Dropout:
    """One place in a model where values are dropped: how many, and which stream of draws."""

    p: float
    site: int
    first_head: int = 0
    """Of attention weights: which head is the first, where others are somewhere else."""
    relu: bool = False
    """Values are those of max(x, 0), in the same pass, dropped or not."""
    departs: bool = False
    """Nothing reads the rows before `Neighbours.depart`, so they may be dropped there."""


@dataclass(slots=True)
class HeldKeys:
    """Keys of the places that a recorded step draws at, on its device."""

    words_S2: Tensor
    """int64, with room for as many sites as any model has."""
    sites: list[int] = field(default_factory=list)

    def of(self, site: int) -> HeldKey:
        """Return where the key of a site lies."""
        if site not in self.sites:
            self.sites.append(site)
        place = self.sites.index(site)
        assert place < len(self.words_S2), "there is room for every site"
        return HeldKey(self.words_S2[place])

    def words(self, seed: int, epoch: int) -> Tensor:
        """Return what `words_S2` begins with in an epoch, on the host."""
        return torch.tensor([DrawKey(seed, epoch, site).held_words() for site in self.sites])


@dataclass(slots=True)
class Draws:
    """Where in the sequence of random draws a run is; the engine moves `epoch` on."""

    seed: int = 0
    epoch: int = 0
    training: bool = True
    held: HeldKeys | None = None
    """While a step is recorded, whose keys are read when it is replayed."""
    layer: int | None = None
    """The layer of a built-in model that is run, for reports."""
    _sites_taken: tuple[int, int] = field(default=(-1, 0), repr=False)
    """The epoch, and how many message sites it has used."""
    _exchanges_taken: tuple[int, int] = field(default=(-1, 0), repr=False)
    """The epoch, and how many exchanges it has rounded."""

    def key(self, site: int) -> DrawKey:
        """Return the key of this epoch's draws for one place in the model."""
        assert self.held is None, "what is recorded asks for keys that are held"
        return DrawKey(seed=self.seed, epoch=self.epoch, purpose=site)

    def any_key(self, site: int) -> DrawKey | HeldKey:
        """Return the same where a recorded step may draw: of values that are dropped."""
        return self.key(site) if self.held is None else self.held.of(site)

    def on_edges(self, dropout: Dropout, ids_C: Tensor, ids_N: Tensor) -> EdgeDraw | None:
        """Return this epoch's dropout on edges; none while evaluating."""
        if not self.training or dropout.p == 0.0:
            return None
        return EdgeDraw(self.key(dropout.site), dropout.p, ids_C, ids_N, dropout.first_head)

    def take_sites(self, count: int) -> int:
        """Return the first of `count` sites that nothing else in this epoch draws at."""
        epoch, used = self._sites_taken
        used = used if epoch == self.epoch else 0
        self._sites_taken = self.epoch, used + count
        return _FIRST_MESSAGE_SITE + used

    def take_exchange(self) -> int:
        """Return the number of the next exchange whose rows are rounded, from 0 in every epoch."""
        epoch, used = self._exchanges_taken
        used = used if epoch == self.epoch else 0
        self._exchanges_taken = self.epoch, used + 1
        return used
