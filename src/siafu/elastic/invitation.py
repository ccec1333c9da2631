"""All that a worker needs to reach the endpoint once: the event its function is called with."""

import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from siafu.elastic.messages import is_token
from siafu.errors import TaskError

KEY = re.compile(r"[0-9a-zA-Z.:+=^!/*?&<>()\[\]{}@%$#-]{40}")
"""A CURVE key in Z85."""
ADDRESS = re.compile(r"tcp://[0-9A-Za-z.:\[\]_-]{1,255}:[0-9]{1,5}")
LONGEST_SECONDS = 24 * 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Invitation:
    """One attempt at a task, from the side of the worker that is asked."""

    address: str
    """Where the endpoint listens: `tcp://HOST:PORT`."""
    server_key: str
    """The endpoint's public key; it is another one in each run."""
    client_public: str
    client_secret: str = field(repr=False)
    """The run's one client key. Whoever has it may ask for tasks until the run ends."""
    token: str = field(repr=False)
    """Good for one task, once."""
    seconds: float
    """How long the attempt may take from now on."""

    def to_event(self) -> dict[str, Any]:
        """Return it as what JSON can say."""
        return asdict(self)


def read_invitation(event: Any) -> Invitation:
    """Return the invitation in an event; raise TaskError for any other event, without its values.

    The values are secrets, and errors end up in logs.
    """
    names = {one.name for one in fields(Invitation)}
    if not isinstance(event, dict) or event.keys() != names:
        raise _refused("other fields than an invitation's")
    wrong = [name for name, pattern in _PATTERNS.items() if not _matches(event[name], pattern)]
    if not is_token(event["token"]):
        wrong.append("token")
    seconds = event["seconds"]
    if type(seconds) not in (int, float) or not 0 < seconds <= LONGEST_SECONDS:
        wrong.append("seconds")
    if wrong:
        raise _refused(f"fields that are not allowed: {', '.join(wrong)}")
    return Invitation(**{**event, "seconds": float(seconds)})


_PATTERNS = {
    "address": ADDRESS,
    "server_key": KEY,
    "client_public": KEY,
    "client_secret": KEY,
}


def _matches(value: Any, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _refused(seen: str) -> TaskError:
    return TaskError(
        "The function was called with an event that is no invitation.",
        seen=seen,
        fix="let a siafu run call it, of the same version",
    )
