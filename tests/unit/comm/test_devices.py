"""Ranks agree on a transport that serves all of them, however they were started."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import HashStore

from siafu.comm.devices import (
    LOCAL_RANK_VARIABLES,
    Place,
    agreed_backend,
    settle,
    told_local_rank,
)
from siafu.errors import CommError


def gpus(*names: str, host: str = "a") -> list[Place]:
    return [Place(host, "cuda", name) for name in names]


def test_nccl_is_for_ranks_with_a_gpu_each() -> None:
    assert agreed_backend(gpus("0", "1")) == "nccl"
    assert agreed_backend([*gpus("0"), *gpus("0", host="b")]) == "nccl"  # one a machine
    assert agreed_backend([*gpus("0", "1", "2"), *gpus("0", host="b")]) == "nccl"  # unlike counts
    assert agreed_backend(gpus("0", "0")) == "gloo"
    assert agreed_backend([*gpus("0", "1"), *gpus("0", "0", host="b")]) == "gloo"
    assert agreed_backend([Place("a", "cpu"), Place("a", "cpu")]) == "gloo"


def test_backend_that_is_asked_for_is_taken_or_refused() -> None:
    assert agreed_backend(gpus("0", "1"), "gloo") == "gloo"
    assert agreed_backend(gpus("0", "1"), "nccl") == "nccl"
    with pytest.raises(CommError, match="2 ranks on 1 GPUs"):
        agreed_backend(gpus("0", "0"), "nccl")
    with pytest.raises(CommError, match="needs a GPU for every rank"):
        agreed_backend([Place("a", "cpu")], "nccl")


def test_ranks_without_a_gpu_beside_others_are_named() -> None:
    with pytest.raises(CommError, match="some have none") as told:
        agreed_backend([*gpus("0"), Place("b", "cpu")])
    assert "ranks [1] of 2" in told.value.seen


@pytest.mark.parametrize("name", LOCAL_RANK_VARIABLES)
def test_number_on_a_machine_is_read_where_it_is_told(name: str) -> None:
    assert told_local_rank({name: "3"}) == 3
    assert told_local_rank({}) is None


def test_number_on_a_machine_is_counted_where_nobody_tells(monkeypatch) -> None:
    for name in LOCAL_RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    store = HashStore()
    with ThreadPoolExecutor(3) as threads:
        settled = threads.map(lambda rank: settle(store, rank, 3, "cpu"), range(3))
        found = list(settled)
    assert found == [(torch.device("cpu"), rank, "gloo") for rank in range(3)]
