"""Whatever bytes arrive, the decoder returns a message or raises TaskError, and nothing else."""

import contextlib
import json
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from siafu.elastic.aws_lambda.handler import handler
from siafu.elastic.compute import CODES
from siafu.elastic.messages import (
    Order,
    Result,
    decode,
    encode,
    order_frames,
    read_invitation,
)
from siafu.elastic.task import Bundle
from siafu.elastic.tensors import DTYPES, encode_block
from siafu.errors import TaskError
from tests.unit.elastic.workers import fetch, notice, result

EXAMPLES = 200
fuzzed = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

TOKEN = "t" * 32
X = torch.arange(6, dtype=torch.float32).reshape(2, 3)
VALID = [
    fetch(TOKEN, "weights 1", "input"),
    order_frames("ping", {"n": 1, "r": 0.5, "s": "a"}, [Bundle("b", {"x": X, "m": X > 1}, "run")]),
    result(TOKEN, "w", {"y": X, "n": torch.tensor(3)}),
    encode(notice("stored")),
]
HEADERS = [json.loads(bytes(frames[0])) for frames in VALID]

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
dims = st.integers(-3, 4) | st.sampled_from([1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1, 1 << 70])
entries = st.tuples(
    st.sampled_from(["x", "y", ""]), st.sampled_from([*DTYPES, "object"]), st.lists(dims)
).map(lambda entry: [entry[0], entry[1], entry[2]])


def read(frames: list[Any]) -> None:
    """Decode: a message or TaskError; one that is read can be sent again and is the same."""
    try:
        message, blocks = decode(frames)
    except TaskError:
        return
    again = encode(message, [part for block in blocks for part in encode_block(block)[1]])
    assert [bytes(frame) for frame in again[1:]] == [bytes(frame) for frame in frames[1:]]
    assert json.loads(bytes(again[0])) == json.loads(bytes(frames[0]))


@given(st.lists(st.binary(max_size=200), max_size=4))
@fuzzed
def test_random_bytes(frames: list[bytes]) -> None:
    read(frames)


@given(st.sampled_from(VALID), st.data())
@fuzzed
def test_valid_messages_with_bytes_changed(frames: list[Any], data: st.DataObject) -> None:
    changed = [bytearray(frame) for frame in frames]
    for _ in range(data.draw(st.integers(1, 4))):
        frame = changed[data.draw(st.integers(0, len(changed) - 1))]
        if frame:
            frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    read(changed)


@given(st.sampled_from(VALID), st.data())
@fuzzed
def test_valid_messages_cut_short_or_made_longer(frames: list[Any], data: st.DataObject) -> None:
    changed = [bytes(frame) for frame in frames]
    place = data.draw(st.integers(0, len(changed) - 1))
    cut = data.draw(st.integers(0, len(changed[place])))
    changed[place] = changed[place][:cut] + data.draw(st.binary(max_size=20))
    if data.draw(st.booleans()):
        changed.insert(data.draw(st.integers(0, len(changed))), data.draw(st.binary(max_size=20)))
    if data.draw(st.booleans()):
        del changed[data.draw(st.integers(0, len(changed) - 1))]
    read(changed)


@given(st.sampled_from(HEADERS), st.data())
@fuzzed
def test_headers_with_a_field_replaced(header: dict[str, Any], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([*header, "extra"]))
    changed = {**header, name: data.draw(anything)}
    if data.draw(st.booleans()):
        changed.pop(data.draw(st.sampled_from(list(changed))))
    read([json.dumps(changed).encode(), *data.draw(st.lists(st.binary(max_size=30), max_size=3))])


@given(st.lists(entries, max_size=3), st.lists(st.binary(max_size=40), max_size=3))
@fuzzed
def test_shapes_that_claim_anything(told: list[Any], frames: list[bytes]) -> None:
    header = {**HEADERS[2], "tensors": told}
    assert header.keys() == Result.model_fields.keys()
    read([json.dumps(header).encode(), *frames])


@given(st.text(max_size=40))
@fuzzed
def test_names_of_code(code: str) -> None:
    header = {**HEADERS[1], "code": code}
    with contextlib.suppress(TaskError):
        message, _ = decode([json.dumps(header).encode(), *VALID[1][1:]])
        assert isinstance(message, Order)
        assert message.code in CODES


@given(anything)
@fuzzed
def test_events_of_any_kind_are_refused_by_the_function(event: Any) -> None:
    with contextlib.suppress(TaskError):
        read_invitation(event)
        raise AssertionError("no such event is an invitation")
    assert "no invitation" in str(handler(event, None)["failure"])
