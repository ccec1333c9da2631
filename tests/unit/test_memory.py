"""Memory as control groups count it, told from files laid out as the kernel's."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from siafu.memory import Budget, free_bytes, held_bytes, total_bytes

MIB = 1 << 20
_NO_OLD_LIMIT = 9223372036854771712


class FakeGroups:
    """A folder of a process, and the groups that it says it is in."""

    def __init__(self, home: Path) -> None:
        self.process, self.mount = home / "proc", home / "groups"
        self.process.mkdir()
        self.mount.mkdir()

    def join(self, group: str, *, old: bool, root: str = "/") -> None:
        """Put the process into a group of a tree that is mounted from `root` on."""
        line = f"4:cpu,memory:{group}" if old else f"0::{group}"
        (self.process / "cgroup").write_text(f"9:name=systemd:/\n{line}\n")
        kind = "cgroup cgroup rw,cpu,memory" if old else "cgroup2 cgroup2 rw,nsdelegate"
        (self.process / "mountinfo").write_text(
            "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
            f"35 31 0:32 {root} {self.mount} rw,relatime shared:2 - {kind}\n"
        )

    def limit(self, group: str, most: object, used: int, *, files: int = 0, old: bool) -> None:
        """Set what a group may hold and holds, a part of it pages of files."""
        folder = self.mount / group
        folder.mkdir(parents=True, exist_ok=True)
        names = ("limit_in_bytes", "usage_in_bytes") if old else ("max", "current")
        for name, value in zip(names, (most, used), strict=True):
            (folder / f"memory.{name}").write_text(f"{value}\n")
        prefix = "total_" if old else ""
        lines = ["anon 5", f"{prefix}inactive_file {files - files // 3}"]
        lines += [f"{prefix}active_file {files // 3}", "inactive_anon 7"]
        if old:  # without total_: of this group alone
            lines += ["inactive_file 1", "active_file 1"]
        (folder / "memory.stat").write_text("\n".join(lines) + "\n")


@pytest.fixture
def groups(tmp_path: Path) -> FakeGroups:
    return FakeGroups(tmp_path)


@pytest.mark.parametrize("old", [False, True], ids=["version 2", "version 1"])
def test_a_group_has_free_what_it_does_not_hold_beside_pages_of_files(groups, old) -> None:
    groups.join("/mine", old=old)
    groups.limit("mine", 100 * MIB, 90 * MIB, files=60 * MIB, old=old)
    assert free_bytes(groups.process) == 70 * MIB
    assert total_bytes(groups.process) == 100 * MIB
    groups.limit("mine", 100 * MIB, 190 * MIB, old=old)
    assert free_bytes(groups.process) == 0


@pytest.mark.parametrize("old", [False, True], ids=["version 2", "version 1"])
def test_groups_above_bind_as_well(groups, old) -> None:
    groups.join("/outer/inner/mine", old=old)
    groups.limit("outer", 100 * MIB, 80 * MIB, old=old)
    groups.limit("outer/inner", _NO_OLD_LIMIT if old else "max", 40 * MIB, old=old)
    groups.limit("outer/inner/mine", 60 * MIB, 20 * MIB, old=old)
    assert free_bytes(groups.process) == 20 * MIB
    assert total_bytes(groups.process) == 60 * MIB


def test_the_mount_of_a_container_begins_at_its_own_group(groups) -> None:
    groups.join("/docker/abc/mine", old=True, root="/docker/abc")
    groups.limit("mine", 50 * MIB, 10 * MIB, old=True)
    assert free_bytes(groups.process) == 40 * MIB
    groups.join("/../elsewhere", old=True, root="/docker/abc")
    groups.limit(".", 30 * MIB, 10 * MIB, old=True)
    assert free_bytes(groups.process) == 20 * MIB


def test_without_a_limit_it_is_the_machine(groups) -> None:
    whole = psutil.virtual_memory().total
    assert total_bytes(groups.process) == whole  # no files at all
    groups.join("/mine", old=False)
    assert total_bytes(groups.process) == whole
    groups.limit("mine", "max", 10, old=False)
    assert total_bytes(groups.process) == whole
    assert 0 < free_bytes(groups.process) <= whole


def test_a_budget_names_the_least_that_is_enough() -> None:
    held, need = held_bytes(), 400 * 10**6
    small = Budget(most=held)
    assert small.free < 10**8
    named = int(small.fix(need).removeprefix("give --memory ").removesuffix("MB or more")) * 10**6
    assert Budget(most=named).free >= need
    assert named < held + need + 10**8
    # Of four ranks, beside what the process that starts them holds.
    assert "--memory 110MB" in Budget(most=held, beside=held_bytes() + 10**9, ranks=4).fix(need)
    assert Budget(most=1).free == 0
    assert "more memory, or wait" in Budget().fix(need, "wait")


_THREADS = """
import resource, sys, threading
from siafu.memory import give_back, held_bytes, share_one_arena
share_one_arena()
import numpy as np
from siafu.ops import spare_page_faults
if not spare_page_faults():
    sys.exit(77)

def work():
    for _ in range(10):
        np.ones(10_000_000)

def faults():
    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

grown = faults()
print(faults() - grown, held_bytes(), end=" ")
give_back()
print(held_bytes())
"""


def test_threads_keep_what_they_freed_until_it_is_given_back():
    done = subprocess.run(
        [sys.executable, "-c", _THREADS], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode == 77:
        pytest.skip("another allocator than glibc's")
    assert done.returncode == 0, done.stderr
    faults, held, left = map(int, done.stdout.split())
    assert faults < 2000, "20 times 80 MB would be 390,000 pages"
    assert left < held - 60_000_000
