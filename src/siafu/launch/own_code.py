"""Failures in the code of a user's own model, told as the user's: with his frames and no others."""

import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from siafu.comm import World
from siafu.errors import ModelError, SiafuError

TRACEBACK_VARIABLE = "SIAFU_TRACEBACK"
"""Set to anything, all frames are shown."""

_SIAFU = str(Path(__file__).parent.parent)
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib")})
_TORCH_CALLS_A_MODEL = os.path.join("torch", "nn", "modules", "module.py")
_MOST_FRAMES = 6


@contextmanager
def told_as_the_users(model: str, world: World) -> Iterator[None]:
    """Raise a `ModelError` where the model named `FILE.py:Class` fails inside."""
    try:
        yield
    except SiafuError:
        raise
    except (Exception, SystemExit) as error:
        if ":" not in model or (frames := _frames(error, model)) is None:
            raise
        raise _told(error, frames, model, world) from error


def _told(error: BaseException, frames: list[str], model: str, world: World) -> ModelError:
    text = str(error).strip() or "no message"
    lines = [f"{type(error).__name__}: {text}", *frames[-_MOST_FRAMES:]]
    place = frames[-1].partition(", in ")[0] if frames else model.rpartition(":")[0]
    fix = f"look at {place}; {TRACEBACK_VARIABLE}=1 shows all frames"
    if os.environ.get(TRACEBACK_VARIABLE):
        lines += traceback.format_exception(error)
        fix = f"look at {place}"
    whose = f"Rank {world.rank} failed in" if world.size > 1 else "An error in"
    return ModelError(
        f"{whose} the code of {model}.", seen="\n    ".join("\n".join(lines).splitlines()), fix=fix
    )


def _frames(error: BaseException, model: str) -> list[str] | None:
    """Return the user's own frames, innermost last; None where the model had no part in it."""
    place = model.rpartition(":")[0]
    loaded = getattr(sys.modules.get(place), "__file__", None)
    stack = traceback.extract_tb(error.__traceback__)
    own = [f for f in stack if f.filename == loaded or _is_users(f.filename)]
    told = [f"{_shown(f.filename)}, line {f.lineno}, in {f.name}: {f.line}" for f in own]
    if isinstance(error, SyntaxError) and error.filename and _is_users(error.filename):
        told.append(f"{_shown(error.filename)}, line {error.lineno}: {error.text or ''}".rstrip())
    if told:
        return told
    reached = any(
        f.filename.endswith(_TORCH_CALLS_A_MODEL) or f.filename.startswith("<frozen importlib")
        for f in stack
    )
    return [] if reached else None


def _is_users(file: str) -> bool:
    return not file.startswith(("<", _SIAFU, *_LIBRARIES)) and "site-packages" not in file


def _shown(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
