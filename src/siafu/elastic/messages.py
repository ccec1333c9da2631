"""What a rank and its workers say to each other: strict, frozen models, checked on arrival.

    worker    fetch    a token, the keys of bundles it has kept        (other machines)
    rank      order    the task, and those of its bundles that the worker lacks
    worker    result   the layout of tensors, or a failure             (other machines)
    rank      notice   `stored`, or why it refuses                     (other machines)
    worker    ready    it takes tasks                                  (processes)
    rank      forget   a bundle that nobody needs again                (processes)
    worker    answer   the layout of tensors, or a failure             (processes)

A message is JSON and carries no tensor; the parts of its blocks go beside it. To other machines
they are frames: the message, then a part per tensor. To processes they are shared memory. Nothing
in a message is ever run or unpickled. Decoding raises TaskError and nothing else.

An invitation is all that a worker elsewhere needs to reach a rank once: the event its function is
called with.
"""

import ctypes
import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import to_json
from torch import Tensor

from siafu.elastic.compute import CODES
from siafu.elastic.task import Bundle, Fact, Tensors
from siafu.elastic.tensors import Entry, Layout, Name, decode_block, encode_block, unreadable
from siafu.errors import TaskError

Frame = bytes | bytearray | memoryview

FORM = 1
"""Raised when messages change so that older sides can't read them."""
MOST_BYTES = 1 << 30
"""Of one message to or from another machine, all frames together."""
MOST_HEADER_BYTES = 64 << 10
MOST_KEYS = 200
"""Of bundles named in one message."""
MOST_FACTS = 64
LONGEST_TEXT = 16 << 10
LONGEST_FAILURE = 4 << 10
LONGEST_SECONDS = 1e12
LONGEST_ATTEMPT_SECONDS = 24 * 3600.0
STORED = "stored"


def _distinct(keys: tuple[str, ...]) -> tuple[str, ...]:
    if len(keys) > 1 and len(set(keys)) != len(keys):
        raise ValueError("a key comes twice")
    return keys


def _bounded(facts: dict[str, Fact]) -> dict[str, Fact]:
    # Not on the type: in a union a float would take what an integer refuses.
    if any(isinstance(fact, int) and abs(fact) >= 1 << 64 for fact in facts.values()):
        raise ValueError("an integer of more than 64 bits")
    return facts


Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Token = Annotated[str, Field(pattern="^[A-Za-z0-9_-]{32}$")]
Seconds = Annotated[float, Field(ge=0, le=LONGEST_SECONDS)]
Keys = Annotated[tuple[Name, ...], Field(max_length=MOST_KEYS), AfterValidator(_distinct)]
Facts = Annotated[
    dict[Name, bool | int | float | Text],
    Field(max_length=MOST_FACTS),
    AfterValidator(_bounded),
]
_STRICT = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class SentBundle(BaseModel):
    """A bundle on its way: its tensors are parts beside the message."""

    model_config = _STRICT

    key: Name
    lifetime: Literal["run", "version", "once"]
    tensors: Layout


class Message(BaseModel):
    """What all messages have in common; no field has a default, so that none is left out."""

    model_config = _STRICT

    form: Annotated[int, Field(ge=FORM, le=FORM)]

    @classmethod
    def of(cls, **fields: Any) -> Self:
        """Return a message; raise TaskError for one that would be refused."""
        try:
            return cls(form=FORM, kind=cls.__name__.lower(), **fields)
        except ValidationError as error:
            raise unreadable(_explained(error)) from None

    @classmethod
    def local_text(cls, **fields: Any) -> bytes:
        """Return a message to a process of this machine, which checks it on arrival."""
        try:
            return to_json({"form": FORM, "kind": cls.__name__.lower(), **fields})
        except ValueError as error:
            raise unreadable(f"{error}"[:200]) from None

    @property
    def layouts(self) -> tuple[tuple[Entry, ...], ...]:
        """The layouts of the blocks that go beside it."""
        return ()


class Fetch(Message):
    """A worker asks for the task behind its token."""

    kind: Literal["fetch"]
    token: Token
    held: Keys
    """Keys of bundles that need not be sent."""


