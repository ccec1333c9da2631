"""What a pool's endpoint and its workers on other machines say to each other.

A message is a list of frames: a small JSON header, then the raw bytes of tensors in the order in
which the header tells of them. Headers have exactly the fields of their kind, each checked; nothing
in a message is ever run or unpickled. Decoding raises TaskError and nothing else.

    worker    fetch    a token, the keys of bundles it has kept
    endpoint  order    the task, and those of its bundles that the worker lacks
    worker    result   tensors, or a failure
    endpoint  notice   `stored`, or why it refuses
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from siafu.elastic.compute import CODES
from siafu.elastic.task import Bundle, Fact, Tensors
from siafu.elastic.tensors import (
    MOST_TENSORS,
    Frame,
    decode_tensors,
    encode_tensors,
    is_entry,
    is_name,
)
from siafu.errors import TaskError

FORM = 1
"""Raised when messages change so that older sides can't read them."""
MOST_BYTES = 1 << 30
"""Of one message, all frames together."""
MOST_HEADER_BYTES = 64 << 10
MOST_KEYS = 200
"""Of bundles named in one message."""
MOST_FACTS = 64
LONGEST_TEXT = 16 << 10
LONGEST_FAILURE = 4 << 10
LONGEST_SECONDS = 1e12
LIFETIMES = ("run", "version", "once")
STORED = "stored"
TOKEN = re.compile(r"[A-Za-z0-9_-]{32}")


@dataclass(frozen=True, slots=True)
class Fetch:
    """A worker asks for the task behind its token."""

    token: str
    held: tuple[str, ...] = ()
    """Keys of bundles that need not be sent."""


@dataclass(frozen=True, eq=False, slots=True)
class Order:
    """A task on its way to a worker."""

    code: str
    facts: dict[str, Fact]
    bundles: tuple[Bundle, ...]
    """Those the worker lacks."""
    held: tuple[str, ...] = ()
    """Keys of the task's other bundles."""
    forgotten: tuple[str, ...] = ()
    """Keys that the worker holds and nobody needs again."""


@dataclass(frozen=True, eq=False, slots=True)
class Result:
    """What a worker made of an order."""

    token: str
    worker: str
    started: float
    seconds: float
    tensors: Tensors = field(default_factory=dict)
    failure: str = ""
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """What the endpoint thinks of a message that no order answers."""

    text: str


Message = Fetch | Order | Result | Notice


def _is_text(value: Any, longest: int = LONGEST_TEXT) -> bool:
    if not isinstance(value, str) or len(value) > longest:
        return False
    # Lone surrogates can be written in JSON and nowhere else.
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def _is_seconds(value: Any) -> bool:
    return type(value) is float and 0 <= value <= LONGEST_SECONDS


def _is_keys(value: Any) -> bool:
    if not isinstance(value, list) or len(value) > MOST_KEYS:
        return False
    return all(map(is_name, value)) and len(set(value)) == len(value)


def _is_fact(value: Any) -> bool:
    if type(value) is bool:
        return True
    if type(value) is int:
        return abs(value) < 1 << 64
    return math.isfinite(value) if type(value) is float else _is_text(value)


def _is_facts(value: Any) -> bool:
    if not isinstance(value, dict) or len(value) > MOST_FACTS:
        return False
    return all(is_name(name) and _is_fact(fact) for name, fact in value.items())


def _is_entries(value: Any) -> bool:
    if not isinstance(value, list) or len(value) > MOST_TENSORS:
        return False
    return all(is_entry(entry, MOST_BYTES) for entry in value)


