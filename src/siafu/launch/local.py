"""Starting ranks on this machine, and ending them together.

Ranks meet in a file and talk over loopback: no port is fixed, none is open to the network.
"""

import faulthandler
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from siafu.comm import STORE_VARIABLE, Doing, read_deed
from siafu.errors import RankError, SiafuError
from siafu.graph import scratch_folder
from siafu.launch.warm import Fork, WarmProcess, warm_process
from siafu.signals import StopOrder, ending_cleanly, heeding

ERRORS_VARIABLE = "SIAFU_ERRORS"
"""Where ranks tell their failures: not the run folder, whose disk may be full."""
KILLED_FOR_MEMORY = "KilledForMemory"
_KILLS = ("/proc/vmstat", "/sys/fs/cgroup/memory.events")
"""Where the kernel counts the processes that it killed for want of memory."""
_POLL_SECONDS = 0.1
_SHORT_POLL_SECONDS = 0.005
"""Where ranks wait for an answer after every epoch."""
_ASKS_PLACE = signal.SIGUSR1
_ANSWER_SECONDS = 1.0
_MOST_CALLS = 4
_MOST_ROWS = 16
"""Ranks whose last operation is told."""
_GRACE_SECONDS = 3.0
"""After a rank failed, time for the others to notice and to say so before they are killed."""

Ranks = dict[int, Fork]


@dataclass(frozen=True, slots=True)
class RankFailure:
    """What a failed rank left behind."""

    rank: int
    time: float
    kind: str
    text: str
    traceback: str
    user_error: tuple[str, str, str] | None
    """Problem, seen and fix of an error the user can act on."""


def kernel_kills() -> int:
    """Return how many processes the kernel has killed for want of memory, here or in our group."""
    total = 0
    for name in _KILLS:
        with suppress(OSError, ValueError):
            lines = Path(name).read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return total


