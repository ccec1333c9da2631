"""Rounding what travels along time while a dynamic model is trained: rows, and their gradients.

A draw depends on seed, epoch, part of the model, snapshot, node and column; so a block that is
run forward twice, for its borders and for its gradients, sees the same rows both times, and the cut
into blocks changes no draw. Gradients draw by block and returning rank as well: a band's rows get
several. Widths change between epochs alone.

All rows of all blocks of all snapshots travel once per epoch, T N of them, so nothing is kept for
each row: ids, formats and places in the message are made anew for every exchange. Where formats are
assigned, rows of one snapshot and neighbouring nodes share one, `GROUP_ROWS` of them, so that
what is kept of them from epoch to epoch is two bytes per row, however wide it is.

States that are handed on travel whole. They are few, and one carries its error through all
snapshots to come; so do the summaries of EvolveGCN, which the weights of all nodes depend on.

Shapes: K groups of rows, N nodes of this rank.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from siafu.comm import MakeCodings, World, even_counts
from siafu.errors import ConfigError
from siafu.nn import BandedMean, Draws, TemporalLayer
from siafu.partitioning import TimeBlock, TimePlan
from siafu.strategy.rounding import (
    LEAST_WIDTH,
    Channels,
    RowChannel,
    RowForm,
    RowFormats,
    WidthBook,
)
from siafu.strategy.strategy import Exactness
from siafu.strategy.time.banded import Pieces, halo_steps, pieces_of, used_by
from siafu.strategy.time.exchanges import CodingsOf, exactly
from siafu.strategy.time.strategy import TimeStrategy

_FIRST_PURPOSE = 1 << 60
"""Draws along time, apart from those of layers and of exchanges inside a snapshot."""
_DIRECTIONS = 1 << 40
"""Purposes of one exchange: the way out, and the way home from each rank in each block."""

GROUP_ROWS = 16
"""Rows of a snapshot that share a format."""


@dataclass(frozen=True, slots=True, eq=False)
class RowIds:
    """The numbers in the whole graph of a rank's nodes: what draws depend on."""

    nodes_N: Tensor
    num_all: int
    """Nodes of the whole graph."""

    def of(self, patch: "Patch") -> Tensor:
        """Return an id for each row of a patch, no two of any snapshots or nodes alike."""
        steps_t = torch.tensor(patch.steps, dtype=torch.int64, device=self.nodes_N.device)
        nodes_n = self.nodes_N[patch.first : patch.first + patch.nodes]
        return (steps_t[:, None] * self.num_all + nodes_n).flatten()

    def name(self, row_id: int) -> str:
        """Return what to call a row with such an id."""
        step, node = divmod(row_id, self.num_all)
        return f"node {node} (its number in the store), snapshot {step}"


