"""Random faults at random moments in every engine: each ends in the right result or a named error.

Run: python -m benchmarks.faults --trials 150 [--jobs 2] [--seconds 1200] [--seed 0] [--log FILE]
     [--first 40 --undisturbed FOLDER]      # go on where an earlier call ended, with its references

A trial starts `siafu train` (by `benchmarks.fault_commands`), waits for a moment (prepare, start,
epoch, saving, predicting), does something bad (a rank or the launcher killed, stopped or told to
end; a checkpoint or a part damaged, after a kill), waits for the command to end and for its
processes to be gone, and goes on with `--resume auto`. Losses and predictions are then compared, to
the bit, with an undisturbed run.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from benchmarks.fault_commands import Commands, Started
from benchmarks.measure import append_json, machine

RANKS, EPOCHS = 2, 12
DEADLINE, SHORT_DEADLINE = 80, 10
"""Seconds; the short one where a rank stands still."""
ENDS_WITHIN = 90.0
GONE_WITHIN = 10.0
_STATIC = ("planted:300", "--partition", "hash")
ENGINES: dict[str, tuple[str, ...]] = {
    "halo": _STATIC,
    "sar": (*_STATIC, "--strategy", "sar"),
    "columns": (*_STATIC, "--strategy", "columns"),
    "adaqp": (*_STATIC, "--strategy", "adaqp"),
    "batchgnn": (*_STATIC, "--strategy", "batchgnn"),
    "dorylus": (*_STATIC, "--strategy", "dorylus", "--pool", "process", "--pool-workers", "1"),
    "tm-gcn": ("drifting", "--model", "tm-gcn"),
}
MOMENTS = ("prepare", "start", "epoch", "saving", "predicting")
SIGNALS = {
    "kill rank": signal.SIGKILL,
    "stop rank": signal.SIGSTOP,
    "end rank": signal.SIGTERM,
    "kill launcher": signal.SIGKILL,
    "end launcher": signal.SIGTERM,
    "interrupt launcher": signal.SIGINT,
}
DAMAGE = ("cut checkpoint", "flip checkpoint", "half checkpoint", "foreign checkpoint", "flip part")
FAULTS = (*SIGNALS, *DAMAGE)


@dataclass(frozen=True, slots=True)
class Trial:
    """What is to happen; all of it follows from the number and the seed."""

    number: int
    engine: str
    fault: str
    moment: str
    draw: float


def drawn(number: int, seed: int) -> Trial:
    """Return a trial; engines, faults and moments each come in turn, in an order by the seed."""
    rng = random.Random(f"{seed}/{number}")
    engine = list(ENGINES)[number % len(ENGINES)]
    fault = FAULTS[(number // len(ENGINES) + number) % len(FAULTS)]
    later = ("epoch", "saving", "predicting")  # there is nothing to damage before
    moment = rng.choice(later if fault in DAMAGE else MOMENTS)
    return Trial(number, engine, fault, moment, rng.random())


class Command:
    """`siafu train` of one run, in a folder of its own."""

    def __init__(self, commands: Commands, engine: str, root: Path) -> None:
        self.commands, self.root, self.out = commands, root, root / "run"
        self.words = ["train", *ENGINES[engine], "--ranks", str(RANKS), "--epochs", str(EPOCHS)]
        self.words += ["--checkpoint-every", "2", "--threads", "1", "--quiet", "--resume", "auto"]
        self.words += ["--out", str(self.out), "--eval-every", "4"]
        self.env = {"TMPDIR": str(root), "SIAFU_CACHE": str(root / "cache")}

    def start(self, deadline: int = DEADLINE) -> Started:
        """Start it, in a session of its own."""
        words = [*self.words, "--deadline", str(deadline)]
        return self.commands.start(self.root, words, self.env)

    def ranks(self, launcher: int) -> list[int]:
        """Return the processes of ranks below a launcher."""
        with suppress(psutil.Error):
            # They are forks of the process that has loaded what they need.
            loaded = psutil.Process(launcher).children()
            return sorted(rank.pid for process in loaded for rank in process.children())
        return []

    def survivors(self) -> list[int]:
        """Return processes that still work in this run's folder."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if Path(process.cwd()) == self.root and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
        return found

    def result(self) -> Any:
        """Return what is compared: losses, and predictions by id."""
        losses = json.loads((self.out / "result.json").read_text())["losses"]
        table = pq.read_table(self.out / "predictions")
        keys = [(name, "ascending") for name in ("time", "id", "src") if name in table.column_names]
        return losses, table.sort_by(keys).to_pydict()


