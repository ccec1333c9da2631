"""Reading files that somebody else may have put there: plain files only, within limits.

What can't be read so is an OSError or a ValueError, which callers turn into errors of their own.
"""

import errno
import json
import os
import stat
import tomllib
from pathlib import Path
from typing import IO, Any

MOST_BYTES = 1 << 28
"""Of a small file; the manifest of a graph with a million class names has a tenth of it."""
MOST_MAPPING_BYTES = 1 << 20
"""Of a file that people write."""
MOST_DEPTH = 32
"""Of lists and objects within each other; ours have up to 5."""


def open_regular(path: Path, *, follow: bool = True) -> IO[bytes]:
    """Return a plain file opened for reading; a pipe or device is refused and never waited for.

    `follow` allows a symbolic link.
    """

    def opened(name: str, flags: int) -> int:
        flags |= getattr(os, "O_NONBLOCK", 0)
        return os.open(name, flags if follow else flags | getattr(os, "O_NOFOLLOW", 0))

    try:
        file: IO[bytes] = open(str(path), "rb", opener=opened)  # noqa: SIM115 - the caller closes
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(errno.ELOOP, "a symbolic link, not a file", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def read_regular(path: Path, *, most_bytes: int = MOST_BYTES, follow: bool = True) -> bytes:
    """Return the bytes of a plain file that has no more than `most_bytes`."""
    with open_regular(path, follow=follow) as file:
        length = os.fstat(file.fileno()).st_size
        if length > most_bytes:
            raise OSError(errno.EFBIG, f"more than {most_bytes} bytes", str(path))
        return file.read(length)


def read_text(path: Path) -> str:
    """Return the text of a small plain file."""
    return read_regular(path).decode()


def read_json(path: Path, *, follow: bool = True) -> Any:
    """Return what a small plain file of JSON holds."""
    return parse_json(read_regular(path, follow=follow))


def parse_json(text: str | bytes) -> Any:
    """Return what the JSON says; a ValueError where it is none or is nested too deep."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("lists and objects nested too deep") from error
    layer = [value]
    for _ in range(MOST_DEPTH):
        layer = [
            inner
            for outer in layer
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not layer:
            return value
    raise ValueError(f"lists and objects nested more than {MOST_DEPTH} deep")


def read_mapping(path: Path, *, most_bytes: int = MOST_MAPPING_BYTES) -> dict[str, Any]:
    """Return the keys and values of a small YAML or TOML file."""
    text = read_regular(path, most_bytes=most_bytes).decode()
    return mapping_of(text, is_toml=path.suffix == ".toml")


def mapping_of(text: str, *, is_toml: bool = False) -> dict[str, Any]:
    """Return the keys and values of a text in YAML or TOML."""
    import yaml  # noqa: PLC0415 - not everybody reads such files

    try:
        # The loader in C takes a tenth of the time; a source build of PyYAML may lack it.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        values = tomllib.loads(text) if is_toml else yaml.load(text, loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{error}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(values, dict):
        raise ValueError("no lines as `key: value`")  # noqa: TRY004 - of the file, not of our code
    return {str(key): value for key, value in values.items()}
