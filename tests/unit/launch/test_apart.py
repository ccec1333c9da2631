"""Ranks that share no disk with rank 0 train and infer all the same, on their own parts alone."""

import json
from pathlib import Path
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest

import siafu
from siafu.comm import World, bring_files, give_files
from siafu.config import make_config, write_config
from siafu.errors import CommError, ConfigError
from siafu.launch import apart
from siafu.launch.rank import Job, work
from siafu.record import RunFolder
from tests.harness import RankPool

APART = [True, False, False]


def pass_files(world: World, root: str) -> list[str]:
    world.apart = (1, 2)
    mine = Path(root) / str(world.rank)
    mine.mkdir()
    if world.rank == 0:
        (mine / "big").write_bytes(bytes(range(256)) * 131_073)  # more than one piece
        (mine / "none").touch()
    files = {"in/big": mine / "big", "in/none": mine / "none"}
    give_files(world, mine, lambda rank: files, [2])
    if world.rank == 2:
        assert (mine / "in/big").read_bytes() == (Path(root) / "0/big").read_bytes()
        assert (mine / "in/none").read_bytes() == b""
    if world.rank:
        (mine / f"out{world.rank}").write_text(str(world.rank))
    bring_files(world, mine, "out*")
    assert world.meter.bytes_sent.get("file", 0) == [131_073 * 256, 1, 1][world.rank]
    return sorted(path.name for path in mine.iterdir())


def test_files_go_to_those_apart_and_come_from_them(ranks: RankPool, tmp_path: Path) -> None:
    names = ranks.run(pass_files, 3, str(tmp_path))
    assert names == [["big", "none", "out1", "out2"], ["out1"], ["in", "out2"]]


def test_names_that_lead_elsewhere_are_refused() -> None:
    for name in ("../x", "/etc/x", "a/../../x"):
        with pytest.raises(CommError, match="leads elsewhere"):
            apart_inside(name)


def apart_inside(name: str) -> None:
    from siafu.comm.parcels import _inside  # noqa: PLC0415 - only this test looks at it

    _inside(Path("root"), name)


def do_apart(world: World, run: str, text: str) -> tuple[list[str], dict]:
    """Work as if ranks 1 and 2 saw nothing of rank 0's disk; return what they had of the parts."""
    hidden = "" if world.rank else apart._digest(Path(Job.from_text(text).parts))
    with (
        patch.object(apart, "_seen", lambda *rest: APART),
        patch.object(apart, "_digest", lambda folder: hidden),
        apart.shared_job(run if world.rank == 0 else "", Job.from_text(text), world) as found,
    ):
        place, folder, job = found
        assert (folder.path == place) == (world.rank == 0)
        work(folder, job, world)
        parts = Path(job.parts)
        names = sorted(p.relative_to(parts).as_posix() for p in parts.rglob("*") if p.is_file())
        result = apart.shared_result(folder, world) if job.verb == "train" else {}
        return names, result


@pytest.mark.parametrize("strategy", ["halo", "adaqp"])
def test_training_without_a_shared_disk_is_that_with_one(
    ranks: RankPool, tmp_path: Path, strategy: str
) -> None:
    parts = tmp_path / "g.parts"
    siafu.partition("planted:300", parts, parts=3, method="hash", quiet=True)
    losses = []
    for name, far in (("near", False), ("far", True)):
        folder = RunFolder.create(tmp_path / name, "run")
        settings = {"strategy": strategy, "epochs": 4, "checkpoint_every": 2, "trace": True}
        write_config(make_config(data=str(parts), ranks=3, **settings), folder.config)
        job = Job(verb="train", parts=str(parts), quiet=True)
        if far:
            found = ranks.run(do_apart, 3, str(folder.path), job.to_text())
            check_own_parts(found[1][0], 1)
            losses.append(found[2][1]["losses"])
            goes_on = Job(verb="train", parts=str(parts), quiet=True, resume=True)
            again = ranks.run(do_apart, 3, str(folder.path), goes_on.to_text())
            assert again[0][1]["losses"] == losses[-1]
            asked = Job(verb="infer", parts=str(parts), target=str(tmp_path / "asked"), quiet=True)
            ranks.run(do_apart, 3, str(folder.path), asked.to_text())
        else:
            ranks.run(do_near, 3, str(folder.path), job.to_text())
            losses.append(json.loads(folder.result.read_text())["losses"])
    assert losses[0] == losses[1]
    shares = {path.name for path in (tmp_path / "near" / "checkpoints").iterdir()}
    assert {path.name for path in (tmp_path / "far" / "checkpoints").iterdir()} == shares
    assert sorted(p.name for p in (tmp_path / "asked").iterdir()) == [
        f"part{rank}.parquet" for rank in range(3)
    ]
    assert (tmp_path / "far" / "trace.json").exists()
    assert pq.read_table(tmp_path / "far" / "predictions").num_rows == 300


def do_near(world: World, run: str, text: str) -> None:
    work(RunFolder(Path(run)), Job.from_text(text), world)


def check_own_parts(names: list[str], rank: int) -> None:
    """Of others' parts a rank is sent the manifest and the counts, and no more."""
    others = [name for name in names if name.startswith("part") and "/" in name]
    others = [name for name in others if not name.startswith(f"part{rank}/")]
    assert {name.partition("/")[2] for name in others} == {"manifest.json", "halo_counts.npy"}
    assert f"part{rank}/x.npy" in names
    assert "ids.npy" not in names


def test_code_in_the_run_folder_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="given as an object"):
        apart._check_own_code({"model": f"{tmp_path}/code.py:Net"}, tmp_path)
    apart._check_own_code({"model": "gcn", "loss": None}, tmp_path)
