"""What a layer of a built-in model keeps, and what is there beside, in columns of owned rows."""

from dataclasses import dataclass

from siafu.nn import ModelSpec, layer_widths

_NORM_KEEPS = {"none": 0, "batch": 1, "layer": 1}
"""Results of a norm that backward reads; of a batch's, rows less their mean."""
_NORM_RETURNS = {"none": 0, "batch": 2, "layer": 2}
"""Gradients of rows that are there at once in a norm's backward."""


@dataclass(frozen=True, slots=True)
class LayerRows:
    """Columns that one layer keeps until its backward, and columns of a row that travels."""

    kept: int
    travels: int
    widest: int
    entered: int
    """Of those kept, what dropout makes of the input."""
    backward: int
    """Columns of gradients: that which comes in, that which goes out, and one on the way."""
    lets_go: int
    """Of those kept, what backward lets go of before gradients of others' rows travel."""
    stands: int
    """Columns beside those kept while rows travel in forward."""
    returns: int
    """Columns of gradients while those of others' rows travel, and of the rows these come to."""
    ends: int
    """Columns of gradients when backward comes to the layer, and the input of the one above."""


def layer_rows(spec: ModelSpec, number: int, *, rounded: bool = False) -> LayerRows:
    """Return what a layer of the model keeps, in columns of owned rows.

    Where rows are `rounded` on their way they are dropped apart from their activation.
    """
    card, width, drops = spec.card, layer_widths(spec, number), _drops(spec, number)
    is_last = number == spec.layers - 1
    # Dropout makes a copy of the input; without it the input of the first layer is the data itself.
    entered = 0 if number == 0 and not drops else width.into
    masks = number > 0 and spec.drops_with_relu  # what is dropped tells where ReLU let through
    if not card.reads_own_row and width.summed and not masks:
        entered = 0  # it aggregates first: its gradient reads the sums alone
    norms = 0 if is_last else _NORM_KEEPS[spec.norm] * width.out
    is_joined = spec.jk != "none"
    # The activation's result is kept beside what dropout makes of it, unless both are one.
    is_apart = spec.dropout > 0 and (rounded or not spec.drops_with_relu)
    leaves = width.out if (is_joined if is_last else is_apart) else 0
    after = norms + leaves
    # The input of the first layer is given no gradient.
    below = width.into if number else width.out
    handed_down = below if card.reads_own_row else 0  # from other rows alone, or the own one too
    travels = card.sends(width)
    return LayerRows(
        kept=entered + card.keeps(width) + after,
        travels=travels,
        widest=max(width.into, width.out),
        entered=entered,
        backward=width.out + below + handed_down,
        lets_go=card.lets_go(width) + after,
        stands=card.stands(width),
        returns=card.returns(width),
        ends=_ends(spec, number),
    )


def _ends(spec: ModelSpec, number: int) -> int:
    """Return columns of gradients, and of others' input, when backward comes to a layer."""
    width = layer_widths(spec, number)
    if number == spec.layers - 1:
        return 2 * width.out  # of the loss
    above = layer_rows(spec, number + 1)
    # Of two paths from the input to the layer above, and their sum.
    mapped = above.entered + (3 if spec.card.reads_own_row else 1) * width.out
    return max(mapped, _NORM_RETURNS[spec.norm] * width.out)


def _drops(spec: ModelSpec, number: int) -> bool:
    p = spec.input_dropout if number == 0 and spec.input_dropout is not None else spec.dropout
    return p > 0
