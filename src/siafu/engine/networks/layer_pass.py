"""Inference layer by layer over all nodes, or over those that some answers depend on.

Shapes: N owned rows, M rows of a piece, R rows asked for, O classes.
"""

from dataclasses import replace
from functools import partial
from importlib.metadata import version

import torch
from torch import Tensor

from siafu.comm import tell
from siafu.engine.networks.inferred import Inferred, OwnRows
from siafu.engine.networks.sampled_memory import layer_room, wide_rows
from siafu.minibatch import (
    Columns,
    Feed,
    Flow,
    Keeper,
    KeptRows,
    Room,
    Subgraph,
    WideRows,
    digest_of,
    first_row_of,
    map_rows,
)
from siafu.nn import GNN, Draws, MappedRows, Rows
from siafu.nn.precision import Precision, computing
from siafu.ops import sum_type
from siafu.shard import HeldRows, PickedRows, WrittenRows, new_rows


class LayerPass:
    """A built-in model's layers, one after another."""

    def __init__(
        self,
        module: GNN,
        feed: Feed,
        draws: Draws,
        precision: Precision,
        keeper: Keeper | None = None,
    ) -> None:
        """`keeper` has rows that go to files outlast the process."""
        self._keeper = keeper
        self.module, self.feed, self._draws, self._precision = module, feed, draws, precision
        self._device = feed.shard.world.device

    def run(
        self, before: Inferred, *, embed: bool, flow: Flow | None = None
    ) -> WrittenRows | PickedRows:
        """Return logits, or the rows before the last layer; all ranks call this together.

        It goes on from what these weights gave `before`, and leaves there what comes after.
        """
        module, served = self.module, self.feed.whole.served.node_columns
        facts = ("facts",) if self.feed.needs.facts else ()
        num_layers = len(module.norms) if embed and len(module.norms) else module.spec.layers
        first, hidden, goes_on = before.layers, before.hidden, embed and before.logits is None
        # Jumping knowledge reads the rows of all layers, others the last one's.
        keeps_all = module.readout is not None
        count = num_layers + 1 if keeps_all else 2
        # The last layer's maps are applied to rows as they are made, where that is narrower.
        ahead = flow is None and not embed and module.spec.maps_ahead
        room = layer_room(self.feed, module.spec, num_layers, count, flow, ahead=ahead)
        own = OwnRows(self.feed.shard.num_owned, self.feed.whole, room) if ahead else None
        key = before.key if hidden else self._key(room, flow, ahead=ahead)
        if hidden:
            served["hidden"] = hidden[-1] if own is None else self._mapped(hidden[-1], own, room)
        for number in range(first, num_layers):
            name = self.feed.rows_name if number == 0 else "hidden"
            maps = own if number >= num_layers - 2 else None
            wide = wide_rows(self.feed, module.spec, number)
            if ahead and number == num_layers - 1:
                wide = WideRows(module.spec.out_width, of_read=False)  # of rows mapped before
            kept = self._kept(number, key)
            if own is not None and number == num_layers - 2:
                own.kept = kept
            made = map_rows(
                self.feed.whole if flow is None else flow.relays[number],
                (name, "id", *facts),
                partial(self._one_layer, number, maps),
                replace(room, kept=kept),
                wide=wide,
                number=number,
                only=None if flow is None else flow.some(number),
            )
            key = key if kept is None else kept.key
            served["hidden"] = made
            hidden = [*hidden, made] if keeps_all else [made]
        served.pop("hidden", None)
        before.hidden, before.layers = (hidden, num_layers) if goes_on else ([], 0)
        before.key = key
        if keeps_all and not embed:
            return self._read_out(hidden, room, None if flow is None else flow.rows[-1])
        last = hidden[-1]
        return last.to(torch.device("cpu")) if isinstance(last, HeldRows | PickedRows) else last

    def _kept(self, number: int, key: str) -> KeptRows | None:
        """Return the files of a layer, which depend on all that went into those before it."""
        return self._keeper.layer(number, key) if key and self._keeper is not None else None

    def _key(self, room: Room, flow: Flow | None, *, ahead: bool) -> str:
        """Return a hash of what this rank computes from and how; none where nothing is kept.

        Every rank calls this together: all keep rows, or none does.
        """
        feed, shard, keeper = self.feed, self.feed.shard, self._keeper
        if keeper is None or not room.on_disk or flow is not None:
            return ""
        if not all(row[0] for row in tell([float(keeper.holds())], feed.channel, "control")):
            return ""
        world, module = shard.world, self.module
        on = (version("siafu"), torch.__version__, torch.get_num_threads(), str(self._device))
        how = (module.spec, feed.needs, self._precision, self._draws.seed, ahead)
        told = repr((*on, *how, shard.fingerprint, world.rank, world.size))
        tensors = [shard.row_ids, shard.csr.indptr, *module.state_dict().values()]
        return digest_of(told.encode(), *map(_bytes_of, tensors))

    def _mapped(self, hidden: WrittenRows | PickedRows, own: OwnRows, room: Room) -> WrittenRows:
        """Return what the last layer gathers of hidden rows that were kept as they are."""
        assert not isinstance(hidden, PickedRows), "of all nodes"
        count, width = hidden.shape
        out, step = OwnRows(count, self.feed.whole, room), room.rows_at_once(4 * width)
        for low in range(0, max(1, count), step):
            rows = hidden.slice(low, min(low + step, count)).to(self._device)
            with computing(self._precision, self._device):
                mapped = self.module.map_ahead(rows)
            out.write(low, mapped.mapped)
            own.write(low, mapped.own)
        return out.rows

    def _read_out(
        self, hidden: list[WrittenRows | PickedRows], room: Room, only: Tensor | None
    ) -> WrittenRows | PickedRows:
        """Return what jumping knowledge makes of the rows of all layers, or of some of them."""
        num_owned = self.feed.shard.num_owned
        rows_R = torch.arange(num_owned) if only is None else only
        shape, dtype = (len(rows_R), self.module.spec.out_width), sum_type(hidden[0].dtype)
        out = new_rows(shape, dtype, on_disk=room.on_disk)
        step = room.rows_at_once(4 * sum(layer.shape[1] for layer in hidden) + shape[1])
        for low in range(0, len(rows_R), step):
            some = rows_R[low : low + step]
            high = low + len(some)
            picked = (
                layer.read(some) if isinstance(layer, PickedRows) else layer.slice(low, high)
                for layer in hidden
            )
            with computing(self._precision, self._device):
                read_out = self.module.read_out([rows.to(self._device) for rows in picked])
            out.write(low, read_out.cpu())
        return out if only is None else PickedRows(rows_R, out, num_owned)

    def _one_layer(
        self, number: int, own: OwnRows | None, piece: Subgraph, found: Columns
    ) -> Tensor:
        """Return a layer's rows; `own` where those of the last but one are mapped ahead."""
        columns, is_last = on_device(self.feed, found), number == self.module.spec.layers - 1
        x: Rows = columns["hidden"] if number else self.feed.input_of(columns)
        if own is not None and is_last:
            assert isinstance(x, Tensor)
            x = MappedRows(x, own.read(first_row_of(piece), piece.num_seeds, x.device))
        neighbours = self.feed.neighbours(piece, columns, 0, 1)
        with computing(self._precision, self._device):
            out = self.module.run_layer(number, x, neighbours, self._draws)
            if own is not None and not is_last:
                mapped = self.module.map_ahead(out)
                own.write(first_row_of(piece), mapped.own)
                return mapped.mapped
        return out.to(sum_type(out.dtype)) if is_last else out


def _bytes_of(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    # One without rows may have strides that no view is made of.
    return flat.view(torch.uint8).numpy().data if len(flat) else memoryview(b"")


def on_device(feed: Feed, columns: Columns) -> Columns:
    """Return the columns as numbers where they are computed with."""
    device = feed.shard.world.device
    return {name: rows.to(device) for name, rows in feed.decoded(columns).items()}