def is_time(trial: Trial, out: Path) -> bool:
    """Return whether the moment of a trial has come."""
    saved = out / "checkpoints"
    if trial.moment == "prepare":
        return out.exists()
    if trial.moment == "start":
        return (out / "job.json").exists()
    if trial.moment == "predicting":
        return (out / "result.json").exists()
    if trial.moment == "saving":
        return any(saved.glob(".epoch-*.tmp")) or len(list(saved.glob("epoch-*"))) > 1
    with suppress(OSError):
        rows = (out / "metrics.jsonl").read_text().count("\n")
        return rows >= 1 + int(trial.draw * (EPOCHS - 4))
    return False


def strike(trial: Trial, command: Command, launcher: Started) -> str:
    """Do the bad thing, and return what was done."""
    if trial.fault in DAMAGE:
        launcher.send_signal(signal.SIGKILL)
        return "killed"
    number = SIGNALS[trial.fault]
    if trial.fault.endswith("launcher"):
        launcher.send_signal(number)
        return "signalled"
    ranks = command.ranks(launcher.pid)
    if not ranks:
        launcher.send_signal(number if number != signal.SIGSTOP else signal.SIGKILL)
        return "no rank yet: the launcher instead"
    chosen = ranks[int(trial.draw * len(ranks))]
    os.kill(chosen, number)
    return f"process {ranks.index(chosen)} of {len(ranks)}"


