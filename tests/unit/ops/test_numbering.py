"""Numbers for keys, against a dict."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.errors import PlanError
from siafu.ops import Numbering, union

KEYS = st.integers(0, 12) | st.integers(0, 2**63 - 1)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 50), st.lists(st.lists(KEYS, max_size=30), max_size=4))
def test_numbers_follow_first_appearance(hint, arrays):
    numbering, known = Numbering(hint), {}
    for array in arrays:
        before = len(known)
        want = [known.setdefault(key, len(known)) for key in array]
        numbers, new = numbering.add(torch.tensor(array, dtype=torch.int64))
        assert numbers.dtype == torch.int32
        assert numbers.tolist() == want
        assert new.tolist() == list(known)[before:]
    assert numbering.keys.tolist() == list(known)
    assert len(numbering) == len(known)


@pytest.mark.parametrize("stride", [1, 3, 2**13, 2**32, 2**40])
def test_table_grows_while_keys_come(stride):
    """Far past the first table, with keys a bad hash would pile up."""
    keys = torch.arange(20_000) * stride
    numbering = Numbering()
    numbers, new = numbering.add(keys)
    assert torch.equal(numbers, torch.arange(20_000, dtype=torch.int32))
    assert torch.equal(new, keys)
    again, none = numbering.add(keys.flip(0))
    assert torch.equal(again, numbers.flip(0))
    assert len(none) == 0


def test_int32_and_strided_keys_are_taken():
    numbering = Numbering()
    numbers, new = numbering.add(torch.tensor([7, 9, 7, 1, 9, 1], dtype=torch.int32)[::2])
    assert numbers.tolist() == [0, 0, 1]
    assert new.tolist() == [7, 9]
    assert new.dtype == torch.int64


def test_kept_keys_are_not_touched_by_later_ones():
    numbering = Numbering()
    _, first = numbering.add(torch.tensor([3, 5]))
    kept = numbering.keys
    numbering.add(torch.arange(5000))
    assert first.tolist() == kept.tolist() == [3, 5]


def test_union_keeps_every_key_once():
    arrays = [torch.tensor([4, 2, 4]), torch.zeros(0, dtype=torch.int64), torch.tensor([9, 2, 0])]
    assert union(arrays).tolist() == [4, 2, 9, 0]
    assert union([]).tolist() == []


def test_keys_of_another_kind_are_refused():
    with pytest.raises(PlanError, match="int32 or int64"):
        Numbering().add(torch.ones(3))
    with pytest.raises(PlanError, match="int32 or int64"):
        Numbering().add(torch.ones(3, 2, dtype=torch.int64))
