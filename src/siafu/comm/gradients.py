"""Gradients of weights, which every rank has a share of, summed over the ranks.

Exactly, or with few bits per entry where rows are rounded anyway: each rank sums a slice of what
all send it, and sends the total back. Draws are keyed, so the sum is right on average, and since
totals are decoded from one message everywhere, all ranks have the same bits.

Shapes: P ranks, R rows of D entries that a slice has.
"""

from functools import lru_cache

import torch
from torch import Tensor

from siafu.comm.bad_rows import looks_later
from siafu.comm.coding import Format
from siafu.comm.halo import start_exchange
from siafu.comm.world import World
from siafu.ops import DrawKey, WireLayout, bad_row, decode, encode

_NAME = "gradients of the weights"
_ROW = 256
"""Entries that share a scale."""
_LEAST_ROUNDED = 1 << 14
"""Fewer entries are summed as they are: one message of little is quicker than two of less."""


def reduce_gradients(
    parameters: list[torch.nn.Parameter],
    world: World,
    rounding: DrawKey | None = None,
    bits: int = 8,
) -> None:
    """Sum the gradients over the ranks, as one process would have them.

    With `rounding` entries travel with so many `bits`. A gradient that only some ranks have counts
    as zero on the others; one that no rank has stays absent, so that weight decay leaves unused
    parameters alone. Frozen ones are passed over.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if world.size == 1 or not trained:
        return
    absent = [place for place, parameter in enumerate(trained) if parameter.grad is None]
    has = trained[0].new_ones(len(trained))
    if absent:
        has[absent] = 0
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    # Whole rows of flags, so that no gradient shares their scale.
    flags = torch.nn.functional.pad(has, (0, -len(has) % _ROW))
    flat = torch.cat([flags if rounding else has, *(grad.reshape(-1) for grad in grads)])
    if rounding is not None and flat.numel() >= _LEAST_ROUNDED:
        form = Format("rounded", bits)
        flat = _rounded_sum(flat, world, rounding, form, flag_rows=len(flags) // _ROW)
    else:
        flat = world.sum_in_place(flat, "gradient")
    pieces = flat[-sum(grad.numel() for grad in grads) :].split([grad.numel() for grad in grads])
    present = [True] * len(trained)
    if absent:  # else what others have changes nothing, and the host need not wait to know it
        present = (flat[: len(trained)] > 0.5).tolist()
    for parameter, is_there, piece in zip(trained, present, pieces, strict=True):
        parameter.grad = piece.view_as(parameter) if is_there else None


def _rounded_sum(
    flat: Tensor, world: World, key: DrawKey, form: Format, *, flag_rows: int
) -> Tensor:
    """Return the sum over the ranks, each entry rounded on its way there and back.

    Flags come first, and are 0 or 1 in the sum as well, however many ranks have them.
    """
    size, rank, length = world.size, world.rank, flat.numel()
    padded = torch.nn.functional.pad(flat, (0, -length % (size * _ROW)))
    slices_PRD = padded.view(size, -1, _ROW)
    rows = slices_PRD.size(1)
    to_all = [rows if peer != rank else 0 for peer in range(size)]
    everyone = [peer for peer in range(size) if peer != rank]
    first = 2 * rank * size * rows
    sent = _encoded(torch.cat([slices_PRD[peer] for peer in everyone]), key, first, world, form)
    pending = start_exchange(sent, tuple(to_all), tuple(to_all), world, "gradient")
    terms = _decoded(pending.wait(world, "summing gradients"), flat.dtype, form).split(rows)
    total_RD = torch.zeros_like(slices_PRD[rank])
    for peer in range(size):  # in one order, whoever sums
        total_RD += slices_PRD[rank] if peer == rank else terms[peer - (peer > rank)]
    total_RD[: max(0, flag_rows - rank * rows)].clamp_(max=1.0)
    mine = _encoded(total_RD, key, first + size * rows, world, form)
    pending = start_exchange(
        mine.repeat(size - 1, 1), tuple(to_all), tuple(to_all), world, "gradient"
    )
    theirs = pending.wait(world, "sharing gradients").split(rows)
    whole = [mine if peer == rank else theirs[peer - (peer > rank)] for peer in range(size)]
    return _decoded(torch.cat(whole), flat.dtype, form).view(-1)[:length]


@lru_cache(maxsize=8)
def _layout(rows: int, dtype: torch.dtype, device: torch.device, form: Format) -> WireLayout:
    """Return the same layout in every step: making one has the host wait for the device."""
    return WireLayout.build(form.codes(rows, device), _ROW, dtype)


def _encoded(rows_RD: Tensor, key: DrawKey, first: int, world: World, form: Format) -> Tensor:
    """Return a message of bytes per row; `first` numbers the draws."""
    ids_R = torch.arange(first, first + len(rows_RD), device=rows_RD.device)
    layout = _layout(len(rows_RD), rows_RD.dtype, rows_RD.device, form)
    encoded = encode(rows_RD, None, layout, key, ids_R, check=False)
    if looks_later(encoded):
        world.bad_rows.note(encoded, lambda place: _NAME)
    elif encoded.first_bad() is not None:
        raise bad_row(_NAME)
    return encoded.payload.view(len(rows_RD), -1)


def _decoded(payload: Tensor, dtype: torch.dtype, form: Format) -> Tensor:
    layout = _layout(len(payload), dtype, payload.device, form)
    return decode(payload.reshape(-1).contiguous(), layout)
