"""Over many draws the decoded mean is the row and the variance what theory says.

Every implementation writes the same bytes (test_wire.py), so the fast one on CPU stands for all.
A row is sent many times under different ids. Shapes: K sendings, D width.
"""

import pytest
import torch

from siafu.ops import DrawKey
from siafu.ops.wire.reference import quantise
from siafu.ops.wire.rows import WIDTHS, WireLayout, decode, encode

KEY = DrawKey(seed=1, epoch=0, purpose=4)
SENDINGS = 20_000

CASES = {
    "normal": lambda x: x,
    "mean 3": lambda x: x + 3,
    "after relu": lambda x: x.relu(),
    "huge offset": lambda x: x + 1e6,
    "offset as fine as float32": lambda x: 1e6 + (8 * x).round() / 16,
    "negative offset": lambda x: x * 0.01 - 30_000,
    "denormal": lambda x: x * 1e-41,
    "huge range": lambda x: x * 1e37,
    "tiny and large": lambda x: x * torch.logspace(-30, 0, len(x)),
    "one column": lambda x: x[:1],
    "two columns": lambda x: x[:2],
    "constant": lambda x: x[:1].expand(9).contiguous(),
}


def send(row_D: torch.Tensor, bits: int, count: int = SENDINGS, key: DrawKey = KEY):
    """Return what `count` receivers decode, and the first one's payload."""
    layout = WireLayout.build(torch.full((count,), bits, dtype=torch.uint8), len(row_D))
    ids = torch.arange(count) * 104_729
    sent = encode(row_D[None], torch.zeros(count, dtype=torch.int64), layout, key, ids)
    return decode(sent.payload, layout).double(), sent.payload


def scale_in(payload: torch.Tensor) -> tuple[float, float]:
    zero, step = payload[:8].view(torch.float32).double().tolist()
    return zero, step


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("case", sorted(CASES))
def test_decoded_mean_is_the_row(case, bits):
    x = torch.randn(64, generator=torch.Generator().manual_seed(2)).clamp(-8, 8)
    row = CASES[case](x)
    decoded_KD, payload = send(row, bits)
    if bits == 32 or case in ("constant", "one column"):
        assert torch.equal(decoded_KD, row.double().expand_as(decoded_KD))
        return
    zero, step = scale_in(payload)
    fraction_D = ((row.double() - zero) / step) % 1
    deviation_D = step * (fraction_D * (1 - fraction_D)).sqrt() / SENDINGS**0.5
    off_D = decoded_KD.mean(0) - row.double()
    # what the format allows: rounding of h - zero, and a draw of 15 bits
    allowed = 2.0**-24 * (row.max() - row.min()).double() + 2.0**-16 * step
    assert (off_D.abs() <= 4.5 * deviation_D + allowed).all()
    # a bias in common would show in the sum long before it shows in one entry
    z = off_D.sum() / deviation_D.square().sum().sqrt().clamp(min=1e-60)
    slack = allowed * len(row) / deviation_D.square().sum().sqrt().clamp(min=1e-60)
    assert z.abs() < 4 + slack


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_mean_over_epochs_is_the_row(bits):
    """The same node in epoch after epoch, as training sends it."""
    row = torch.randn(512, generator=torch.Generator().manual_seed(4)) + 3
    total = torch.zeros(512, dtype=torch.float64)
    for epoch in range(400):
        decoded, payload = send(row, bits, 1, DrawKey(seed=1, epoch=epoch, purpose=4))
        total += decoded[0]
    _, step = scale_in(payload)
    z = (total / 400 - row.double()).sum() / (step * (512 / 6 / 400) ** 0.5)
    assert abs(z) < 4


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_variance_is_a_sixth_of_the_squared_step_an_entry(bits):
    ratios = []
    for seed in range(20):
        row = torch.randn(512, generator=torch.Generator().manual_seed(seed))
        decoded_KD, payload = send(row, bits, 300)
        _, step = scale_in(payload)
        ratios.append(((decoded_KD - row.double()) ** 2).sum(1).mean() / (512 * step**2 / 6))
        # the step is as small as the range allows
        assert step <= (row.max() - row.min()) / (2**bits - 1) * (1.016 if bits == 16 else 1.0002)
    assert abs(torch.stack(ratios).mean() - 1) < 0.03


def test_draws_of_different_entries_are_unrelated():
    row = torch.randn(96, generator=torch.Generator().manual_seed(2))
    decoded_KD, _ = send(row, 4)
    together = torch.corrcoef((decoded_KD - decoded_KD.mean(0)).T[row.argsort()[1:-1]])
    # 20,000 sendings: a deviation of 0.007
    assert (together - torch.eye(len(together))).abs().max() < 0.036


def test_a_bf16_header_would_be_noticed():
    """What the released AdaQP code does at the receiver; its bias is 0.18 steps in the mean."""
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(2)) + 3
    layout = WireLayout.build(torch.full((64,), 8, dtype=torch.uint8), 256)
    bias, bias_rounded, rounds = 0.0, 0.0, 50
    for epoch in range(rounds):
        key = DrawKey(seed=3, epoch=epoch, purpose=4)
        payload = encode(x, None, layout, key, torch.arange(64)).payload
        step = payload.view(64, -1)[:, 4:8].contiguous().view(torch.float32)
        bias += (decode(payload, layout) - x) / step / rounds
        header = payload.view(64, -1)[:, :8]
        header.copy_(header.contiguous().view(torch.float32).bfloat16().float().view(torch.uint8))
        bias_rounded += (decode(payload, layout) - x) / step / rounds
    # the mean of 256 entries over 50 epochs has a deviation of 0.0036 steps
    assert bias.mean(1).abs().max() < 0.016
    assert bias_rounded.mean(1).abs().mean() > 0.1


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_no_draw_lifts_an_entry_out_of_its_field(bits):
    """The released code rounds the largest entry up to 2^bits now and then."""
    levels = 2**bits - 1
    halves = torch.arange(1 << 16)
    for quotient in (0.0, 0.25, levels - 1 + 0.9999, float(levels)):
        q = quantise(torch.tensor([quotient]), torch.zeros(1), torch.ones(1), halves)
        assert q.min() >= 0
        assert q.max() <= levels
        if quotient == int(quotient):
            assert (q == quotient).all()


def test_fifteen_bits_of_a_draw_are_off_by_less_than_a_65536th_of_a_step():
    halves = torch.arange(1 << 16)
    # quotients that float32 holds exactly, so that only the draw is judged
    for quotient in (torch.rand(200, generator=torch.Generator().manual_seed(1)) * 255).tolist():
        exact = torch.tensor([quotient], dtype=torch.float32)
        q = quantise(exact, torch.zeros(1), torch.ones(1), halves)
        assert abs(q.double().mean() - exact.double()) <= 2.0**-16
