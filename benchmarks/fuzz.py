"""Does any malformed input end in a traceback, a signal, or without end? None should.

Run: python -m benchmarks.fuzz --cases 2000 [--groups npz,csv] [--seed 0] [--show] [--json FILE]

Every case runs the real command in a child, forked from a process that has siafu and torch loaded
but has run nothing, with limits on time and memory.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks import fuzz_folders, fuzz_inputs, fuzz_settings
from benchmarks.measure import append_json, machine
from siafu.cli.main import main as siafu

GROUPS = fuzz_inputs.MAKERS | fuzz_settings.MAKERS | fuzz_folders.MAKERS
OUTCOMES = ("refused", "accepted", "traceback", "signal", "over time", "over memory")
SECONDS = 60.0
MEMORY_BYTES = 2 << 30
"""What a case may take beyond the process it is forked from."""
_TAIL_BYTES = 4000


@dataclass(frozen=True, slots=True)
class Case:
    """One command that was tried, and how it ended."""

    group: str
    number: int
    arguments: list[str]
    outcome: str
    seconds: float
    told: str
    """The last of what it printed."""


def fork(work: Callable[[], None], log: Path) -> int:
    """Return the id of a child that does the work and ends with its exit code."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setsid()
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        held = psutil.Process().memory_info().vms
        resource.setrlimit(resource.RLIMIT_AS, (held + 2 * MEMORY_BYTES,) * 2)
        work()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # noqa: BLE001 - whatever it is, it is what is looked for
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_siafu(arguments: list[str], folder: Path) -> None:
    """Run `siafu ARGUMENTS` in the folder."""
    os.chdir(folder)
    os.environ["SIAFU_CACHE"] = str(folder / ".cache")
    os.environ.pop("SIAFU_DATA", None)
    sys.argv = ["siafu", *arguments]
    siafu()


def wait(child: int, seconds: float) -> tuple[int | None, int]:
    """Return the child's status, None where its time ran out, and its largest memory in bytes."""
    end = time.monotonic() + seconds
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            return status, usage.ru_maxrss * 1024
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            _, _, usage = os.wait4(child, 0)
            return None, usage.ru_maxrss * 1024
        time.sleep(0.005)


def classify(status: int | None, peak: int, held: int, told: str) -> str:
    """Return which of the outcomes this is; a model's own exception, told as such, is none."""
    if status is None:
        return "over time"
    if peak > held + MEMORY_BYTES or "MemoryError" in told:
        return "over memory"
    if os.WIFSIGNALED(status) or os.WEXITSTATUS(status) >= 128:
        return "signal"
    if os.WEXITSTATUS(status) == 0:
        return "accepted"
    clean = os.WEXITSTATUS(status) == 2 and "  fix:  " in told
    usage = os.WEXITSTATUS(status) == 2 and "─ Error ─" in told
    return "refused" if clean or usage else "traceback"


def make_templates(made: Path) -> None:
    """Write the valid folders that cases are made from."""
    made.mkdir()
    for arguments in (
        ["ingest", "planted:60", "store", "--quiet"],
        ["partition", "planted:60", "one.parts", "--parts", "1", "--quiet"],
        [
            *("train", "planted:60", "--epochs", "2", "--checkpoint-every", "1", "--hidden", "4"),
            *("--out", "run", "--quiet"),
        ],
    ):
        log = made / "log.txt"
        status, _ = wait(fork(partial(run_siafu, arguments, made), log), 300)
        assert status == 0, log.read_text()


def try_case(group: str, number: int, seed: int, root: Path) -> Case:
    """Return how one case ended."""
    draw = random.Random(f"{seed} {group} {number}")
    folder = root / f"{group.replace(' ', '-')}-{number}"
    folder.mkdir()
    note = folder / ".arguments"

    def work() -> None:
        arguments = GROUPS[group](draw, folder)
        note.write_text(json.dumps(arguments))
        run_siafu(arguments, folder)

    log, began, held = folder / ".log", time.monotonic(), psutil.Process().memory_info().rss
    status, peak = wait(fork(work, log), SECONDS)
    arguments = json.loads(note.read_text()) if note.exists() else []
    told = log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
    outcome = classify(status, peak, held, told)
    if outcome in ("refused", "accepted"):
        shutil.rmtree(folder, ignore_errors=True)
    return Case(group, number, arguments, outcome, time.monotonic() - began, told)


def table(cases: list[Case]) -> dict[str, dict[str, int]]:
    """Return how many cases of each group ended in which way."""
    groups = dict.fromkeys(case.group for case in cases)
    counts = {group: dict.fromkeys(OUTCOMES, 0) for group in groups}
    for case in cases:
        counts[case.group][case.outcome] += 1
    return counts


def main() -> None:
    """Try the cases, print a table, and exit with 1 where one ended badly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--groups", default=",".join(GROUPS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="print every bad case")
    parser.add_argument("--json", type=Path, help="append the table to this file")
    args = parser.parse_args()
    # Threads do not survive a fork: none may be started before.
    torch.set_num_threads(1)
    groups = args.groups.split(",")
    root = Path(tempfile.mkdtemp(prefix="siafu-fuzz-"))
    make_templates(root / "made")
    began, cases = time.monotonic(), []
    for k in range(args.cases):
        case = try_case(groups[k % len(groups)], k // len(groups), args.seed, root)
        cases.append(case)
        if args.show and case.outcome not in ("refused", "accepted"):
            where = f"{case.group} {case.number}: {' '.join(map(repr, case.arguments))}"
            print(f"--- {case.outcome}, {where}\n{case.told[-1500:]}", flush=True)
    counts = table(cases)
    width = max(map(len, counts)) + 2
    print(f"{'group':<{width}}" + "".join(f"{name:>13}" for name in OUTCOMES))
    for group, found in counts.items():
        print(f"{group:<{width}}" + "".join(f"{found[name]:>13}" for name in OUTCOMES))
    bad = [case for case in cases if case.outcome not in ("refused", "accepted")]
    print(f"{len(cases)} cases in {time.monotonic() - began:.0f} s, {len(bad)} bad")
    if bad:
        print(f"kept in {root}")
    else:
        shutil.rmtree(root, ignore_errors=True)
    if args.json:
        row: dict[str, Any] = {
            "cases": len(cases),
            "seed": args.seed,
            "groups": counts,
            "machine": machine(),
        }
        append_json(args.json, row)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
