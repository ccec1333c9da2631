"""Hosts in namespaces: they reach each other, end in time, and leave nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.cgroup import NoGroupError, slowed
from benchmarks.hosts import Hosts, hosts, measured_mbit, missing, slower_by
from benchmarks.namespaces import sweep, tool
from siafu.errors import ConfigError
from siafu.launch import fit

ROOT = Path(__file__).parents[3]
LACK = missing()
needs_hosts = pytest.mark.skipif(LACK is not None, reason=f"no hosts here: {LACK}")


def ours() -> list[str]:
    """Return namespaces of this process and of those it started."""
    return [
        line.split()[0] for line in tool("ip", "netns", "list").splitlines() if "siafu-" in line
    ]


def namespaces_of(pid: int) -> list[str]:
    return [name for name in ours() if name.startswith(f"siafu-{pid}-")]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@needs_hosts
def test_every_host_sees_its_own_environment_and_network():
    code = (
        "import os, subprocess; print(os.environ['RANK'], os.environ['WORLD_SIZE'], "
        "os.environ['MASTER_ADDR'], os.environ['GLOO_SOCKET_IFNAME']); "
        "print(subprocess.check_output(['ip', '-br', 'addr', 'show', 'eth0'], text=True))"
    )
    with hosts(3) as made:
        answers = made.run(python(code), deadline_seconds=30)
    for host, answer in enumerate(answers):
        assert answer.code == 0, answer.err
        assert answer.out.startswith(f"{host} 3 10.77.0.1 eth0")
        assert f"10.77.0.{host + 1}/16" in answer.out
    assert not namespaces_of(os.getpid())


@needs_hosts
def test_a_link_has_the_speed_it_was_given():
    with hosts(2, mbit=80) as made:
        speed = measured_mbit(made, seconds=1.0)
    # headers take 4 to 5 %, the burst gives some back; a loaded machine only makes it slower
    assert 40 < speed < 88


@needs_hosts
def test_deadlines_and_failures_end_the_others():
    with hosts(2) as made:
        sleepy = "import subprocess, sys; subprocess.run([sys.executable, '-c', SLEEP])"
        code = "SLEEP = 'import time; time.sleep(60)'; " + sleepy
        started = time.monotonic()
        answers = made.run(python(code), deadline_seconds=1.5)
        assert [answer.code for answer in answers] == [None, None]
        assert time.monotonic() - started < 15
        for host in range(2):
            assert tool("ip", "netns", "pids", f"{made.prefix}-{host}").split() == []
        failing = made.run(
            lambda host: python("raise SystemExit(3)" if host else "print('fine')"),
            deadline_seconds=30,
        )
    assert [answer.code for answer in failing] == [0, 3]
    assert failing[0].out == "fine\n"


@needs_hosts
def test_an_error_inside_leaves_nothing():
    def fail() -> None:
        with hosts(2) as made:
            raise KeyError(len(namespaces_of(os.getpid())), made.num_hosts)

    with pytest.raises(KeyError, match="3, 2"):
        fail()
    assert not namespaces_of(os.getpid())


HOLD = """
import sys, time
from benchmarks.hosts import hosts
with hosts(2) as made:
    print("up", flush=True)
    made.run([sys.executable, "-c", "import time; time.sleep(120)"], deadline_seconds=120)
"""


@needs_hosts
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGKILL"])
def test_a_signal_leaves_nothing(name):
    """SIGKILL cannot be handled: the kernel ends the commands, the next user sweeps the rest."""
    child = subprocess.Popen(
        python(HOLD), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert child.stdout.readline() == "up\n"
        assert len(namespaces_of(child.pid)) == 3
        time.sleep(0.5)
        child.send_signal(getattr(signal, name))
        child.wait(30)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    if name == "SIGKILL":
        first = namespaces_of(child.pid)[0]
        deadline = time.monotonic() + 10
        while tool("ip", "netns", "pids", first).split() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(sweep()) >= 3
    assert not namespaces_of(child.pid)


@needs_hosts
@pytest.mark.usefixtures("runs_on_pool")
def test_training_runs_over_hosts_as_on_one_machine(tmp_path):
    """Two hosts and two local ranks print the same loss."""
    options = ["--epochs", "3", "--threads", "1", "--quiet", "--device", "cpu"]
    command = [sys.executable, "-m", "siafu", "train", "planted", *options]
    with hosts(2, mbit=1000) as made:
        answers = made.run(command, deadline_seconds=240, cwd=tmp_path)
    assert [answer.code for answer in answers] == [0, 0], answers
    local = fit("planted", ranks=2, epochs=3, device="cpu", out=str(tmp_path / "local"))
    (over_hosts,) = tmp_path.glob("runs/*/metrics.jsonl")
    losses = [json.loads(line)["loss"] for line in over_hosts.read_text().splitlines()]
    assert losses == local.result["losses"]
    assert len(losses) == 3


def test_cores_are_shared_out_evenly():
    has = len(os.sched_getaffinity(0))
    assert slower_by(0) == slower_by(has) == 1
    assert slower_by(has + 1) == slower_by(2 * has) == 2
    alone = Hosts(has, None, "p", cores=1)
    assert [len(alone.cores_of(host)) for host in range(has)] == [1] * has
    assert len(set.union(*map(alone.cores_of, range(has)))) == has
    slow = Hosts(2 * has, None, "p", cores=1, slower=2)
    assert all(slow.cores_of(2 * n) == slow.cores_of(2 * n + 1) for n in range(has))
    assert len(set.union(*map(slow.cores_of, range(2 * has)))) == has
    assert Hosts(3, None, "p").cores_of(2) == set(os.sched_getaffinity(0))


@needs_hosts
def test_slower_hosts_have_their_part_of_cores_and_links():
    try:
        with slowed(1.0):
            pass
    except NoGroupError as error:
        pytest.skip(str(error))
    with hosts(2, mbit=80, cores=1, slower=4) as made:
        folders = [group.path for group in made.groups]
        for folder in folders:
            old = folder / "cpu.cfs_quota_us"
            told = old.read_text() if old.exists() else (folder / "cpu.max").read_text()
            assert told.split()[0] == "2500"
        links = tool("tc", "-n", f"{made.prefix}-0", "qdisc", "show", "dev", "eth0")
        assert "rate 20Mbit" in links
        script = "print(open('/proc/self/cgroup').read())"
        answers = made.run([sys.executable, "-c", script], deadline_seconds=60)
        for answer, folder in zip(answers, folders, strict=True):
            assert folder.name in answer.out
    assert not any(folder.exists() for folder in folders)


def test_slower_hosts_have_a_core_for_each_rank():
    many = len(os.sched_getaffinity(0))
    with pytest.raises(ConfigError, match="a core for each rank"), hosts(many, cores=2, slower=2):
        pass
    with pytest.raises(ConfigError, match="not as many cores"), hosts(many + 1, cores=1):
        pass


def test_what_is_missing_is_said_plainly(monkeypatch):
    monkeypatch.setattr("benchmarks.hosts.shutil.which", lambda tool: None)
    monkeypatch.setattr("benchmarks.hosts.sys.platform", "linux")
    with pytest.raises(ConfigError, match="apt install iproute2"), hosts(2):
        pass
    monkeypatch.setattr("benchmarks.hosts.shutil.which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr("benchmarks.hosts.os.geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="needs root"), hosts(2):
        pass
    with pytest.raises(ConfigError, match="positive speed"), hosts(2, mbit=0):
        pass