@dataclass(frozen=True, slots=True)
class Patch:
    """Rows between this rank and one other: some snapshots of some neighbouring nodes."""

    steps: tuple[int, ...] = ()
    first: int = 0
    """The first node, by its place on this rank."""
    nodes: int = 0
    squares: tuple[float, ...] = ()
    """Sums of squared coefficients that rows of each snapshot are used with; none: 1."""

    @property
    def num_rows(self) -> int:
        """Rows of the patch, snapshot after snapshot."""
        return len(self.steps) * self.nodes

    def groups(self) -> Tensor:
        """Return rows_K, how many rows share a format, snapshot after snapshot."""
        cuts = torch.arange(0, self.nodes + GROUP_ROWS, GROUP_ROWS).clamp(max=self.nodes)
        return cuts.diff().repeat(len(self.steps))

    def group_squares(self) -> Tensor:
        """Return for each group how its rows are used."""
        each = torch.tensor(self.squares or (1.0,) * len(self.steps), dtype=torch.float64)
        return each.repeat_interleave(-(-self.nodes // GROUP_ROWS))


Patches = list[Patch]
TwoWay = tuple[Patches, Patches]
"""What this rank sends to each other, and what it receives."""


@dataclass(frozen=True, slots=True)
class _Route:
    """One tensor of one part of the model that travels in every block."""

    number: int
    name: str
    width: int
    patches_of: Callable[[TimeBlock], TwoWay]


class TimeRounding:
    """Rounds the rows of one runner while it trains; evaluation is exact."""

    def __init__(
        self, strategy: TimeStrategy, plan: TimePlan, world: World, draws: Draws, ids: RowIds
    ) -> None:
        self._rounding, self._plan, self._world = strategy.rounding, plan, world
        self._draws, self._ids = draws, ids
        self.book = WidthBook(strategy.rounding, world, draws.seed)
        self._routes: dict[int, _Route] = {}
        self._channels: dict[int, Channels] = {}
        self._trains = False

    @property
    def rounded(self) -> list[str]:
        """What is rounded while training, by part of the model."""
        return [route.name for route in self._routes.values() if self._world.size > 1]

    @property
    def exactness(self) -> Exactness | None:
        """What rounding makes of the run; None: nothing is rounded."""
        return self._rounding.exactness if self.rounded else None

    def begin(self, dtype: torch.dtype, *, training: bool) -> None:
        """Begin a pass over the blocks; all ranks call this together."""
        self._trains = training and bool(self.rounded)
        if self._trains:
            for route in self._routes.values():
                make = partial(self._make, route, dtype)
                rows = (), route.width, dtype
                self._channels[route.number] = self.book.channels(route.number, rows, make)
            self.book.begin_epoch(self._draws.epoch)

    def end(self) -> None:
        """End a training step; where a period ends, widths are assigned beside what follows."""
        if self._trains:
            self.book.end_epoch(self._draws.epoch)
        self._trains = False

    def dealt(self, number: int, part: TemporalLayer) -> tuple[CodingsOf, CodingsOf]:
        """Return how rows are rounded that are dealt out by node, and on their way back."""

        def out(block: TimeBlock) -> TwoWay:
            return _dealt_out(block, self._world, len(self._ids.nodes_N))

        def back(block: TimeBlock) -> TwoWay:
            sent, received = out(block)
            return received, sent

        there = _Route(2 * number, f"part {number} to nodes", part.in_width, out)
        home = _Route(2 * number + 1, f"part {number} to snapshots", part.out_width, back)
        return self._codings(there), self._codings(home)

    def fetched(self, number: int, part: BandedMean) -> CodingsOf:
        """Return how the snapshots are rounded that a band reaches back to."""

        def patches_of(block: TimeBlock) -> TwoWay:
            return _reached(block, self._plan, self._world, part.band, len(self._ids.nodes_N))

        return self._codings(_Route(2 * number, f"part {number} band", part.in_width, patches_of))

    def forget(self, number: int) -> None:
        """Round nothing of a part of the model any more, until it is asked for again."""
        for route in (2 * number, 2 * number + 1):
            self._routes.pop(route, None)

    def _codings(self, route: _Route) -> CodingsOf:
        if self._rounding.wire == 32 or route.width < LEAST_WIDTH:
            return exactly
        self._routes[route.number] = route
        return partial(self._codings_of, route.number)

    def _codings_of(self, number: int, block: TimeBlock) -> MakeCodings | None:
        if not self._trains:
            return None
        channels, purpose = self._channels[number], _FIRST_PURPOSE + number * _DIRECTIONS
        home = purpose + 1 + block.number * self._world.size + self._world.rank
        return (
            partial(channels.there[block.number].coding, self._draws.key(purpose)),
            partial(channels.back[block.number].coding, self._draws.key(home)),
        )

    def _make(self, route: _Route, dtype: torch.dtype) -> Channels:
        """Return the channels of an exchange, a pair for each training block."""
        form = RowForm(
            width=route.width,
            dtype=dtype,
            device=self._world.device,
            format=self.book.first_format,
            assigned=self._rounding.assigns_widths,
        )
        pairs = [route.patches_of(block) for block in self._plan.blocks[: self._plan.num_train]]
        there = tuple(self._channel(form, *pair, "row") for pair in pairs)
        back = tuple(
            self._channel(form, _plain(received), sent, "gradient") for sent, received in pairs
        )
        return Channels((), route.width, dtype, there, back, route.name)

    def _channel(self, form: RowForm, sent: Patches, received: Patches, what: str) -> RowChannel:
        """Return a channel that keeps nothing for each row; `what` rows are, for errors."""

        def ids() -> Tensor:
            return torch.cat([self._ids.of(patch) for patch in sent])

        return RowChannel(
            form,
            _formats_of(sent, form),
            _formats_of(received, form),
            ids=ids,
            squares=lambda: torch.cat([patch.group_squares() for patch in sent]),
            name_row=lambda place: f"{what} of {self._ids.name(int(ids()[place]))}",
        )


def _formats_of(patches: Patches, form: RowForm) -> RowFormats:
    some = {rank: patch for rank, patch in enumerate(patches) if patch.num_rows}
    rows = {rank: patch.num_rows for rank, patch in some.items()}
    groups = {rank: patch.groups() for rank, patch in some.items() if form.assigned}
    return RowFormats(rows, form, groups)


def _plain(patches: Patches) -> Patches:
    """Return patches of gradients, each of which counts once."""
    return [Patch(patch.steps, patch.first, patch.nodes) for patch in patches]


def _dealt_out(block: TimeBlock, world: World, num_nodes: int) -> TwoWay:
    counts = even_counts(num_nodes, world.size)
    first = [sum(counts[:rank]) for rank in range(world.size)]
    mine = world.rank
    sent, received = [Patch()] * world.size, [Patch()] * world.size
    for rank in range(world.size):
        if rank != mine:
            sent[rank] = Patch(tuple(block.owned(mine)), first[rank], counts[rank])
            received[rank] = Patch(tuple(block.owned(rank)), first[mine], counts[mine])
    return sent, received


def _reached(block: TimeBlock, plan: TimePlan, world: World, band: int, num_nodes: int) -> TwoWay:
    def between(owner: int, reader: int) -> Patch:
        reach = halo_steps(block, reader, band) if owner != reader else range(0)
        steps = [step for step in reach if plan.owner(step) == owner]
        pieces = pieces_of(steps, block.owned(reader), band)
        squares = tuple(piece_squares(pieces, block.owned(reader), band))
        # A sum has the id of its first snapshot.
        firsts = tuple(piece.start for piece in pieces)
        return Patch(firsts, 0, num_nodes if firsts else 0, squares)

    ranks = range(world.size)
    sent = [between(world.rank, rank) for rank in ranks]
    return sent, [between(rank, world.rank) for rank in ranks]


def piece_squares(pieces: Pieces, readers: range, band: int) -> list[float]:
    """Return the sum of squares of what each piece counts in the means of some later snapshots."""
    squares = [0.0] * len(pieces)
    for reader in readers:
        for number in used_by(reader, pieces, band):
            squares[number] += min(band, reader + 1) ** -2.0
    return squares


def check_rounding(run: Iterable[nn.Module], strategy: TimeStrategy) -> None:
    """Raise where rows are to be rounded and no part that is run has any that could be."""
    if strategy.rounding.wire == 32:
        return
    parts = [part for part in run if isinstance(part, TemporalLayer)]
    widest = max((max(part.in_width, part.out_width) for part in parts), default=0)
    why = None
    if not parts:
        why = "no rows of nodes travel, only summaries if anything, and those whole"
    elif strategy.exchange == "wavefront":
        why = "states are handed on whole, since an error would stay with them"
    elif widest < LEAST_WIDTH:
        why = f"rows have {widest} columns at most; those below {LEAST_WIDTH} travel whole"
    if why is not None:
        raise ConfigError(
            "There is nothing to round along time.",
            seen=f"--wire {strategy.rounding.wire} with --time-exchange {strategy.exchange}: {why}",
            fix="leave --wire out"
            + (", or use --time-exchange all-to-all" if parts and widest >= LEAST_WIDTH else ""),
        )