def _is_bundle(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != {"key", "lifetime", "tensors"}:
        return False
    is_kept_right = isinstance(value["lifetime"], str) and value["lifetime"] in LIFETIMES
    return is_name(value["key"]) and is_kept_right and _is_entries(value["tensors"])


def _is_bundles(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MOST_KEYS and all(map(_is_bundle, value))


def is_token(value: Any) -> bool:
    """Return whether a value has the form of a token."""
    return isinstance(value, str) and TOKEN.fullmatch(value) is not None


SCHEMA: dict[str, dict[str, Callable[[Any], bool]]] = {
    "fetch": {"token": is_token, "held": _is_keys},
    "order": {
        "code": is_name,
        "facts": _is_facts,
        "bundles": _is_bundles,
        "held": _is_keys,
        "forgotten": _is_keys,
    },
    "result": {
        "token": is_token,
        "worker": is_name,
        "started": _is_seconds,
        "seconds": _is_seconds,
        "failure": lambda value: _is_text(value, LONGEST_FAILURE),
        "is_final": lambda value: type(value) is bool,
        "tensors": _is_entries,
    },
    "notice": {"text": _is_text},
}


def encode(message: Message) -> list[Frame]:
    """Return the frames of a message; raise TaskError for one that would be refused."""
    kind = type(message).__name__.lower()
    fields: dict[str, Any] = {name: getattr(message, name) for name in SCHEMA[kind]}
    frames: list[Frame] = []
    if isinstance(message, Order):
        fields["bundles"] = []
        for bundle in message.bundles:
            entries, more = encode_tensors(bundle.tensors, MOST_BYTES)
            told = {"key": bundle.key, "lifetime": bundle.lifetime, "tensors": entries}
            fields["bundles"].append(told)
            frames += more
    elif isinstance(message, Result):
        fields["tensors"], frames = encode_tensors(message.tensors, MOST_BYTES)
    fields = {name: list(v) if isinstance(v, tuple) else v for name, v in fields.items()}
    header = {"form": FORM, "kind": kind, **fields}
    _check(header)
    return _within_limits([json.dumps(header, ensure_ascii=False).encode(), *frames], MOST_BYTES)


def decode(frames: Sequence[Frame], *, most_bytes: int = MOST_BYTES) -> Message:
    """Return the message; raise TaskError for anything that is not exactly one."""
    header = _header(_within_limits(frames, most_bytes)[0])
    kind = _check(header)
    fields = {name: header[name] for name in SCHEMA[kind]}
    if kind == "order":
        return _order(fields, frames[1:])
    entries = fields.get("tensors", [])
    _check_count(entries, frames[1:])
    if kind == "result":
        return Result(**{**fields, "tensors": decode_tensors(entries, frames[1:])})
    return Notice(**fields) if kind == "notice" else Fetch(fields["token"], tuple(fields["held"]))


def _within_limits(frames: Sequence[Frame], most_bytes: int) -> list[Frame]:
    if not frames:
        raise _refused("no frame at all")
    total = sum(len(frame) for frame in frames)
    if len(frames[0]) > MOST_HEADER_BYTES or total > most_bytes:
        raise _refused(
            f"a header of {len(frames[0])} bytes, {total} in all; "
            f"at most {MOST_HEADER_BYTES} and {most_bytes}"
        )
    return list(frames)


def _header(frame: Frame) -> dict[str, Any]:
    try:
        header = json.loads(
            bytes(frame).decode(), object_pairs_hook=_once_each, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        raise _refused(f"a header that is no JSON: {str(error)[:200]!r}") from error
    if not isinstance(header, dict):
        raise _refused(f"a header that is a {type(header).__name__}")
    return header


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name comes twice")
    return fields


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _check(header: dict[str, Any]) -> str:
    """Return the kind of a header whose every field is as it should be."""
    kind = header.get("kind")
    if not isinstance(kind, str) or kind not in SCHEMA or type(header.get("form")) is not int:
        raise _refused("a header without a known kind")
    if header["form"] != FORM:
        raise _refused(f"form {header['form']} of messages, here {FORM}")
    if header.keys() != {"form", "kind", *SCHEMA[kind]}:
        raise _refused(f"other fields than those of a {kind}")
    for name, is_right in SCHEMA[kind].items():
        if not is_right(header[name]):
            raise _refused(f"{name!r} of a {kind} is not allowed: {repr(header[name])[:200]}")
    return kind


def _check_count(entries: Sequence[Any], frames: Sequence[Frame]) -> None:
    if len(entries) != len(frames):
        raise _refused(f"{len(frames)} frames for {len(entries)} tensors")


def _order(fields: dict[str, Any], frames: Sequence[Frame]) -> Order:
    if fields["code"] not in CODES:
        raise TaskError(
            "The task names unknown code.", seen=fields["code"], fix="use matching versions"
        )
    entries = [entry for bundle in fields["bundles"] for entry in bundle["tensors"]]
    _check_count(entries, frames)
    keys = [bundle["key"] for bundle in fields["bundles"]] + fields["held"]
    if len(set(keys)) != len(keys):
        raise _refused("a bundle comes twice")
    # All at once, so that names which come twice in different bundles are found.
    tensors = decode_tensors(entries, frames)
    bundles = tuple(
        Bundle(
            bundle["key"],
            {name: tensors[name] for name, _, _ in bundle["tensors"]},
            bundle["lifetime"],
        )
        for bundle in fields["bundles"]
    )
    return Order(
        fields["code"],
        fields["facts"],
        bundles,
        tuple(fields["held"]),
        tuple(fields["forgotten"]),
    )


def _refused(seen: str) -> TaskError:
    return TaskError(
        "A message can't be read.", seen=seen, fix="use the same siafu on both machines"
    )
