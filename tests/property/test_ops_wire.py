"""For any rows and widths, each field holds its own entry and nothing of its neighbours'."""

from fractions import Fraction

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.ops import DrawKey
from siafu.ops.wire.rows import WIDTHS, WireLayout, decode, encode

EXAMPLES = settings(max_examples=150, deadline=None)
ENTRIES = st.floats(-(2.0**125), 2.0**125, width=32) | st.sampled_from([0.0, 1.0, -1.0, 1e-45])


@st.composite
def messages(draw: st.DrawFn) -> tuple[torch.Tensor, list[int], int]:
    """Some rows, their widths in bits and a seed."""
    width = draw(st.integers(1, 40))
    rows = draw(st.lists(st.lists(ENTRIES, min_size=width, max_size=width), max_size=5))
    bits = [draw(st.sampled_from(WIDTHS)) for _ in rows]
    x = torch.tensor(rows, dtype=torch.float32).view(len(rows), width)
    return x, bits, draw(st.integers(0, 2**64 - 1))


@EXAMPLES
@given(messages())
def test_no_field_spills_into_its_neighbour(message):
    x, bits, seed = message
    layout = WireLayout.build(torch.tensor(bits, dtype=torch.uint8), x.size(1))
    key, ids = DrawKey(seed=seed, epoch=0, purpose=1), torch.arange(len(x)) + 2**47
    payload = encode(x, None, layout, key, ids).payload
    decoded = decode(payload, layout)
    for n, width_in_bits in enumerate(bits):
        sent = payload[layout.start_S[n] : layout.start_S[n + 1]]
        if width_in_bits == 32:
            assert torch.equal(sent.view(torch.float32), x[n])
            continue
        zero, step = (Fraction(value) for value in sent[:8].view(torch.float32).tolist())
        fields = int.from_bytes(bytes(sent[8:].tolist()), "little")
        largest = 2**width_in_bits - 1
        for c, h in enumerate(x[n].tolist()):
            q = (fields >> (c * width_in_bits)) & largest
            # exact: neighbours of the quotient, and one rounding of h - zero beside them
            quotient = (Fraction(h) - zero) / step if step else Fraction(0)
            slack = quotient / 2**22 + Fraction(1, 2**15)
            assert quotient - 1 - slack < q < quotient + 1 + slack
            assert Fraction(decoded[n, c].item()) == q * step + zero
        assert fields >> (x.size(1) * width_in_bits) == 0
