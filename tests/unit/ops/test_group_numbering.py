"""Several sub-graphs numbered at once, as one after another."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.ops import GroupNumbering, Numbering

KEYS = 9
HOPS = st.lists(st.lists(st.lists(st.integers(0, KEYS - 1), max_size=12), min_size=3, max_size=3))


@settings(max_examples=60, deadline=None)
@given(HOPS)
def test_numbers_are_those_of_each_sub_graph_alone(hops: list[list[list[int]]]) -> None:
    together = GroupNumbering(3, KEYS, torch.device("cpu"))
    for _ in range(2):
        alone = [Numbering() for _ in range(3)]
        for keys_by_group in hops:
            keys = [torch.tensor(keys, dtype=torch.int64) for keys in keys_by_group]
            group = torch.arange(3).repeat_interleave(torch.tensor([len(k) for k in keys]))
            numbers, new = together.add(torch.cat(keys), group)
            wanted = [one.add(of_one) for one, of_one in zip(alone, keys, strict=True)]
            assert torch.equal(numbers, torch.cat([each for each, _ in wanted]))
            assert torch.equal(new.keys_U, torch.cat([fresh for _, fresh in wanted]))
            sizes = [len(fresh) for _, fresh in wanted]
            assert torch.tensor(new.bounds).diff().tolist() == sizes
        together.clear()
