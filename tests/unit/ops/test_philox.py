"""Draws by address: the cipher's known answers, the same bits everywhere, the distribution."""

import pytest
import torch

from siafu.errors import ConfigError, PlanError
from siafu.ops import (
    DrawKey,
    HeldKey,
    dropout_pairs,
    dropout_rows,
    set_threads,
    uniform_pairs,
    uniform_reference,
    uniform_rows,
)
from siafu.ops.contract import Draw
from siafu.ops.random.draws import dropout
from siafu.ops.random.reference import draw_words, philox
from tests.unit.ops.interpreter import INTERPRETED

KEY = DrawKey(seed=11, epoch=2, purpose=3)

ONES = 0xFFFFFFFF
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
"""Random123's kat_vectors for philox4x32-10."""


def ids(count: int) -> torch.Tensor:
    """Ids that use all of their 48 bits."""
    return torch.randint(0, 2**48, (count,), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_cipher_gives_the_published_answers(counter, key, words):
    assert philox(counter, key) == words
    as_tensors = philox(tuple(torch.tensor([c]) for c in counter), key)
    assert tuple(int(word) for word in as_tensors) == words


def test_every_word_of_the_counter_is_used(device):
    """The first known answer, reached from ids: counter 0, key 0."""
    out = draw_words(Draw((0, 0), torch.zeros(1, dtype=torch.int64)), 4)
    assert tuple(out[0].tolist()) == KNOWN[0][2]
    first, second = torch.tensor([1 << 32, 0, 0, 0, 1]), torch.tensor([0, 1 << 32, 1, 0, 0])
    drawn = uniform_pairs(KEY, first.to(device), second.to(device), 8)
    assert len(torch.unique(drawn.cpu())) == drawn.numel()


@pytest.mark.parametrize("width", [1, 7, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_equal_the_definition_bit_for_bit(device, width, dtype):
    first, second = ids(33), ids(33).flip(0)
    by_row = uniform_rows(KEY, first.to(device), width, dtype=dtype)
    by_pair = uniform_pairs(KEY, first.to(device), second.to(device), width, dtype=dtype)
    assert torch.equal(by_row.cpu(), uniform_reference(Draw(KEY.row_words(), first), width, dtype))
    want = uniform_reference(Draw(KEY.pair_words(), first, second), width, dtype)
    assert torch.equal(by_pair.cpu(), want)


def test_draw_depends_on_id_and_column_alone(device, threads):
    count = 500 if INTERPRETED else 5000
    all_ids = ids(count).to(device)
    whole = uniform_rows(KEY, all_ids, 40)
    some = torch.tensor([17, 3, count - 1, 3], device=device)
    assert torch.equal(uniform_rows(KEY, all_ids[some], 9), whole[some, :9])
    set_threads(3)
    assert torch.equal(uniform_rows(KEY, all_ids, 40), whole)


def test_keys_and_kinds_give_unrelated_draws(device):
    where = torch.arange(1000, device=device)
    zero = torch.zeros_like(where)
    draws = [uniform_rows(DrawKey(*key), where, 4) for key in [(1, 2, 3), (3, 2, 1), (1, 3, 2)]]
    draws.append(uniform_pairs(DrawKey(1, 2, 3), where, zero, 4))
    draws.append(uniform_pairs(DrawKey(1, 2, 3), zero, where, 4))
    together = torch.corrcoef(torch.stack([draw.flatten().cpu() for draw in draws]))
    # 4000 pairs: a correlation has a deviation of 1 / sqrt(4000) = 0.016
    assert (together - torch.eye(len(draws))).abs().max() < 0.08


def test_draws_are_uniform(device):
    count, cells = 1 << 16, 64
    drawn = uniform_rows(KEY, torch.arange(count // 64, device=device), 64).cpu()
    assert drawn.min() >= 0
    assert drawn.max() < 1
    seen = torch.histc(drawn, cells, 0, 1)
    chi_square = ((seen - count / cells) ** 2 / (count / cells)).sum()
    # 63 degrees of freedom: mean 63, deviation 11.2; the draws are fixed, so this cannot flake
    assert 30 < chi_square < 110
    neighbours = torch.corrcoef(torch.stack([drawn[:, :-1].flatten(), drawn[:, 1:].flatten()]))
    assert abs(neighbours[0, 1]) < 0.02


@pytest.mark.parametrize(("width", "p"), [(1, 0.5), (4, 0.9), (33, 0.1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_and_its_gradient_use_one_mask(device, width, p, dtype):
    first, second = ids(50).to(device), ids(50).flip(0).to(device)
    x = torch.randn(50, width, device=device, dtype=dtype, requires_grad=True)
    for draw, out in (
        (Draw(KEY.row_words(), first), dropout_rows(x, first, KEY, p)),
        (Draw(KEY.pair_words(), first, second), dropout_pairs(x, first, second, KEY, p)),
    ):
        kept = draw_words(draw, width) >= round(p * 2**32)
        assert torch.equal(out, torch.where(kept, x * (1 / (1 - p)), 0))
        (grad,) = torch.autograd.grad(out, x, x.detach())
        assert torch.equal(grad, out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_relu_in_the_same_pass_is_relu_and_then_dropout(device, dtype):
    where = ids(37).to(device)
    x = torch.randn(37, 21, dtype=dtype, generator=torch.Generator().manual_seed(0)).to(device)
    x[3, 5], x[4, 6] = 0.0, torch.nan
    grad = torch.ones_like(x).cumsum(0)
    one, two = (x.clone().requires_grad_() for _ in range(2))
    got = dropout_rows(one, where, KEY, 0.3, relu=True)
    want = dropout_rows(torch.relu(two), where, KEY, 0.3)
    got.backward(grad)
    want.backward(grad)
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(one.grad, two.grad, rtol=0, atol=0)
    assert torch.equal(
        dropout_rows(one, where, KEY, 0, relu=True).nan_to_num(), x.relu().nan_to_num()
    )


def test_the_scale_of_what_is_kept_is_not_rounded_to_half_precision(device):
    dtype = torch.float16  # Triton's interpreter cuts bfloat16 off, where a GPU rounds
    where, x = ids(37).to(device), torch.ones(37, 21, dtype=dtype, device=device).requires_grad_()
    out = dropout_rows(x, where, KEY, 0.1, relu=True)
    grad = (1 + torch.rand_like(x)).detach()
    out.backward(grad)
    want = torch.where(out > 0, grad.float() / 0.9, 0).to(dtype)
    assert torch.equal(x.grad, want)


@pytest.mark.parametrize("relu", [False, True])
def test_a_key_on_the_device_is_read_when_the_kernel_runs(device, relu):
    where = ids(37).to(device)
    x = torch.randn(37, 21, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
    held = HeldKey(torch.zeros(2, dtype=torch.int64, device=device))
    for epoch in (1, 2**40, 3):
        key = DrawKey(5, epoch, 7)
        held.words.copy_(torch.tensor(key.held_words()))
        got = dropout_rows(x, where, held, 0.3, relu=relu)
        want = dropout_rows(x, where, key, 0.3, relu=relu)
        assert torch.equal(got, want)
        of_pairs = [dropout_pairs(x, where, where.flip(0), k, 0.3) for k in (held, key)]
        assert torch.equal(*of_pairs)
        grads = [torch.autograd.grad(out, x, x.detach())[0] for out in (got, want)]
        assert torch.equal(*grads)


def test_dropout_keeps_the_expected_share(device):
    out = dropout_rows(torch.ones(4000, 16, device=device), ids(4000).to(device), KEY, 0.3)
    # 64,000 coins: the share kept has a deviation of 0.0018
    assert abs(out.count_nonzero().item() / out.numel() - 0.7) < 0.009
    assert abs(out.mean().item() - 1) < 0.013


def test_no_dropout_returns_x_itself(device):
    x = torch.ones(3, 2, device=device)
    assert dropout_rows(x, torch.arange(3, device=device), KEY, 0) is x


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_nothing_to_draw_is_no_error(device, shape):
    where = torch.arange(shape[0], device=device)
    assert uniform_rows(KEY, where, shape[1]).shape == shape
    assert dropout_rows(torch.ones(shape, device=device), where, KEY, 0.5).shape == shape


def test_dropout_is_registered_correctly(device):
    x = torch.randn(5, 3, device=device, dtype=torch.float64, requires_grad=True)
    where = torch.arange(5, device=device)
    torch.library.opcheck(dropout, (x, where, None, 1, 2, 0.5))
    torch.library.opcheck(dropout, (x, where, where, ONES, 2, 0.5))
    assert torch.autograd.gradcheck(lambda x: dropout_rows(x, where, KEY, 0.5), (x,))


def test_foreseeable_misuse_is_refused():
    where, x = torch.arange(3), torch.ones(3, 2)
    with pytest.raises(ConfigError, match="seed is out of range"):
        DrawKey(seed=-1, epoch=0, purpose=0)
    with pytest.raises(ConfigError, match="dropout rate"):
        dropout_rows(x, where, KEY, 1.0)
    with pytest.raises(PlanError, match="one id for each row"):
        dropout_rows(x, where[:2], KEY, 0.5)
    with pytest.raises(PlanError, match="int64"):
        uniform_rows(KEY, where.int(), 2)
    with pytest.raises(PlanError, match="second ids"):
        uniform_pairs(KEY, where, where[:2], 2)
    with pytest.raises(PlanError, match="two types"):
        uniform_rows(KEY, where, 2, dtype=torch.float16)
