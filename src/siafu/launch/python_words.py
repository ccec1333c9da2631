"""What is said to who calls from Python: settings are arguments, and frames have no files.

Errors and remarks are written for the command line, where most of them are met; here the flags in
them become arguments, and files of the cache the frames that were given.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args, get_origin

from siafu.config import RunConfig
from siafu.config.run import SEVERAL
from siafu.errors import SiafuError
from siafu.ingest import frames_named

_RESUME = re.compile(r"`?siafu train --resume ('[^']*'|[^\s`;,]+)`?")
_QUOTE = "'"
_COMMAND = re.compile(r"(`[^`\n]*`|siafu [a-z]+ [^\n;]*)")
"""What is typed into a shell stays as it is."""
_WORD = r"[\w*/-](?:[\w*/-]|[.,:](?=[\w*/-]))*"
_FLAG = re.compile(rf"--(no-)?([a-z][a-z0-9-]+)(?:([ =])(?!--)({_WORD}))?")
_NO_VALUE = re.compile(
    "a|and|are|as|but|can|has|have|if|in|is|leaves?|needs|of|on|or|out|saves|says|takes|that|the|"
    "too?|up|where|with|without"
)
"""Words that stand behind a flag without being its value."""
_OTHERS: dict[str, Any] = {
    **dict.fromkeys(("overwrite", "embeddings", "quiet"), bool),
    **{"pairs": str, "method": str, "parts": int},
}
"""Arguments that are no settings of a training."""


def in_python(text: str) -> str:
    """Return a message with arguments in the place of flags, and frames in that of their files."""
    text = _RESUME.sub(lambda found: f"siafu.resume({found[1].strip(_QUOTE)!r})", text)
    pieces = _COMMAND.split(frames_named(text))
    pieces[::2] = [_FLAG.sub(_argument, piece) for piece in pieces[::2]]
    return "".join(pieces)


def _argument(found: re.Match[str]) -> str:
    negated, flag, between, word = found.groups()
    name, rest = flag.replace("-", "_"), "" if word is None else f"{between}{word}"
    kinds = _kinds(name)
    if not kinds:
        return found[0]
    if bool in kinds:
        return f"{name}={not negated}{rest}"
    if word is None or not _is_value(word, kinds):
        return f"{name}{rest}"
    if name in SEVERAL and "," in word and not _number(word):
        return f"{name}=[{', '.join(map(repr, word.split(',')))}]"
    return f"{name}={word if _number(word) and str not in kinds else repr(word)}"


def _kinds(name: str) -> set[Any]:
    """Return the types of an argument, and the words it may be; nothing where there is none."""
    if name in _OTHERS:
        return {_OTHERS[name]}
    if name not in RunConfig.model_fields:
        return set()
    kind = RunConfig.model_fields[name].annotation
    kinds = {kind, *get_args(kind)}
    return kinds | {word for one in kinds if get_origin(one) is Literal for word in get_args(one)}


def _number(word: str) -> bool:
    return re.fullmatch(r"-?[0-9][0-9.,e+-]*", word) is not None


def _is_value(word: str, kinds: set[Any]) -> bool:
    if word in kinds:
        return True
    return (str in kinds and not _NO_VALUE.fullmatch(word)) or _number(word)


@contextmanager
def speaking_python() -> Iterator[None]:
    """Have what is raised inside say what to change in a call."""
    try:
        yield
    except SiafuError as error:
        words = {name: in_python(getattr(error, name)) for name in ("problem", "seen", "fix")}
        if notes := getattr(error, "__notes__", []):
            error.__notes__ = [in_python(note) for note in notes]
        SiafuError.__init__(error, words["problem"], seen=words["seen"], fix=words["fix"])
        raise
