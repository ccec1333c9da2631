"""Rounding rows on their way between ranks: which rows, in which format, by which draws.

The split: `comm` has `Format`, what a row may be written as, and `Coding`, how the rows of one
message are written, since its exchanges and others that round (gradients of weights, input
features) need no more. Here is what only strategies need:

- `assignment` finds the formats of least variance within a budget of bytes;
- `channel` keeps the formats of rows that travel one way in one stage of an exchange, and the rows
  themselves (`comm.KeptRows`) where their changes travel, or they are read an epoch late;
- `book` (`WidthBook`) has the channels of all exchanges of a run, and assigns their formats anew;
- `lot` draws the rows that travel at all, where only some do;
- `exchange` (`Rounding`) numbers the exchanges of an epoch and gives each its codings;
- `strategy.time.rounding` does the same along time.

A new format is a row of the table in `comm/coding.py`, its encoding and decoding in `ops`, and
where it is to be assigned, a member of `assignment.CHOICES`.
"""

from siafu.strategy.rounding.assignment import CHOICES
from siafu.strategy.rounding.book import FIRST_FORMAT, WidthBook, Widths
from siafu.strategy.rounding.channel import Channels, RowChannel, RowForm, RowFormats
from siafu.strategy.rounding.exchange import (
    LEAST_WIDTH,
    Exchange,
    Rounding,
    mean_squares,
    square_sums,
)

__all__ = [
    "CHOICES",
    "FIRST_FORMAT",
    "LEAST_WIDTH",
    "Channels",
    "Exchange",
    "Rounding",
    "RowChannel",
    "RowForm",
    "RowFormats",
    "WidthBook",
    "Widths",
    "mean_squares",
    "square_sums",
]
