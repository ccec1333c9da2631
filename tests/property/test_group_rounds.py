"""However many rows ranks read from each other, stages cover them once and keep to their limits."""

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.strategy import group_rounds, smallest_piece
from siafu.strategy.blocks import Share

BOUNDED = settings(max_examples=200, deadline=None, derandomize=True)


@st.composite
def tables(draw) -> list[list[int]]:
    """Return who reads how much from whom; nobody reads from itself, some from nobody."""
    size = draw(st.integers(1, 7))
    count = st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 300))
    table = [[draw(count) for _ in range(size)] for _ in range(size)]
    for rank in range(size):
        table[rank][rank] = 0
    return table


def heights(table: list[list[int]]) -> dict[int, int]:
    """Return the most that any rank reads in each round that somebody reads in."""
    size = len(table)
    tall = {r: max(table[p][(p - r) % size] for p in range(size)) for r in range(1, size)}
    return {r: height for r, height in tall.items() if height}


def rows_of(share: Share, table: list[list[int]], rank: int, start: int = 0) -> range:
    """Return the rows that a share fetches on a rank, of the peer whose rows begin at `start`."""
    count = table[rank][(rank - share.round) % len(table)]
    part = share.cut(start, start + count)
    return range(part.start, part.stop)


@BOUNDED
@given(tables(), st.integers(1, 8), st.integers(1, 120), st.integers(0, 1000))
def test_every_row_is_fetched_once(table, stages: int, piece: int, start: int) -> None:
    groups = group_rounds(table, stages, piece)
    size = len(table)
    for rank in range(size):
        for number in range(1, size):
            count = table[rank][(rank - number) % size]
            shares = [share for group in groups for share in group if share.round == number]
            got = [row for share in shares for row in rows_of(share, table, rank, start)]
            assert got == list(range(start, start + count)), f"rank {rank}, round {number}"


@BOUNDED
@given(tables(), st.integers(1, 8), st.integers(1, 120))
def test_no_stage_is_empty_and_no_round_in_vain(table, stages: int, piece: int) -> None:
    groups = group_rounds(table, stages, piece)
    assert all(groups)
    assert {share.round for group in groups for share in group} == set(heights(table))
    for group in groups:
        fetched = [len(rows_of(s, table, rank)) for s in group for rank in range(len(table))]
        assert any(fetched), "a stage in which no rank reads anything"


@BOUNDED
@given(tables(), st.integers(1, 8), st.integers(1, 120))
def test_fewer_stages_than_rounds_are_kept_and_as_low_as_can_be(table, stages, piece) -> None:
    tall = list(heights(table).values())
    groups = group_rounds(table, stages, piece)
    if stages > 1 and stages >= len(tall):
        return
    assert len(groups) <= stages
    assert all(share == Share(share.round, 0, 1) for group in groups for share in group)
    got = max((sum(heights(table)[s.round] for s in group) for group in groups), default=0)
    assert got == lowest(tall, stages)


def lowest(tall: list[int], stages: int) -> int:
    """Return the largest sum of the best cut into runs, by trying all."""
    if not tall:
        return 0
    tops = []
    for count in range(min(stages, len(tall))):
        for cuts in combinations(range(1, len(tall)), count):
            ends = [0, *cuts, len(tall)]
            tops.append(max(sum(tall[lo:hi]) for lo, hi in pairwise(ends)))
    return min(tops)


@BOUNDED
@given(tables(), st.integers(2, 8), st.integers(1, 120))
def test_pieces_keep_to_their_limit(table, stages: int, piece: int) -> None:
    if stages < len(heights(table)):
        return
    for group in group_rounds(table, stages, piece):
        for rank in range(len(table)):
            assert sum(len(rows_of(share, table, rank)) for share in group) <= piece


def test_small_peers_travel_together_up_to_a_piece() -> None:
    table = [[0 if p == q else 100 for q in range(9)] for p in range(9)]
    groups = group_rounds(table, 9, 300)
    assert [len(group) for group in groups] == [3, 3, 2]
    assert len(group_rounds(table, 9, 256)) == 8, "the smallest piece: a stage for each peer"


def test_one_rank_has_no_stages() -> None:
    assert group_rounds([[0]], 1, 1024) == []
    assert group_rounds([[0]], 8, 1024) == []


def test_ranks_that_read_nothing_have_no_stages() -> None:
    for stages in (1, 2, 3):
        assert group_rounds([[0] * 3 for _ in range(3)], stages, 1024) == []


def test_one_stage_holds_all_rounds() -> None:
    table = [[0, 5000, 5000], [5000, 0, 5000], [5000, 5000, 0]]
    assert group_rounds(table, 1, 10) == [[Share(1, 0, 1), Share(2, 0, 1)]]


@BOUNDED
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=8))
def test_a_piece_is_about_a_quarter_of_the_largest_part(owned: list[int]) -> None:
    piece = smallest_piece(owned)
    assert piece >= 1
    assert piece == 256 or 4 * (piece - 1) < max(owned) <= 4 * piece
