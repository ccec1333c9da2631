"""Going on with a run on other ranks: its data is cut anew, its checkpoint knows no ranks."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from siafu.config import RunConfig, make_config, read_run_config
from siafu.errors import ConfigError, SiafuError, StoreError
from siafu.files import write_text_atomically
from siafu.graph import folder_kind, open_folder, writing
from siafu.launch.run_state import is_prepared, parts_of
from siafu.partitioning import open_parts
from siafu.record import RunFolder

_ASIDE = ".data.parts.before"


@contextmanager
def other_cut(folder: RunFolder, config: RunConfig, *, anew: bool = False) -> Iterator[None]:
    """Let a run's data be prepared anew inside, where it was cut otherwise than is asked for now.

    With `anew` it is in any case: it was damaged. What it had is put aside, and put back where that
    fails.
    """
    aside = folder.path / _ASIDE
    shutil.rmtree(aside, ignore_errors=True)  # of a process that was killed meanwhile
    if not anew and not _is_other(folder, config):
        yield
        return
    if not folder.parts.exists():
        raise ConfigError(
            "The parts that the run was started on are not its own to cut anew.",
            seen=f"{parts_of(folder)}, and {config.ranks} ranks, --partition {config.partition}",
            fix="leave --ranks and --partition out; a run on the graph itself can change them",
        )
    settings, job = folder.config.read_text(), folder.read_job()
    with writing(folder.path):
        folder.job.unlink()
        folder.parts.rename(aside)
    try:
        yield
        _check_same_graph(aside, folder.parts, config)
    except BaseException:
        shutil.rmtree(folder.parts, ignore_errors=True)
        aside.rename(folder.parts)
        write_text_atomically(folder.config, settings)
        write_text_atomically(folder.job, job)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def has_damaged_parts(folder: RunFolder, error: SiafuError) -> bool:
    """Return whether a run failed since parts that were cut for it are damaged."""
    kind = getattr(error, "began_as", "") or type(error).__name__
    if kind != "StoreError" or not folder.parts.exists():
        return False
    try:
        if folder_kind(folder.parts) == "dynamic":
            open_folder(folder.parts, "dynamic").verify()
        else:
            open_parts(folder.parts).verify()
    except StoreError:
        return True
    return False


def _check_same_graph(before: Path, now: Path, config: RunConfig) -> None:
    try:
        earlier = open_parts(before).graph_fingerprint
    except StoreError:  # which is why it was cut anew; a checkpoint of another graph is refused
        return
    if earlier != open_parts(now).graph_fingerprint:
        raise StoreError(
            "The data of the run is another graph now.",
            seen=f"{config.data}, read again to be cut for {config.ranks} ranks",
            fix="bring back the data the run was started on, or leave --ranks and --partition out; "
            "data that was given in Python, not in a file, can't be read again",
        )


def _is_other(folder: RunFolder, config: RunConfig) -> bool:
    """Return whether the run has parts that differ from those it is to go on with."""
    if not is_prepared(folder) or folder_kind(Path(parts_of(folder))) == "dynamic":
        return False
    before = make_config(**read_run_config(folder.config))
    return (before.ranks, before.partition) != (config.ranks, config.partition)