def threads_for(num_ranks: int, asked: int = 0) -> int:
    """Return the threads each of `num_ranks` ranks on this machine should use."""
    return asked or max(1, len(os.sched_getaffinity(0)) // num_ranks)


def run_ranks(
    num_ranks: int,
    run: Path,
    job: str,
    *,
    variables: dict[str, str],
    again: str | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> None:
    """Run `python -m siafu.launch RUN JOB` on every rank; raise the first failure at the end.

    `variables` are added to the ranks' environment. `again` tells a user how to go on with what
    the ranks have saved; with it they may save once more when the command is told to end.
    `meanwhile` is called again and again while they work.
    """
    kills = kernel_kills()
    with ending_cleanly(), scratch_folder() as scratch:
        environments = {
            rank: os.environ | _environment(rank, num_ranks, str(scratch)) | variables
            for rank in range(num_ranks)
        }
        with _started([str(run), job], environments, warm_process(variables)) as ranks:
            ended = _wait(ranks, saves_when_told=again is not None, meanwhile=meanwhile)
            unheard = {rank: ranks[rank] for rank in sorted(ranks.keys() - ended.keys())}
            places = _places_of(unheard, scratch)
        if any(ended.values()):
            error = first_error(
                read_failures(scratch),
                ended,
                unheard=places,
                doing=_doing(scratch, num_ranks),
                again=again or "",
            )
            raise _by_kernel(error, ended) if kernel_kills() > kills else error


@contextmanager
def _started(
    arguments: list[str], environments: dict[int, dict[str, str]], warm: WarmProcess
) -> Iterator[Ranks]:
    """Yield the processes of ranks, which are killed at the end where they still run."""
    with ExitStack() as stack:
        ranks: Ranks = {}
        for rank, environment in environments.items():
            ranks[rank] = warm.fork(arguments, environment)
            stack.callback(ranks[rank].end)
        yield ranks


def _wait(
    ranks: Ranks, *, saves_when_told: bool, meanwhile: Callable[[], None] | None
) -> dict[int, int]:
    """Return the exit codes of ranks, the first end first.

    A rank that does not end by itself soon after another failed is not among them.
    """
    with ExitStack() as stack:
        # Else a signal raises at once.
        order = stack.enter_context(heeding()) if saves_when_told else StopOrder()
        ended: dict[int, int] = {}
        latest, is_passed_on = float("inf"), False
        while len(ended) < len(ranks) and time.monotonic() < latest:
            time.sleep(_POLL_SECONDS if meanwhile is None else _SHORT_POLL_SECONDS)
            if meanwhile is not None:
                meanwhile()
            new = {r: c for r, p in ranks.items() if r not in ended and (c := p.poll()) is not None}
            if any(new.values()):
                latest = min(latest, time.monotonic() + _GRACE_SECONDS)
            ended |= new
            if order() and not is_passed_on:
                is_passed_on = True
                for process in ranks.values():
                    process.send_signal(signal.SIGTERM)
        if order() and (any(ended.values()) or len(ended) < len(ranks)):
            raise order.interrupt()
        return ended


def tell_place_when_asked(rank: int) -> None:
    """Let the launcher ask this rank, whatever it does, where in its code it is."""
    file = (Path(os.environ[ERRORS_VARIABLE]) / f"rank{rank}.place").open("w")
    faulthandler.register(_ASKS_PLACE, file, all_threads=False)


def note_doings(rank: int) -> Doing:
    """Return where this rank notes what it does, for the launcher to read."""
    return Doing(Path(os.environ[ERRORS_VARIABLE]) / f"rank{rank}.doing")


def _doing(errors: Path, num_ranks: int) -> dict[int, str]:
    """Return what ranks do, or did last, in words."""
    now, told = time.time(), {}
    for rank in range(num_ranks):
        deed = read_deed(errors / f"rank{rank}.doing")
        told[rank] = "has waited for nobody yet" if deed is None else deed.told(now)
    return told


def _places_of(unheard: Ranks, errors: Path) -> dict[int, str]:
    """Return where ranks are that did not end with the others, as far as they can tell."""
    files = {rank: errors / f"rank{rank}.place" for rank in unheard}
    for rank, process in unheard.items():
        if files[rank].exists():  # else it has not begun, and would end
            process.send_signal(_ASKS_PLACE)
    latest = time.monotonic() + _ANSWER_SECONDS
    told: dict[int, str] = {}
    while len(told) < len(files) and time.monotonic() < latest:
        time.sleep(_SHORT_POLL_SECONDS)
        texts = {rank: file.read_text() for rank, file in files.items() if file.exists()}
        told = {rank: text for rank, text in texts.items() if text.endswith("\n")}
    return {rank: _innermost(told.get(rank, "")) for rank in unheard}


def _innermost(stack: str) -> str:
    """Return the innermost calls of a stack that faulthandler told."""
    calls = [line.strip() for line in stack.splitlines() if line.startswith("  File ")]
    return "; ".join(calls[:_MOST_CALLS])


def _environment(rank: int, size: int, scratch: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        STORE_VARIABLE: f"{scratch}/rendezvous",
        "GLOO_SOCKET_IFNAME": "lo",
        ERRORS_VARIABLE: scratch,
    }


def first_error(
    failures: list[RankFailure],
    ended: dict[int, int],
    *,
    unheard: dict[int, str] | None = None,
    doing: dict[int, str] | None = None,
    again: str = "",
) -> SiafuError:
    """Return the error that began it, of what ranks told and of exit codes, the first end first.

    A rank's own error comes before those of ranks that only lost a peer. `unheard` ranks had to be
    killed, since they did not end after others failed, and were at such a place in their code.
    `doing` has what each rank did last. `again` tells how to go on.
    """
    told = sorted(failures, key=lambda failure: (failure.kind == "CommError", failure.time))
    own = [failure for failure in told if failure.kind != "CommError"]
    silent = {r: c for r, c in ended.items() if c and r not in {f.rank for f in told}}
    if silent and not own:
        return _killed(list(silent), *next(iter(silent.items())), again)
    if not told:
        return RankError(
            "The ranks ended.", seen="no rank told why", fix="run again with --ranks 1"
        )
    first = told[0]
    if first.kind in ("Terminated", "KeyboardInterrupt"):
        return RankError(
            f"Rank {first.rank} was told to end by a signal, and the others with it.",
            seen=first.text,
            fix=again or "run the command again",
        )
    if first.user_error is None:
        return RankError(
            f"Rank {first.rank} failed; the others were stopped.",
            seen=f"{first.kind}: {first.text}\n{first.traceback.rstrip()}",
            fix="the traceback above is that rank's own",
        )
    problem, seen, fix = first.user_error
    if unheard and not own:
        names = ", ".join(map(str, unheard))
        seen += f"; no sign of rank {names}, which had to be killed"
        seen += "".join(f"\nrank {r} was at {place}" for r, place in unheard.items() if place)
        fix = f"see what kept rank {names}, or raise --deadline if it was only slow"
        fix += f"; {again}" if again else ""
    is_lost = first.kind == "CommError"
    seen += _table(doing or {}, unheard or {}) if is_lost else ""
    lost = tuple(unheard or ()) if is_lost else ()
    return RankError(problem, seen=seen, fix=fix, began_as=first.kind, is_lost=is_lost, lost=lost)


def _table(doing: dict[int, str], unheard: dict[int, str]) -> str:
    """Return the last operation of every rank, a line each, those that gave no sign first."""
    ordered = sorted(doing, key=lambda rank: (rank not in unheard, rank))
    lines = [f"\nrank {rank}: {doing[rank]}" for rank in ordered[:_MOST_ROWS]]
    rest = len(ordered) - _MOST_ROWS
    return "".join(lines) + (f"\nand {rest:,} more ranks" if rest > 0 else "")


def _by_kernel(error: SiafuError, ended: dict[int, int]) -> SiafuError:
    """Return the error of a killed rank as one of memory, which the kernel says it was."""
    killed = [rank for rank, code in ended.items() if code == -signal.SIGKILL]
    if not killed:
        return error
    return RankError(
        f"Rank {killed[0]} was killed by the kernel: memory ran out. The others were stopped.",
        seen="signal SIGKILL, and the kernel counts one more process killed for want of memory",
        fix="end other programs, or start a new run that needs less (more ranks, a narrower model, "
        "--strategy sar)",
        began_as=KILLED_FOR_MEMORY,
        is_lost=getattr(error, "is_lost", False),
        lost=killed,
    )


def _killed(lost: list[int], rank: int, exit_code: int, again: str) -> RankError:
    if exit_code >= 0:
        return RankError(
            f"Rank {rank} ended without a word; the others were stopped.",
            seen=f"exit code {exit_code}",
            fix="run again with --ranks 1 to see its output",
            is_lost=True,
            lost=lost,
        )
    name = signal.Signals(-exit_code).name
    hints = {
        "SIGKILL": "if nobody killed it, memory ran out: end other programs, or start a new run "
        "that needs less (more ranks, a narrower model, --strategy sar); as it is, ",
        "SIGTERM": "",
    }
    return RankError(
        f"Rank {rank} was killed; the others were stopped.",
        seen=f"signal {name}",
        fix=hints.get(name, "native code crashed; ") + (again or "run the command again"),
        is_lost=True,
        lost=lost,
    )


def read_failures(errors: Path) -> list[RankFailure]:
    """Return what failed ranks left behind, each in one file."""
    files = sorted(errors.glob("rank*.json"))
    return [RankFailure(**json.loads(file.read_text())) for file in files]
