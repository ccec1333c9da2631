"""Writing that a kill or a power cut can't leave half done.

A file is written under another name beside its target, brought to the disk and renamed; then its
folder is brought to the disk too, without which the rename itself may be lost.
"""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def sync_file(path: Path) -> None:
    """Bring what was written to a file to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk."""
    # Some file systems, and Windows, have no such thing; there a rename is as safe as it gets.
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def temporary_beside(path: Path) -> Path:
    """Return a name in the same folder to make something under; a kill leaves `.NAME.*.tmp`."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a name to write a file at; it takes the place of `path` at once, or not at all."""
    temporary = temporary_beside(path)
    try:
        yield temporary
        sync_file(temporary)
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def replacing_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder to fill; it takes the place of `target` at once, or not at all."""
    temporary = temporary_beside(target)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        publish(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """Replace the file's contents at once; a reader sees the old bytes or the new ones."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text_atomically(path: Path, text: str) -> None:
    """Replace the file's contents at once; a reader sees the old text or the new one."""
    write_bytes_atomically(path, text.encode())


def publish(made: Path, target: Path) -> None:
    """Let a complete folder take the target's place."""
    if not target.exists():
        made.rename(target)
        sync_folder(target.parent)
        return
    old = target.with_name(f".{target.name}.{secrets.token_hex(4)}.old")
    target.rename(old)
    made.rename(target)
    sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)