class Order(Message):
    """A task on its way to a worker."""

    kind: Literal["order"]
    code: Name
    facts: Facts
    bundles: Annotated[tuple[SentBundle, ...], Field(max_length=MOST_KEYS)]
    """Those the worker lacks."""
    held: Keys
    """Keys of the task's other bundles."""
    forgotten: Keys
    """Keys that the worker holds and nobody needs again."""

    @model_validator(mode="after")
    def _each_bundle_once(self) -> Self:
        _distinct((*(bundle.key for bundle in self.bundles), *self.held))
        return self

    @property
    def layouts(self) -> tuple[tuple[Entry, ...], ...]:
        """One for each bundle that is sent."""
        return tuple(bundle.tensors for bundle in self.bundles)


class Outcome(Message):
    """What a worker made of an order."""

    started: Seconds
    seconds: Seconds
    failure: Annotated[str, Field(max_length=LONGEST_FAILURE)]
    """Empty for success."""
    is_final: bool
    tensors: Layout

    @property
    def layouts(self) -> tuple[tuple[Entry, ...], ...]:
        """That of the tensors."""
        return (self.tensors,)


class Result(Outcome):
    """The outcome on another machine."""

    kind: Literal["result"]
    token: Token
    worker: Name


class Notice(Message):
    """What the endpoint thinks of a message that no order answers."""

    kind: Literal["notice"]
    text: Text


class Ready(Message):
    """A worker process takes tasks."""

    kind: Literal["ready"]


class Forget(Message):
    """A worker process lets go of a bundle."""

    kind: Literal["forget"]
    key: Name


class Answer(Outcome):
    """The outcome in a worker process."""

    kind: Literal["answer"]
    is_mapped: bool
    """Whether the worker now has the bundles that came with the order."""


RemoteMessage = Fetch | Order | Result | Notice
LocalMessage = Order | Ready | Forget | Answer
_REMOTE: TypeAdapter[RemoteMessage] = TypeAdapter(
    Annotated[RemoteMessage, Field(discriminator="kind")]
)
_LOCAL: TypeAdapter[LocalMessage] = TypeAdapter(
    Annotated[LocalMessage, Field(discriminator="kind")]
)


def clipped(text: str) -> str:
    """Return a failure as it fits into an outcome."""
    return text.encode(errors="replace").decode()[:LONGEST_FAILURE]


def read_local(text: bytes) -> LocalMessage:
    """Return a message between a rank and a process of its own; raise TaskError for any other."""
    try:
        return _LOCAL.validate_json(text)
    except ValidationError as error:
        raise unreadable(_explained(error)) from None


def order_frames(
    code: str,
    facts: dict[str, Fact],
    bundles: Sequence[Bundle],
    held: tuple[str, ...] = (),
    forgotten: tuple[str, ...] = (),
) -> list[Frame]:
    """Return the frames of an order with its tensors; raise TaskError where it would be refused."""
    blocks = [encode_block(bundle.tensors, MOST_BYTES) for bundle in bundles]
    sent = tuple(
        {"key": bundle.key, "lifetime": bundle.lifetime, "tensors": layout}
        for bundle, (layout, _) in zip(bundles, blocks, strict=True)
    )
    order = Order.of(code=code, facts=facts, bundles=sent, held=held, forgotten=forgotten)
    return encode(order, [part for _, parts in blocks for part in parts])


def result_frames(tensors: Tensors, **fields: Any) -> list[Frame]:
    """Return the frames of a result with its tensors; raise TaskError where it would be refused."""
    layout, parts = encode_block(tensors, MOST_BYTES)
    return encode(Result.of(tensors=layout, **fields), parts)


def encode(message: Message, parts: Sequence[Tensor] = ()) -> list[Frame]:
    """Return the frames of a message; raise TaskError for one that is too large."""
    header = message.model_dump_json().encode()
    frames: list[Frame] = [header, *(part.numpy().data for part in parts)]
    _check_limits(frames, MOST_BYTES)
    return frames


def decode(
    frames: Sequence[Frame], *, most_bytes: int = MOST_BYTES
) -> tuple[RemoteMessage, list[Tensors]]:
    """Return a message of another machine, and the tensors of each of its blocks.

    Raise TaskError for anything that is not exactly one.
    """
    _check_limits(frames, most_bytes)
    message = _header(bytes(frames[0]))
    if isinstance(message, Order) and message.code not in CODES:
        raise TaskError(
            "The task names unknown code.", seen=message.code, fix="use matching versions"
        )
    entries = [entry for layout in message.layouts for entry in layout]
    if len(entries) != len(frames) - 1:
        raise unreadable(f"{len(frames) - 1} frames for {len(entries)} tensors")
    # All at once, so that names which come twice in different bundles are found.
    tensors = decode_block(entries, [_part(frame) for frame in frames[1:]], most_bytes)
    return message, [{name: tensors[name] for name, *_ in layout} for layout in message.layouts]


