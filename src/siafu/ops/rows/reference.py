"""Gathering rows in plain torch: the definition. Shapes: as in `rows.gather`."""

from torch import Tensor


def gather_into(
    table_NW: Tensor,
    rows_R: Tensor,
    slot_N: Tensor | None,
    copies_KW: Tensor | None,
    out_RW: Tensor,
) -> None:
    """See `contract.RowKernels`."""
    out_RW.copy_(table_NW.index_select(0, rows_R.to(table_NW.device)))
    if slot_N is not None and copies_KW is not None:
        slot_R = slot_N.index_select(0, rows_R)
        kept = (slot_R >= 0).nonzero().squeeze(1)
        out_RW.index_copy_(0, kept, copies_KW.index_select(0, slot_R.index_select(0, kept)))