def damage(trial: Trial, command: Command) -> str:
    """Damage a file of the run, and return which."""
    rng = random.Random(trial.draw)
    if trial.fault == "flip part":
        data = command.out / "data.parts"
        files = sorted(path for path in data.rglob("*.npy") if path.stat().st_size > 200)
        if not files:
            return "no part"
        return _flip(rng.choice(files), rng)
    saved = sorted((command.out / "checkpoints").glob("epoch-*"))
    saved = [path for path in saved if "rank" not in path.name]
    if not saved:
        return "no checkpoint yet"
    newest = saved[-1]
    shares = newest.parent.glob(f"{newest.name}.rank-*/*.npy")
    files = sorted([*newest.glob("*.npy"), *shares])
    if trial.fault == "cut checkpoint":
        file = rng.choice(files)
        os.truncate(file, file.stat().st_size // 2)
        return file.name
    if trial.fault == "flip checkpoint":
        return _flip(rng.choice([*files, newest / "manifest.json"]), rng)
    if trial.fault == "half checkpoint":
        (newest / "manifest.json").unlink()
        return "manifest.json gone"
    other = Path(command.env["TMPDIR"]).parent / "foreign"
    target = newest.with_name("epoch-000011")
    shutil.copytree(other, target, dirs_exist_ok=True)
    return "epoch-000011 of another model"


def _flip(file: Path, rng: random.Random) -> str:
    raw = bytearray(file.read_bytes())
    raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    file.write_bytes(raw)
    return file.name


def run_trial(
    trial: Trial, commands: Commands, root: Path, expected: dict[str, Any]
) -> dict[str, Any]:
    """Return how a trial ended."""
    command = Command(commands, trial.engine, root / f"trial-{trial.number}")
    command.root.mkdir()
    began, row = time.monotonic(), {name: getattr(trial, name) for name in Trial.__slots__}
    launcher = command.start(SHORT_DEADLINE if trial.fault == "stop rank" else DEADLINE)
    while launcher.poll() is None and not is_time(trial, command.out):
        time.sleep(0.002)
    if launcher.poll() is None:
        time.sleep(0.3 * trial.draw if trial.moment in ("prepare", "start") else 0.0)
        row["done"] = strike(trial, command, launcher)
    else:
        row["done"] = "finished first"
    row["code"] = launcher.wait(ENDS_WITHIN)
    row["left"] = _gone(command)
    if trial.fault in DAMAGE and row["done"] == "killed":
        row["done"] = damage(trial, command)
    code, row["again"] = row["code"], 0
    while code not in (0, None) and row["again"] < 3:
        code, row["again"] = command.start().wait(ENDS_WITHIN), row["again"] + 1
    row["outcome"] = {None: "HUNG", 2: "named error"}.get(code, f"code {code}")
    if code == 0:
        row["outcome"] = "same" if command.result() == expected[trial.engine] else "OTHER"
    row["left_at_end"] = _gone(command)
    row["seconds"] = round(time.monotonic() - began, 1)
    if row["outcome"] != "same" or row["left"] or row["left_at_end"]:
        row["log"] = (command.root / "log").read_text()[-1500:]
    shutil.rmtree(command.root, ignore_errors=True)
    return row


def _gone(command: Command) -> int:
    """Return how many processes of a run are left, after some time to end; they are ended then."""
    end = time.monotonic() + GONE_WITHIN
    while (left := command.survivors()) and time.monotonic() < end:
        time.sleep(0.1)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(left)


def main() -> int:
    """Run the trials and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=150)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1800.0, help="begin none after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, help="append a line per trial there")
    parser.add_argument("--undisturbed", type=Path, help="keep undisturbed runs there, or use them")
    args = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="siafu-faults-") as scratch:
        root, expected = Path(scratch), dict[str, Any]()
        with closing(Commands()) as commands, ThreadPoolExecutor(args.jobs) as pool:
            kept = args.undisturbed or root
            kept.mkdir(parents=True, exist_ok=True)
            for engine in ENGINES:
                expected[engine] = undisturbed(engine, commands, kept)
            shutil.copytree(kept / "foreign", root / "foreign", dirs_exist_ok=True)

            def attempt(number: int) -> dict[str, Any] | None:
                if time.monotonic() - began > args.seconds:
                    return None
                return run_trial(drawn(number, args.seed), commands, root, expected)

            counts: Counter[str] = Counter()
            for row in pool.map(attempt, range(args.first, args.first + args.trials)):
                if row is None:
                    continue
                counts[row["outcome"]] += 1
                counts["processes left"] += row["left"] + row["left_at_end"]
                print(json.dumps(row), flush=True)
                if args.log:
                    append_json(args.log, row)
    summary = {"benchmark": "faults", "seed": args.seed, **counts, **machine()}
    print(json.dumps(summary))
    if args.log:
        append_json(args.log, summary)
    return 1 if counts["OTHER"] or counts["HUNG"] or counts["processes left"] else 0


def undisturbed(engine: str, commands: Commands, root: Path) -> Any:
    """Return what a run comes to that nothing happens to; it is kept, and done once."""
    command = Command(commands, engine, root / f"reference-{engine}")
    if not (command.root / "done").exists():
        shutil.rmtree(command.root, ignore_errors=True)
        command.root.mkdir()
        if command.start().wait(4 * ENDS_WITHIN) != 0:  # which may compile kernels
            raise SystemExit(f"{engine}: {(command.root / 'log').read_text()[-2000:]}")
        if engine == "tm-gcn":
            newest = sorted((command.out / "checkpoints").glob("epoch-*"))[-1]
            shutil.copytree(newest, root / "foreign", dirs_exist_ok=True)
        (command.root / "done").touch()
    return command.result()


if __name__ == "__main__":
    sys.exit(main())
