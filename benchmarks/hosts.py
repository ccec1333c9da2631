"""Several hosts on one machine: network namespaces joined by a bridge, links of a set bandwidth.

Run: python -m benchmarks.hosts --hosts 2 --mbit 100                       # set and measured speed
     python -m benchmarks.hosts --hosts 4 --mbit 1000 -- siafu train planted --threads 1

The command after `--` runs once in each host (or as often as there are ranks per host), in an
environment like torchrun's: `python`, `siafu` and `torch` find their peers over the slow links. The
files are those of the machine, and so are the cores, unless each host is given some. A machine with
fewer cores than the hosts should have can play them `slower`: with 2, each host has half of its
cores' time (a control group sees to it) and half of its link, and what takes two seconds would take
one. Needs Linux, root, and `ip` and `tc` (package iproute2).

Everything lives in namespaces named after this process, the bridge too, so deleting those leaves
nothing behind. That happens on leaving `hosts`, on SIGTERM, SIGHUP and Ctrl-C, at exit; and what a
killed process left is swept by the next one.
"""

import argparse
import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.cgroup import Group, NoGroupError, slowed
from benchmarks.namespaces import (
    TOOL_SECONDS,
    end_all,
    end_with_parent,
    kill,
    new_prefix,
    remove,
    signals_unwind,
    signals_wait,
    sweep,
    tool,
)
from siafu.comm import HOST_VARIABLE
from siafu.errors import ConfigError, RankError, SiafuError

PORT = 29400
"""Inside a namespace every port is free."""

GRACE_SECONDS = 15.0
"""How long the other hosts may go on after one has failed."""

POLL_SECONDS = 0.05
BURST_SECONDS = 0.005
"""What a link may send at once: enough for the kernel's timer, little beside a message."""

Command = Sequence[str] | Callable[[int], Sequence[str]]
"""What to run: one command for all hosts, or a function of the host's number."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How one rank's command ended; `code` is None where it was stopped at the deadline."""

    host: int
    """The number of the rank, which is that of its host where each has one."""
    code: int | None
    out: str
    err: str
    seconds: float


def missing() -> str | None:
    """Return what this machine lacks for hosts, or None."""
    if sys.platform != "linux":
        return "network namespaces exist on Linux alone"
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"`{program}` is not installed: apt install iproute2"
    if os.geteuid() != 0:
        return "making network namespaces needs root: run it with sudo"
    return None


