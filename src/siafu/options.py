"""What option classes are made of: a setting has a description, limits, and runs it is for.

Option classes stand beside the code that reads them (`nn/options.py`, `minibatch/options.py` ...);
`siafu.config.RunConfig` is their sum. A setting that has no meaning for a run is refused there by
one check, from what is written here with the setting.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from siafu.errors import ConfigError
from siafu.files import read_mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class RunKind:
    """What a run is, as far as settings have a meaning by it."""

    config: Any
    """The resolved RunConfig, which is above this module."""
    over_time: bool
    unit: Literal["graph", "macrobatch", "interval"]
    pool: str
    """Empty where there is no pipeline."""
    assigns_widths: bool
    """Rows have widths of their own."""
    lags: bool
    """Rows may be older than an exact step's."""
    task: str | None
    """None where only the data tells."""

    @property
    def is_own(self) -> bool:
        """Whether the model is the user's."""
        return ":" in self.config.model


@dataclass(frozen=True, slots=True)
class Scope:
    """Runs that a setting has a meaning for."""

    covers: Callable[[RunKind], bool]
    elsewhere: str
    """Where it has none: ends the sentence `X has no meaning ...`."""
    remedy: str | None = None
    """What to add to a run so that it has one."""


STATIC = Scope(lambda kind: not kind.over_time, "on a dynamic graph")
OVER_TIME = Scope(lambda kind: kind.over_time, "on a static graph")
SCORED = Scope(
    lambda kind: kind.config.is_scored,
    "where nothing is scored",
    "leave --inference none out",
)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a setting's field knows beside its type and limits."""

    scopes: tuple[Scope, ...]
    usual: int


class Options(BaseModel):
    """Settings with one owner; each is a key of a file, a flag and a Python argument alike."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    panel: ClassVar[str] = ""
    """What the help calls these settings."""


def setting(default: Any, description: str, *scopes: Scope, usual: int = 0, **limits: Any) -> Any:
    """Return a field that has a meaning where all scopes cover a run.

    Help shows the `usual` ones first, by that number.
    """
    field: Any = Field(default, description=description, **limits)
    field.metadata.append(Meaning(scopes, usual))
    return field


def read_bytes(text: str, what: str = "memory budget") -> int:
    """Return the bytes that `4GB`, `512 MiB` or a plain number mean."""
    match = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]?)(i?)B?\s*", text, re.IGNORECASE)
    try:
        assert match is not None
        number, power, binary = float(match[1]), " KMGT".index(match[2].upper() or " "), match[3]
    except (AssertionError, ValueError):
        raise ConfigError(
            f"The {what} can't be read.", seen=text, fix="write it as 4GB or 512MiB"
        ) from None
    size = number * (1024 if binary else 1000) ** power
    if text.strip()[-1] in ".0123456789" and 0 < size < 10**6:
        raise ConfigError(
            f"The {what} has no unit.",
            seen=f"{text}: {number:g} bytes",
            fix=f"did you mean {number:g}GB? Write it as 4GB or 512MiB",
        )
    return int(min(size, 2**63))


_NAME = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^,]*?))\s*(,|$)')


def joined(value: Any) -> Any:
    """Return a list as the text that settings hold: comma between, and quotes where they are due.

    Anything else comes back as it is.
    """
    value = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(value, list | tuple):
        return value
    words = [str(one) for one in value]
    # A quote at one name's end and another's begin would enclose what is between.
    bare = [word for word in words if '"' not in word and names_in(word) == (word,)]
    return ",".join(word if word in bare else _quoted(word) for word in words)


def _quoted(word: str) -> str:
    doubled = word.replace('"', '""')
    return f'"{doubled}"'


def names_in(text: str) -> tuple[str, ...]:
    """Return the names of a list, comma between; one with a comma in it stands in double quotes."""
    names = []
    for found in _NAME.finditer(text):
        quoted, plain, after = found.groups()
        names.append(plain if quoted is None else quoted.replace('""', '"'))
        if not after:
            break
    return tuple(names) if text.strip() else ()


def read_config(path: Path) -> dict[str, Any]:
    """Return the settings of a YAML or TOML file, unchecked."""
    fix = "check path and syntax, and write lines as `key: value`"
    with readable(f"{path}", "The config file can't be read.", fix):
        return read_mapping(path)


@contextmanager
def readable(seen: str, problem: str, fix: str) -> Iterator[None]:
    """Raise a ConfigError where what a user wrote can't be read inside."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise ConfigError(problem, seen=f"{seen}: {error}", fix=fix) from error
