"""weights.safetensors: what was written comes back, and damage is a StoreError that names it."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import nn

from siafu.engine.weights import NetworkFacts, Weights, write_weights
from siafu.errors import StoreError
from siafu.graph import writing

FACTS = {
    "num_features": "3",
    "num_classes": "2",
    "multi_label": "0",
    "class_names": '["no", "yes"]',
    "edge_types": "[0]",
}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_weights(model(), FACTS, tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def put(file: Path, tensors: dict[str, torch.Tensor], facts: dict[str, str] | None = None) -> None:
    file.write_bytes(save(tensors, metadata=FACTS if facts is None else facts))


def test_weights_come_back(file: Path) -> None:
    other = model()
    nn.init.zeros_(other[0].weight)
    weights = Weights(file)
    weights.load_into(other)
    for name, tensor in model().state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)
    assert weights.facts(NetworkFacts).class_names == ["no", "yes"]


def test_tied_weights_are_written(tmp_path: Path) -> None:
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    write_weights(tied, FACTS, tmp_path / "weights")
    Weights(tmp_path / "weights").load_into(tied)


def test_weights_of_an_earlier_version_have_no_sum(file: Path) -> None:
    put(file, model().state_dict())
    Weights(file).load_into(model())


@pytest.mark.parametrize("length", [0, 4, 8, 20, 200, -1])
def test_a_file_cut_short(file: Path, length: int) -> None:
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(StoreError, match="can't be read") as caught:
        Weights(file)
    assert str(file) in caught.value.seen


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        bytes(8),
        (2**63).to_bytes(8, "little"),
        (100_000_000).to_bytes(8, "little") + b" " * 1000,
        (2).to_bytes(8, "little") + b"[]",
        (3).to_bytes(8, "little") + b"nul",
        (60_000).to_bytes(8, "little") + b"[" * 60_000,
        b"PK\x03\x04" + bytes(100),
    ],
)
def test_what_is_no_file_of_weights(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(StoreError, match="can't be read"):
        Weights(file)


@pytest.mark.parametrize(
    "header",
    [
        {"w": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4]}},
        {"w": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}},
        {"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}},
        {"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}},
        {"w": 3},
        {"w": None},
        {"__metadata__": 5, "w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
        {"__metadata__": {"a": 1}, "w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
    ],
)
def test_headers_that_can_not_be(file: Path, header: object) -> None:
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    with pytest.raises(StoreError):
        Weights(file)


def test_any_flipped_bit_is_refused(file: Path) -> None:
    whole = file.read_bytes()
    for position in np.random.default_rng(0).choice(8 * len(whole), 300).tolist():
        raw = bytearray(whole)
        raw[position // 8] ^= 1 << position % 8
        file.write_bytes(raw)
        try:
            weights = Weights(file)
            weights.facts(NetworkFacts)
            weights.load_into(model())
        except StoreError:
            continue
        for name, tensor in model().state_dict().items():
            assert torch.equal(weights.tensors[name], tensor)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_no_number_is_named(file: Path, value: float) -> None:
    state = model().state_dict()
    state["2.bias"][1] = value
    put(file, state)
    with pytest.raises(StoreError) as caught:
        Weights(file).load_into(model())
    assert "2.bias" in caught.value.seen


def test_a_buffer_may_be_infinite(tmp_path: Path) -> None:
    masked = nn.Linear(2, 2)
    masked.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    write_weights(masked, FACTS, tmp_path / "weights")
    Weights(tmp_path / "weights").load_into(masked)


@pytest.mark.parametrize("change", ["missing", "more", "shape", "dtype"])
def test_other_tensors_are_named(file: Path, change: str) -> None:
    state = model().state_dict()
    if change == "missing":
        del state["0.bias"]
    elif change == "more":
        state["odd"] = torch.zeros(1)
    elif change == "shape":
        state["0.bias"] = torch.zeros(5)
    else:
        state["0.bias"] = torch.zeros(4, dtype=torch.int8)
    put(file, state)
    with pytest.raises(StoreError, match="do not fit the model") as caught:
        Weights(file).load_into(model())
    assert ("odd" if change == "more" else "0.bias") in caught.value.seen


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_features", None),
        ("num_features", "-1"),
        ("num_features", "three"),
        ("num_features", "1" * 30),
        ("num_classes", "3"),
        ("multi_label", "yes"),
        ("class_names", "no, yes"),
        ("class_names", "{}"),
        ("class_names", "[1, 2.5]"),
        ("class_names", '["a", 1]'),
        ("class_names", "[" * 5000),
        ("edge_types", "[]"),
        ("edge_types", "7"),
    ],
)
def test_facts_that_can_not_be(file: Path, name: str, value: str | None) -> None:
    facts = {k: v for k, v in {**FACTS, name: value}.items() if v is not None}
    put(file, model().state_dict(), facts)
    with pytest.raises(StoreError, match="which data they are for") as caught:
        Weights(file).facts(NetworkFacts)
    assert name in caught.value.seen or "names for" in caught.value.seen or "text" in str(caught)


@pytest.mark.parametrize("kind", ["missing", "pipe", "folder"])
def test_what_is_no_plain_file(file: Path, kind: str) -> None:
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    with pytest.raises(StoreError, match="can't be read"):
        Weights(file)


def test_a_full_disk_is_told_and_keeps_the_old_weights(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = file.read_bytes()
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StoreError, match="The disk is full"), writing(file):
        write_weights(model(), FACTS, file)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]