def _part(frame: Frame) -> Tensor:
    """Return a frame's bytes as a tensor: a socket's own memory, or a copy of what others have."""
    if not len(frame):
        return torch.empty(0, dtype=torch.uint8)
    is_sockets = isinstance(frame, memoryview) and not isinstance(frame.obj, bytes | bytearray)
    if not is_sockets or len(frame) < _SMALL_BYTES:
        return torch.frombuffer(bytearray(frame), dtype=torch.uint8)
    address = np.frombuffer(frame, np.uint8).ctypes.data
    if address % _ALIGNED:
        return torch.frombuffer(bytearray(frame), dtype=torch.uint8)
    # The socket is done with a frame that has arrived: nobody else reads or writes it.
    owned = (ctypes.c_uint8 * len(frame)).from_address(address)
    owned.frame = frame  # type: ignore[attr-defined]
    return torch.frombuffer(owned, dtype=torch.uint8)


_SMALL_BYTES = 64 << 10
"""Below it a copy is cheaper than keeping a frame."""
_ALIGNED = 16


def _check_limits(frames: Sequence[Frame], most_bytes: int) -> None:
    if not frames:
        raise unreadable("no frame at all")
    total = sum(len(frame) for frame in frames)
    if len(frames[0]) > MOST_HEADER_BYTES or total > most_bytes:
        raise unreadable(
            f"a header of {len(frames[0])} bytes, {total} in all; "
            f"at most {MOST_HEADER_BYTES} and {most_bytes}"
        )


def _header(text: bytes) -> RemoteMessage:
    try:
        # Of a name that comes twice, pydantic would take the last and say nothing.
        json.loads(text, object_pairs_hook=_once_each, parse_constant=_no_constant)
        return _REMOTE.validate_json(text)
    except ValidationError as error:
        raise unreadable(_explained(error)) from None
    except (ValueError, RecursionError) as error:
        raise unreadable(f"a header that is no JSON: {str(error)[:200]!r}") from error


def _once_each(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name comes twice")


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _explained(error: ValidationError) -> str:
    """Return where the first mistake is and which, without values: some are secrets."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'a message'}: {first['msg']}"[:200]


Key = Annotated[str, Field(pattern=r"^[0-9a-zA-Z.:+=^!/*?\&<>()\[\]{}@%$#\-]{40}$")]
"""A CURVE key in Z85."""


class Invitation(BaseModel):
    """One attempt at a task, from the side of the worker that is asked."""

    model_config = _STRICT

    address: Annotated[str, Field(pattern=r"^tcp://[0-9A-Za-z.:\[\]_\-]{1,255}:[0-9]{1,5}$")]
    """Where the endpoint listens: `tcp://HOST:PORT`."""
    server_key: Key
    """The endpoint's public key; it is another one in each run."""
    client_public: Key
    client_secret: Key = Field(repr=False)
    """The run's one client key. Whoever has it may ask for tasks until the run ends."""
    token: Token = Field(repr=False)
    """Good for one task, once."""
    seconds: Annotated[float, Field(gt=0, le=LONGEST_ATTEMPT_SECONDS)]
    """How long the attempt may take from now on."""
    encrypted: bool
    """Whether the endpoint speaks CURVE; else it takes the client key in clear."""

    def to_event(self) -> dict[str, Any]:
        """Return it as what JSON can say."""
        return self.model_dump()


def read_invitation(event: Any) -> Invitation:
    """Return the invitation in an event; raise TaskError for any other event, without its values.

    The values are secrets, and errors end up in logs.
    """
    try:
        return Invitation.model_validate(event)
    except ValidationError as error:
        wrong = {str(one["loc"][0]) for one in error.errors(include_input=False) if one["loc"]}
        known = sorted(wrong & Invitation.model_fields.keys())
        raise TaskError(
            "The function was called with an event that is no invitation.",
            seen=f"fields that are not allowed: {', '.join(known) or 'others than its own'}",
            fix="let a siafu run call it, of the same version",
        ) from None
