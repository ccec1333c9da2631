"""Sums whose bits do not depend on who holds which term; requests by number."""

import torch

from siafu.comm import World, ask, sum_in_order, tell
from tests.harness import RankPool

TERMS, COLUMNS = 5, 7


def terms() -> torch.Tensor:
    """Return numbers whose sum depends on the order of additions."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(TERMS, COLUMNS, generator=generator) * 10.0 ** torch.arange(TERMS)[:, None]


def ordered(world: World, holders: list[int]) -> torch.Tensor:
    """Return the sum of all terms, of which this rank holds some."""
    mine = [place for place, holder in enumerate(holders) if holder == world.rank]
    return sum_in_order(terms()[mine], holders, world, "gradient")


def test_sum_has_the_same_bits_on_any_ranks(ranks: RankPool) -> None:
    want = terms()[0].clone()
    for term in terms()[1:]:
        want = want + term
    assert torch.equal(ordered(World(), [0] * TERMS), want)
    for size, holders in ((2, [0, 1, 0, 1, 0]), (3, [2, 1, 0, 1, 0]), (4, [3, 3, 1, 0, 1])):
        for got in ranks.run(ordered, size, holders):
            assert torch.equal(got, want)


def squares(world: World) -> tuple[list[int], list[list[float]]]:
    """Return the squares that others tell for the numbers this rank asks them."""
    counts = [0 if peer == world.rank else world.rank + 1 for peer in range(world.size)]
    requests = torch.arange(sum(counts)) + 10 * world.rank
    line = world.second_line()
    inquiry = ask(requests, counts, line, "sample")
    answers = inquiry.reply(inquiry.asked.square(), line, "sample")
    assert torch.equal(answers, requests.square())
    repeated = inquiry.asked.repeat_interleave(inquiry.asked % 3)
    got_counts = inquiry.reply(inquiry.asked % 3, line, "sample")
    ragged = inquiry.start_ragged(repeated, inquiry.asked % 3, got_counts, line, "sample")()
    assert torch.equal(ragged, requests.repeat_interleave(requests % 3))
    told = tell([float(world.rank), 0.5], line, "control")
    line.close()
    return answers.tolist(), told


def test_requests_are_answered_in_their_order(ranks: RankPool) -> None:
    for rank, (answers, told) in enumerate(ranks.run(squares, 3)):
        assert len(answers) == 2 * (rank + 1)
        assert told == [[0.0, 0.5], [1.0, 0.5], [2.0, 0.5]]
