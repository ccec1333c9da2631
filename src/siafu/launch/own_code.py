"""Models of the user's own: whether their file may be run, and what they raise told as theirs."""

import hashlib
import os
import shlex
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from siafu.comm import World
from siafu.errors import ConfigError, ModelError, SiafuError
from siafu.files import write_text_atomically

TRACEBACK_VARIABLE = "SIAFU_TRACEBACK"
"""Set to anything, all frames are shown."""

_SIAFU = str(Path(__file__).parent.parent)
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib")})
_TORCH_CALLS_A_MODEL = os.path.join("torch", "nn", "modules", "module.py")
_MOST_FRAMES = 6


@contextmanager
def told_as_the_users(model: str, loss: str | None, world: World) -> Iterator[None]:
    """Raise a `ModelError` where the user's own `FILE.py:Class`, or his loss, fails inside."""
    try:
        yield
    except SiafuError:
        raise
    except (Exception, SystemExit) as error:
        for own in (loss, model):
            if own and ":" in own and (frames := _frames(error, own)) is not None:
                has_failed = own == model or any(_file_of(own) in frame for frame in frames)
                if has_failed or ":" not in model:
                    raise _told(error, frames, own, world) from error
        raise


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


def _file_of(own: str) -> str:
    return _shown(own.rpartition(":")[0])


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


def is_library(module: str) -> bool:
    """Return whether a module is installed, so that every process of this Python finds it."""
    if module == "__main__" or module not in sys.modules:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or not _is_users(file)


def _shown(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


CONFIG_VARIABLE = "SIAFU_CONFIG"


class UntrustedModelError(ConfigError):
    """A model that somebody else may have named."""

    def __init__(self, model: str, source: "Source", where: str, fix: str) -> None:
        self.source = source
        super().__init__(
            f"{where} names Python code to run, which you have not named or confirmed yet.",
            seen=f"{model}: {source.path}, sha256 {source.sha256}",
            fix=f"read that file; if you trust it, {fix}",
        )


@dataclass(frozen=True, slots=True)
class Source:
    """The Python that loading a model runs first."""

    path: Path
    sha256: str
    """Of the file itself, as `sha256sum` shows it."""
    key: str
    """Of its place and content, and of the packages around it."""

    def is_trusted(self) -> bool:
        """Return whether this user has named or confirmed just this file before."""
        return (_home() / self.key).is_file()

    def remember(self) -> None:
        """Trust it from now on; a home that can't be written to is no reason to fail."""
        with suppress(OSError):
            _home().mkdir(parents=True, exist_ok=True, mode=0o700)
            write_text_atomically(_home() / self.key, f"{self.path}\n{self.sha256}\n")


def _home() -> Path:
    """Return where trusted models are noted: not in the cache, which may be shared."""
    common = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(os.environ.get(CONFIG_VARIABLE) or Path(common) / "siafu") / "trusted-models"


def find_source(model: str) -> Source | None:
    """Return the file behind FILE.py:Class or package.module:Class, found without running it.

    None for one that is not there.
    """
    place = model.rpartition(":")[0]
    files = [Path(place)] if place.endswith(".py") else _files_of_module(place)
    if files is None or not all(file.is_file() for file in files):
        return None
    digest, content = hashlib.sha256(place.encode() if not files else b""), "of no file"
    for file in files:
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{file.resolve()}\0{content}".encode())
    return Source(files[-1].resolve() if files else Path(place), content, digest.hexdigest())


def _files_of_module(place: str) -> list[Path] | None:
    """Return the files that importing a module runs: its packages' own, then the module's.

    Parts of Python itself have none; None where there is no such module.
    """
    files, names, here = [], place.split("."), str(Path.cwd())
    search: list[str] | None = sys.path if here in sys.path else [here, *sys.path]
    for end in range(1, len(names) + 1):
        name = ".".join(names[:end])
        specs = (finder.find_spec(name, search) for finder in sys.meta_path)
        spec = None if search is None else next((one for one in specs if one is not None), None)
        if spec is None:
            return None
        if spec.has_location and spec.origin:
            files.append(Path(spec.origin))
        search = spec.submodule_search_locations
    return files


def trust_named(model: str) -> None:
    """Remember a model that the user has named himself; of several ranks, the first does."""
    if ":" in model and _decides() and (source := find_source(model)) is not None:
        source.remember()


def _decides() -> bool:
    """Return whether this process decides: under torchrun the first rank does for all."""
    return int(os.environ.get("WORLD_SIZE", "1")) == 1 or os.environ.get("RANK", "0") == "0"


def check_trusted(model: str, where: str, fix: str) -> None:
    """Raise unless a model that a file names may be run; `fix` is the command that allows it."""
    if ":" not in model or not _decides():
        return
    source = find_source(model)
    if source is None:
        return  # nothing that could be run: the error for that names the file
    if not source.is_trusted():
        raise UntrustedModelError(model, source, where, fix)


def model_to_run(
    found: str, named: str | None, command: str, path: Path, flag: str = "--model"
) -> str:
    """Return the model, or loss, of a run that may be someone else's, as the user allows it.

    One of the user's own may be named anew: where it lies now, and as one to trust.
    """
    if named is None:
        check_trusted(found, str(path), f"run `{command} {flag} {shlex.quote(found)}`")
        return found
    if ":" not in found or named.rpartition(":")[2] != found.rpartition(":")[2]:
        raise ConfigError(
            f"A run keeps its {flag[2:]}.",
            seen=f"{flag} {named}, the run has {found or 'none'}",
            fix=f"leave {flag} out, or name the file where the same code is now",
        )
    trust_named(named)
    return named
