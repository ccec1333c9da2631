"""Ranks on machines that do not share a disk: what they need of the run is sent, or fetched by URL.

Rank 0 has the run's folder. A rank that does not see it works in a scratch folder, with the
settings and, to go on or to infer, with checkpoints or weights from rank 0. It reads its part from
the URL or the path that the run names; where its machine has no such folder, rank 0 sends that one
part. What it writes, predictions and its share of checkpoints, is brought to rank 0.
"""

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from siafu.comm import DEFAULT_DEADLINE_SECONDS, World, give_files, told_by_first
from siafu.config import read_run_config
from siafu.errors import ConfigError
from siafu.files import is_url, read_regular
from siafu.graph import folder_kind, scratch_folder, writing
from siafu.graph.manifest import MANIFEST
from siafu.launch.rank import Job
from siafu.partitioning import open_parts
from siafu.record import RunFolder

_ALL_NEED = ("part_of.npy", MANIFEST)
"""Of the whole graph; ids only where edges are told by them."""
_OF_OTHERS = (MANIFEST, "halo_counts.npy")


def settings_of_first(
    read: Callable[[], dict[str, Any]], deadline: float = DEFAULT_DEADLINE_SECONDS
) -> dict[str, Any]:
    """Return the settings of a run that rank 0 reads: ranks need them before they can join.

    All ranks of torchrun call this together; others than rank 0 need not see the run.
    """
    settings: dict[str, Any] = json.loads(told_by_first(lambda: json.dumps(read()), deadline))
    return settings


@contextmanager
def shared_job(path: str, job: Job | None, world: World) -> Iterator[tuple[Path, RunFolder, Job]]:
    """Yield rank 0's path of a run, and that run and rank 0's job as this rank finds them."""
    world.step = "start"
    place = Path(world.share_text(path))
    job = Job.from_text(world.share_text(job.to_text() if job else ""))
    with _reached_by_all(place, job, world) as (folder, own):
        yield place, folder, own


@contextmanager
def _reached_by_all(path: Path, job: Job, world: World) -> Iterator[tuple[RunFolder, Job]]:
    """Yield the run's folder and the job as this rank finds them; all ranks call this together."""
    seen = _seen(world, _mark(path) if world.rank == 0 else "", path)
    world.apart = tuple(rank for rank, is_seen in enumerate(seen) if not is_seen)
    lacking = _without_parts(job, world)
    if not world.apart and not lacking:
        yield RunFolder(path), job
        return
    with scratch_folder() as here:
        is_apart = world.rank in world.apart
        folder = RunFolder(here / "run") if is_apart else RunFolder(path)
        world.step = "sending the run's files to machines that do not see them"
        give_files(world, folder.path, lambda rank: _files_of(path, job), list(world.apart))
        if world.apart:
            _check_own_code(read_run_config(folder.config), path)
        parts = _sent_parts(here, job, world, lacking)
        if job.pairs:
            given = {Path(job.pairs).name: Path(job.pairs)}
            give_files(world, here, lambda rank: given, list(world.apart))
        if is_apart:
            pairs = str(here / Path(job.pairs).name) if job.pairs else ""
            target = str(here / "target") if job.target else ""
            job = replace(job, pairs=pairs, target=target)
        yield folder, replace(job, parts=parts)


def shared_result(folder: RunFolder, world: World) -> dict[str, Any]:
    """Return what the run came to, on every rank."""
    if not world.apart:
        return folder.read_result()
    text = json.dumps(folder.read_result()) if world.rank == 0 else ""
    result: dict[str, Any] = json.loads(world.share_text(text))
    return result


def _mark(path: Path) -> str:
    """Leave a file that nobody can have seen before, and return its name."""
    name = f".seen-{secrets.token_hex(8)}"
    with writing(path):
        (path / name).touch()
    return name


def _seen(world: World, mark: str, path: Path) -> list[bool]:
    mark = world.share_text(mark)
    found = world.gather_numbers([float((path / mark).exists())])
    if world.rank == 0:
        with suppress(OSError):
            (path / mark).unlink()
    return [bool(row[0]) for row in found]


def _files_of(path: Path, job: Job) -> dict[str, Path]:
    """Return the files of a run that a rank apart needs for a job, by their names there."""
    folder = RunFolder(path)
    files = [folder.config]
    if job.verb == "infer":
        files.append(folder.weights)
    if job.resume:
        files += [file for file in folder.checkpoints.rglob("*") if file.is_file()]
    return {file.relative_to(path).as_posix(): file for file in files}


def _check_own_code(settings: dict[str, Any], path: Path) -> None:
    """Raise where ranks need code that lies in the run's folder alone."""
    for setting in ("model", "loss"):
        place = Path(str(settings.get(setting) or "").rpartition(":")[0])
        if path in place.parents:
            raise ConfigError(
                f"The {setting} was given as an object, and not all machines see the run's folder.",
                seen=f"{place} on rank 0 only",
                fix=f"put it into a file that lies on each machine and give {setting}=FILE.py:NAME",
            )


def _without_parts(job: Job, world: World) -> list[int]:
    """Return the ranks that do not find rank 0's data where the job names it."""
    if is_url(job.parts):
        return []
    found = world.gather_texts(_digest(Path(job.parts)))
    return [rank for rank, digest in enumerate(found) if digest != found[0]]


def _sent_parts(here: Path, job: Job, world: World, lacking: list[int]) -> str:
    """Return where this rank's data is, after rank 0 has sent the parts that ranks lack."""
    if not lacking:
        return job.parts
    own = Path(job.parts)
    copy = here / own.name
    give_files(world, copy, lambda rank: _files_of_data(own, rank, job), lacking)
    links = own.with_suffix(".links")
    beside = {file.name: file for file in links.glob("*")} if world.rank == 0 else {}
    give_files(world, copy.with_suffix(".links"), lambda rank: beside, lacking)
    return str(copy) if world.rank in lacking else job.parts


def _digest(folder: Path) -> str:
    try:
        return sha256(read_regular(folder / MANIFEST)).hexdigest()
    except OSError:
        return ""


def _files_of_data(folder: Path, rank: int, job: Job) -> dict[str, Path]:
    """Return the files that a rank reads of a parts folder: of others' parts two small ones."""
    if folder_kind(folder) != "parts":
        return {f.relative_to(folder).as_posix(): f for f in folder.rglob("*") if f.is_file()}
    needs_ids = bool(job.pairs) or read_tells_edges(folder)
    names = [file.name for file in folder.iterdir() if file.is_file()] if needs_ids else _ALL_NEED
    files = [folder / name for name in names]
    for number in range(open_parts(folder).num_parts):
        part = folder / f"part{number}"
        files += part.iterdir() if number == rank else [part / name for name in _OF_OTHERS]
    return {file.relative_to(folder).as_posix(): file for file in files}


def read_tells_edges(parts: Path) -> bool:
    """Return whether what is predicted may be edges, which are told by the ids of their ends."""
    graph = open_parts(parts).facts["graph"]
    is_of_edges = bool(graph.get("num_edge_classes") or graph.get("num_edge_targets"))
    return is_of_edges or parts.with_suffix(".links").exists()