@dataclass
class Hosts:
    """Hosts that are up; made by `hosts`."""

    num_hosts: int
    mbit: float | None
    """Of each link, in each direction; None leaves them as fast as the kernel is."""
    prefix: str
    ranks: int = 1
    """Of each host."""
    cores: int = 0
    """Of each host, nobody else's; 0: all share the machine's."""
    slower: int = 1
    """How many seconds here are one of the hosts': of links and cores they have such a part."""
    groups: list[Group] = field(default_factory=list)
    """One per host where they are slower."""
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def address(self, host: int) -> str:
        """Return a host's address on the bridge."""
        return f"10.77.{host // 250}.{host % 250 + 1}"

    @property
    def size(self) -> int:
        """Ranks of all hosts."""
        return self.num_hosts * self.ranks

    def environment(self, rank: int) -> dict[str, str]:
        """Return what torchrun would set for a rank; those of a host come one after another."""
        host, place = divmod(rank, self.ranks)
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(place),
            "WORLD_SIZE": str(self.size),
            "LOCAL_WORLD_SIZE": str(self.ranks),
            "GROUP_RANK": str(host),
            "MASTER_ADDR": self.address(0),
            "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": "eth0",
            "TP_SOCKET_IFNAME": "eth0",
            "NCCL_SOCKET_IFNAME": "eth0",
            HOST_VARIABLE: f"host{host}",
        }

    def cores_of(self, host: int) -> set[int]:
        """Return the cores that a host may use; where it is slower, others may use them too."""
        every = sorted(os.sched_getaffinity(0))
        if not self.cores:
            return set(every)
        ends = ((host + 1) * self.cores + self.slower - 1) // self.slower
        return set(every[host * self.cores // self.slower : ends])

    def run(
        self,
        command: Command,
        *,
        deadline_seconds: float,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
    ) -> list[Answer]:
        """Run a command on every rank and return how each ended, by rank.

        After `deadline_seconds` whatever still runs is killed; so are the others some seconds after
        one has failed, since they would only wait for it.
        """
        with tempfile.TemporaryDirectory(prefix="siafu-hosts-") as scratch:
            try:
                started = time.monotonic()
                for rank in range(self.size):
                    arguments = command(rank) if callable(command) else command
                    self._start(rank, arguments, Path(scratch), env or {}, cwd)
                ends = self._wait(started, deadline_seconds)
            finally:
                self.stop()
            return [
                Answer(
                    rank,
                    code,
                    (Path(scratch) / f"{rank}.out").read_text(errors="replace"),
                    (Path(scratch) / f"{rank}.err").read_text(errors="replace"),
                    seconds,
                )
                for rank, (code, seconds) in enumerate(ends)
            ]

    def _start(
        self,
        rank: int,
        arguments: Sequence[str],
        scratch: Path,
        env: Mapping[str, str],
        cwd: str | Path | None,
    ) -> None:
        host = rank // self.ranks
        cores = self.cores_of(host)
        words = ["ip", "netns", "exec", f"{self.prefix}-{host}", *arguments]

        def prepare() -> None:
            end_with_parent()
            os.sched_setaffinity(0, cores)

        with (
            (scratch / f"{rank}.out").open("wb") as out,
            (scratch / f"{rank}.err").open("wb") as err,
        ):
            child = subprocess.Popen(
                self.groups[host].command(words) if self.groups else words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **self.environment(rank), **env},
                cwd=cwd,
                start_new_session=True,
                preexec_fn=prepare,
            )
        self._children.append(child)

    def _wait(self, started: float, deadline_seconds: float) -> list[tuple[int | None, float]]:
        end = started + deadline_seconds
        found: list[tuple[int | None, float] | None] = [None] * self.size
        while any(item is None for item in found) and time.monotonic() < end:
            for rank, child in enumerate(self._children):
                if found[rank] is None and (code := child.poll()) is not None:
                    found[rank] = (code, time.monotonic() - started)
                    if code != 0:
                        end = min(end, time.monotonic() + GRACE_SECONDS)
            time.sleep(POLL_SECONDS)
        late = time.monotonic() - started
        return [(None, late) if item is None else item for item in found]

    def stop(self) -> None:
        """Kill what runs in the hosts: our children and theirs, each by its number."""
        for child in self._children:
            if child.poll() is None:
                kill(child.pid)
        for host in range(self.num_hosts):
            end_all(f"{self.prefix}-{host}")
        for child in self._children:
            child.wait(TOOL_SECONDS)
        self._children.clear()


def slower_by(cores: int) -> int:
    """Return how much slower hosts with so many cores together are to be played here."""
    return max(1, -(-cores // len(os.sched_getaffinity(0))))


@contextmanager
def hosts(
    num_hosts: int,
    *,
    mbit: float | None = None,
    ranks: int = 1,
    cores: int = 0,
    slower: int = 1,
) -> Iterator[Hosts]:
    """Yield hosts that reach each other through one bridge; gone afterwards whatever happens.

    Each has so many `ranks`, and `cores` of its own; 0: the machine's are everybody's. Where they
    are `slower`, seconds are to be divided by that.
    """
    has = len(os.sched_getaffinity(0))
    if cores * num_hosts > has * slower:
        raise ConfigError(
            "There are not as many cores.",
            seen=f"{num_hosts} hosts with {cores} each, {has} on this machine",
            fix="use fewer, slower hosts, or 0: hosts share them",
        )
    if slower > 1 and cores != ranks:
        raise ConfigError(
            "Slower hosts have a core for each rank: its threads would wait for each other.",
            seen=f"slower={slower}, {cores} cores, {ranks} ranks per host",
            fix="use as many cores as ranks, or a machine with more cores",
        )
    if not 1 <= num_hosts <= 1000 or (mbit is not None and mbit <= 0):
        raise ConfigError(
            "Such hosts cannot be made.",
            seen=f"{num_hosts} hosts at {mbit} Mbit/s",
            fix="use 1 to 1000 hosts and a positive speed",
        )
    if (lack := missing()) is not None:
        raise ConfigError("Hosts cannot be made here.", seen=lack, fix="see `benchmarks/hosts.py`")
    sweep()
    made = Hosts(num_hosts, mbit, new_prefix(), ranks, cores, slower)
    clean = partial(remove, made.prefix)
    atexit.register(clean)
    try:
        with ExitStack() as groups, signals_unwind():
            if slower > 1:
                made.groups = [groups.enter_context(_slowed(made)) for _ in range(num_hosts)]
                groups.callback(made.stop)  # a group can only go when nothing runs in it
            _build(made)
            yield made
    finally:
        with signals_wait():
            made.stop()
            clean()
        atexit.unregister(clean)


@contextmanager
def _slowed(made: Hosts) -> Iterator[Group]:
    """Yield the group of one host that has a part of its cores' time."""
    with ExitStack() as stack:
        try:
            yield stack.enter_context(slowed(made.cores / made.slower))
        except NoGroupError as error:
            raise ConfigError(
                "Hosts cannot be slowed here.", seen=str(error), fix="use fewer hosts or cores"
            ) from error


def _build(made: Hosts) -> None:
    switch = f"{made.prefix}-switch"
    tool("ip", "netns", "add", switch)
    tool("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
    tool("ip", "-n", switch, "link", "set", "bridge", "up")
    for host in range(made.num_hosts):
        name, port = f"{made.prefix}-{host}", f"port{host}"
        tool("ip", "netns", "add", name)
        ends = ("eth0", "netns", name, "type", "veth", "peer", "name", port, "netns", switch)
        tool("ip", "link", "add", *ends)
        tool("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
        tool("ip", "-n", name, "addr", "add", f"{made.address(host)}/16", "dev", "eth0")
        for link in ("lo", "eth0"):
            tool("ip", "-n", name, "link", "set", link, "up")
        if made.mbit is not None:
            # what leaves the host at its end of the wire, what comes to it at the bridge's end
            _limit(name, "eth0", made.mbit / made.slower)
            _limit(switch, port, made.mbit / made.slower)


def _limit(namespace: str, link: str, mbit: float) -> None:
    burst = max(32_000, int(mbit * 1e6 / 8 * BURST_SECONDS))
    rate = ("rate", f"{mbit * 1e3:.0f}kbit", "burst", f"{burst}b", "latency", "100ms")
    tool("tc", "-n", namespace, "qdisc", "add", "dev", link, "root", "tbf", *rate)


_RECEIVE = """
import socket, sys, time
server = socket.create_server(("", 5001))
server.settimeout(30)
peer, _ = server.accept()
peer.settimeout(30)
total, start = len(peer.recv(1 << 20)), time.perf_counter()
while block := peer.recv(1 << 20):
    total += len(block)
print(total / (time.perf_counter() - start))
"""

_SEND = """
import socket, sys, time
address, total = sys.argv[1], int(sys.argv[2])
for attempt in range(200):
    try:
        peer = socket.create_connection((address, 5001), timeout=30)
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
block = bytes(1 << 16)
for _ in range(total >> 16):
    peer.sendall(block)
peer.close()
"""


def measured_mbit(made: Hosts, *, source: int = 0, target: int = 1, seconds: float = 2.0) -> float:
    """Return the speed at which bytes of one TCP stream reach `target`, in Mbit/s."""
    total = int((made.mbit or 4000) * 1e6 / 8 * seconds)

    def command(host: int) -> list[str]:
        script = {target: _RECEIVE, source: _SEND}.get(host, "")
        return [sys.executable, "-c", script, made.address(target), str(total)]

    answers = made.run(command, deadline_seconds=60)
    if any(answer.code != 0 for answer in answers):
        told = next(answer for answer in answers if answer.code != 0)
        raise RankError(
            f"Host {told.host} could not measure its link.",
            seen=told.err.strip()[-500:] or f"exit code {told.code}",
            fix="try a higher speed, or fewer hosts",
        )
    return float(answers[target].out) * 8 / 1e6


def main() -> int:
    """Show the speed of a link, or run a command in every host."""
    parser = argparse.ArgumentParser(description="hosts in network namespaces with slow links")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--mbit", type=float, help="speed of each link; default: unlimited")
    parser.add_argument("--deadline", type=float, default=600.0, help="seconds for the command")
    parser.add_argument("command", nargs="*", help="after --: what to run in every host")
    args = parser.parse_args()
    try:
        with hosts(args.hosts, mbit=args.mbit) as made:
            if args.command:
                return _show(made.run(args.command, deadline_seconds=args.deadline))
            speed = measured_mbit(made)
    except SiafuError as error:
        print(error, file=sys.stderr)
        return 2
    row = {"hosts": args.hosts, "set_mbit": args.mbit, "measured_mbit": round(speed, 1)}
    print(json.dumps({"benchmark": "hosts", **row}))
    return 0


def _show(answers: list[Answer]) -> int:
    for answer in answers:
        ended = "stopped at the deadline" if answer.code is None else f"exit code {answer.code}"
        print(f"host {answer.host}: {ended} after {answer.seconds:.1f} s")
        for text in (answer.out, answer.err):
            if text.strip():
                print(text.rstrip())
    return 0 if all(answer.code == 0 for answer in answers) else 1


if __name__ == "__main__":
    sys.exit(main())
