"""Rows that intervals write and gathers read, stamped with the epoch they are of.

One thread writes and reads, so no row is ever seen half written. Where several epochs are in
flight, each has a view of its own: for every group the newest rows that are not newer than it.

Shapes: C columns, D columns of a row, G groups.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from siafu.graph import Array
from siafu.pipeline.sides import Side


@dataclass(eq=False, slots=True)
class View:
    """The rows as one epoch sees them."""

    epoch: int
    rows: tuple[Tensor, ...]
    """Each [C, D]."""
    stamps_G: Array
    """The epoch of each group's rows; 0 before the first."""


class Channel:
    """What one layer sends in one direction."""

    def __init__(
        self, side: Side, widths: list[int], dtype: torch.dtype, *, in_flight: int
    ) -> None:
        """`in_flight` is the most epochs that are worked on at once."""
        self.side, self.widths = side, widths
        self._dtype, self._in_flight = dtype, in_flight
        self._views: list[View] = []

    def view(self, epoch: int, oldest: int) -> View:
        """Return the rows as `epoch` sees them; views before `oldest` are no longer read."""
        for view in self._views:
            if view.epoch == epoch:
                return view
        below = [view for view in self._views if view.epoch < epoch]
        newest = max(below, key=lambda view: view.epoch, default=None)
        made = min(below, key=lambda view: view.epoch, default=None)
        if made is None or made.epoch >= oldest:
            assert len(self._views) < self._in_flight, "an epoch began too early"
            made = self._empty()
            self._views.append(made)
        made.epoch = epoch
        if newest is not None and made is not newest:
            for into, rows in zip(made.rows, newest.rows, strict=True):
                into.copy_(rows)
            made.stamps_G[:] = newest.stamps_G
        return made

    def _empty(self) -> View:
        columns = self.side.csr.num_cols
        rows = tuple(torch.zeros(columns, width, dtype=self._dtype) for width in self.widths)
        return View(0, rows, np.zeros(len(self.side.group_rows), dtype=np.int64))

    def write(self, epoch: int, group: int, rows: Tensor, oldest: int) -> None:
        """Take in a group's rows of an epoch, all tensors side by side."""
        self.view(epoch, oldest)
        for view in self._views:
            if view.epoch >= epoch and view.stamps_G[group] < epoch:
                for into, part in zip(view.rows, rows.split(self.widths, dim=1), strict=True):
                    into[self.side.places[group]] = part
                view.stamps_G[group] = epoch

    def is_ready(self, interval: int, epoch: int, oldest: int, most_age: int) -> bool:
        """True when no row that the interval reads is older than `most_age` epochs."""
        stamps = self.view(epoch, oldest).stamps_G[self.side.needs[interval]]
        return not len(stamps) or bool(stamps.min() >= max(1, epoch - most_age))

    def read(
        self, interval: int, epoch: int, oldest: int, ages: Counter[int]
    ) -> tuple[Tensor, ...]:
        """Return the tensors of the channel, a row for each column; count rows by their age."""
        view, needs = self.view(epoch, oldest), self.side.needs[interval]
        for age, rows in zip(
            (epoch - view.stamps_G[needs]).tolist(),
            self.side.group_rows[needs].tolist(),
            strict=True,
        ):
            ages[age] += rows
        return view.rows

    def stamps(self, interval: int, epoch: int, oldest: int) -> bytes:
        """Return the stamps of what an interval would read now, to tell a change by."""
        return self.view(epoch, oldest).stamps_G[self.side.needs[interval]].tobytes()
