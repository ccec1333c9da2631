"""Messages come out as they went in; what breaks a rule is refused, going out or coming in."""

import json
from typing import Any

import pytest
import torch

from siafu.elastic.messages import (
    MOST_BYTES,
    MOST_HEADER_BYTES,
    Fetch,
    Frame,
    Order,
    Result,
    decode,
    encode,
    order_frames,
)
from siafu.elastic.task import Bundle, Tensors
from siafu.elastic.tensors import DTYPES
from siafu.errors import TaskError
from tests.unit.elastic.workers import notice, result

TOKEN = "t" * 32


def every_kind_of_tensor() -> Tensors:
    whole = {name: torch.arange(6).reshape(2, 3).to(dtype) for name, dtype in DTYPES.items()}
    return whole | {
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 7),
        "turned": torch.randn(3, 4).t(),
        "learned": torch.randn(2, requires_grad=True),
        "odd": torch.tensor([float("nan"), float("inf"), -0.0]),
    }


def order_parts() -> tuple[Any, ...]:
    facts = {"part": 3, "rate": 0.5, "name": "grün", "is_last": True, "seed": (1 << 64) - 1}
    weights = Bundle("weights 3", {"w": torch.randn(2, 2)}, "version")
    rows = Bundle("rows", {"x": torch.randn(4, 2)}, "once")
    return "ping", facts, (weights, rows), ("input 1",), ("weights 2",)


def header_of(frames: list[Frame]) -> dict[str, Any]:
    return json.loads(bytes(frames[0]))


def test_result_comes_out_as_it_went_in() -> None:
    tensors = every_kind_of_tensor()
    told = {"started": 5.0, "seconds": 0.25, "failure": "why\nnot", "is_final": True}
    sent = result(TOKEN, "w1", tensors, **told)
    got, (came,) = decode([bytes(frame) for frame in sent])

    assert isinstance(got, Result)
    assert (got.token, got.worker, got.started, got.seconds) == (TOKEN, "w1", 5.0, 0.25)
    assert (got.failure, got.is_final) == ("why\nnot", True)
    assert list(came) == list(tensors)
    for name, tensor in tensors.items():
        assert came[name].dtype == tensor.dtype, name
        torch.testing.assert_close(came[name], tensor, rtol=0, atol=0, equal_nan=True)
    came["float32"] += 1  # its own memory, and writable


def test_order_comes_out_as_it_went_in() -> None:
    code, facts, bundles, held, forgotten = sent = order_parts()
    got, blocks = decode(order_frames(*sent))

    assert isinstance(got, Order)
    assert (got.code, got.facts) == (code, facts)
    assert [type(fact) for fact in got.facts.values()] == [int, float, str, bool, int]
    assert (got.held, got.forgotten) == (held, forgotten)
    for mine, yours, block in zip(bundles, got.bundles, blocks, strict=True):
        assert (mine.key, mine.lifetime) == (yours.key, yours.lifetime)
        assert mine.tensors.keys() == block.keys()
        for name, tensor in mine.tensors.items():
            assert torch.equal(block[name], tensor)


@pytest.mark.parametrize("message", [Fetch.of(token=TOKEN, held=("a", "b")), notice("stored")])
def test_small_messages_come_out_as_they_went_in(message: Any) -> None:
    assert decode(encode(message)) == (message, [])


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1},
        {"form": 2},
        {"form": True},
        {"kind": "exec"},
        {"kind": ["order"]},
        {"code": "os.system"},
        {"code": 7},
        {"facts": {"a": None}},
        {"facts": {"a": [1]}},
        {"facts": {"a": 1 << 64}},
        {"facts": [["a", 1]]},
        {"facts": {f"f{n}": n for n in range(65)}},
        {"held": ["rows"]},
        {"held": ["a", "a"]},
        {"held": "abc"},
        {"bundles": []},
        {"bundles": [{"key": "a", "lifetime": "ever", "tensors": []}]},
        {"bundles": [{"key": "a", "lifetime": ["run"], "tensors": []}]},
    ],
    ids=str,
)
def test_header_of_an_order_is_strict(change: dict[str, Any]) -> None:
    frames = order_frames(*order_parts())
    frames[0] = json.dumps(header_of(frames) | change).encode()
    with pytest.raises(TaskError):
        decode(frames)


def entries_that_lie() -> list[list[Any]]:
    """Return entries for a frame of 16 bytes."""
    return [
        ["x", "float32", [5]],
        ["x", "float32", [1 << 62]],
        ["x", "float32", [1 << 31, 1 << 31, 0]],
        ["x", "float32", [-4]],
        ["x", "float32", [-1, -4]],
        ["x", "float32", [4.0]],
        ["x", "float32", [True] * 3],
        ["x", "float32", [1] * 9],
        ["x", "float32", 4],
        ["x", "complex64", [2]],
        ["x", "object", [2]],
        ["x", ["float32"], [4]],
        ["", "float32", [4]],
        ["x\ud800", "float32", [4]],
        ["x" * 257, "float32", [4]],
        ["x", "bool", [16]],
        ["x", "float32"],
        {"name": "x"},
    ]


@pytest.mark.parametrize("entry", entries_that_lie(), ids=str)
def test_entry_that_does_not_fit_its_frame_is_refused(entry: list[Any]) -> None:
    header = header_of(result(TOKEN, "w")) | {"tensors": [entry]}
    with pytest.raises(TaskError):
        decode([json.dumps(header).encode(), b"\x02" * 16])


def test_names_are_given_once() -> None:
    header = header_of(result(TOKEN, "w")) | {"tensors": [["x", "uint8", [1]]] * 2}
    with pytest.raises(TaskError, match="named 'x'"):
        decode([json.dumps(header).encode(), b"1", b"2"])

    twice = tuple(Bundle(key, {"x": torch.zeros(1)}, "once") for key in ("a", "b"))
    with pytest.raises(TaskError, match="named 'x'"):
        decode(order_frames("ping", {}, twice))

    text = encode(notice("a"))[0].decode()
    with pytest.raises(TaskError, match="comes twice"):
        decode([text.replace("{", '{"text": "b", ', 1).encode()])


def test_number_of_frames_must_be_right() -> None:
    frames = result(TOKEN, "w", {"x": torch.zeros(2)})
    for wrong in (frames[:1], [*frames, b""], [], [b""]):
        with pytest.raises(TaskError):
            decode(wrong)


def test_limits_hold_both_ways() -> None:
    with pytest.raises(TaskError):
        notice("x" * MOST_HEADER_BYTES)
    padded = encode(notice("x"))[0] + b" " * MOST_HEADER_BYTES
    with pytest.raises(TaskError, match="header of"):
        decode([padded])
    frames = result(TOKEN, "w", {"x": torch.zeros(1000)})
    with pytest.raises(TaskError, match="in all"):
        decode(frames, most_bytes=4000)
    huge = torch.zeros(1).expand(MOST_BYTES // 4 + 1)  # a size without the memory
    with pytest.raises(TaskError, match="doesn't travel"):
        result(TOKEN, "w", {"x": huge})


@pytest.mark.parametrize(
    "tensor", [torch.zeros(2, dtype=torch.complex64), torch.eye(2).to_sparse()]
)
def test_tensor_of_another_kind_is_refused_before_it_is_sent(tensor: torch.Tensor) -> None:
    with pytest.raises(TaskError, match="doesn't travel"):
        result(TOKEN, "w", {"x": tensor})


@pytest.mark.parametrize(
    "header",
    [b"", b"[]", b"null", b"\xff", b'{"a": NaN}', b"[" * 20_000, b"1" * 5_000, b'{"kind": 1e999}'],
    ids=lambda header: repr(header[:12]),
)
def test_header_that_is_no_object_is_refused(header: bytes) -> None:
    with pytest.raises(TaskError):
        decode([header])


@pytest.mark.parametrize("fact", [float("nan"), float("inf"), "\ud800", "x" * 20_000, 1 << 70])
def test_fact_that_cannot_travel_is_refused_before_it_is_sent(fact: Any) -> None:
    with pytest.raises(TaskError):
        order_frames("ping", {"a": fact}, ())
