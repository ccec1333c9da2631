"""Three hosts that share no disk: what each reads, and that the result is that of one disk.

Run: python -m benchmarks.no_shared_disk --mbit 1000 [--json FILE]
     [--cases url,sent,own,infer,ray,down]

Hosts are network namespaces with their own addresses (`benchmarks.hosts`); each has its own disk
under one path, by a bind mount, and starts its rank by torchrun. `url`: parts in an S3 server on
host 0 (moto, if installed). `sent`: rank 0 alone has the data, cuts it and sends parts. `own`: each
host has its own part on its disk. `infer`: predictions of the run of `sent`. `ray`: as `url`, on a
Ray cluster with its head on host 0 and a worker on each other. `down`: the link of host 2 is set
down within an epoch; the others must name it within the deadline, and torchrun (--nnodes 2:3) goes
on with two.
"""

import argparse
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.hosts import PORT, Answer, Hosts, hosts
from benchmarks.measure import append_json, machine
from benchmarks.namespaces import tool
from siafu.partitioning import open_parts

HOSTS = 3
DATA = "planted:20k"
EPOCHS = 6
_S3_PORT = 5055
_STORED = "s3://bucket/graph.parts"
_KEYS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "us-east-1"}
_SERVE = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="0.0.0.0", port=int(sys.argv[1]))
server.start()
import time
time.sleep(3600)
"""


class Disks:
    """A folder per host, all seen under one path in their hosts."""

    def __init__(self, root: Path) -> None:
        self.root, self.path = root, root / "disk"
        self.path.mkdir()
        for host in range(HOSTS):
            for name in ("", "tmp", "cache"):
                (self.of(host) / name).mkdir(exist_ok=True)

    def of(self, host: int) -> Path:
        """Return where a host's disk is outside."""
        return self.root / f"host{host}"

    def command(self, host: int, *arguments: str) -> list[str]:
        """Return what runs a command in a host with its own disk."""
        mount = f'mount --bind {self.of(host)} {self.path} && cd {self.path} && exec "$@"'
        return ["sh", "-c", mount, "sh", *arguments]

    def environment(self) -> dict[str, str]:
        """Return what has each host keep to its own disk."""
        own = {"SIAFU_CACHE": f"{self.path}/cache", "TMPDIR": f"{self.path}/tmp"}
        return {**own, **_KEYS, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}


Ranked = Callable[[int], list[str]]


def torchrun(made: Hosts, *arguments: str, nodes: str = str(HOSTS)) -> Ranked:
    """Return the command that each host starts its one rank with."""
    return lambda host: _agent(made, host, nodes, arguments)


def _agent(made: Hosts, host: int, nodes: str, arguments: Sequence[str]) -> list[str]:
    at = f"{made.address(0)}:{PORT}"
    agent = [sys.executable, "-m", "torch.distributed.run", "--nnodes", nodes]
    agent += ["--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", at]
    # Names of machines are all one here, so torch can't tell by itself which of them it is.
    agent += ["--rdzv-conf", f"is_host={int(host == 0)}", "--local-addr", made.address(host)]
    agent += ["--rdzv-id", "siafu", "--max-restarts", "2" if ":" in nodes else "0"]
    return [*agent, "-m", "siafu", *arguments]


def received(made: Hosts) -> list[int]:
    """Return the bytes that came to each host so far."""
    found = []
    for host in range(HOSTS):
        shown = tool("ip", "-j", "-s", "-n", f"{made.prefix}-{host}", "link", "show", "eth0")
        found.append(int(json.loads(shown)[0]["stats64"]["rx"]["bytes"]))
    return found


def words_of(disks: Disks, data: str, out: str) -> list[str]:
    """Return the words of a training."""
    words = ["train", data, "--epochs", str(EPOCHS), "--out", f"{disks.path}/{out}"]
    cut = [] if data.endswith(".parts") else ["--partition", "hash"]
    return [*words, "--threads", "1", "--quiet", *cut]


def train(made: Hosts, disks: Disks, data: str, out: str, env: dict[str, str]) -> dict[str, Any]:
    """Train on all hosts and return what came of it."""
    before = received(made)
    answers = run(made, disks, torchrun(made, *words_of(disks, data, out)), env)
    return came_of(made, disks, out, before, max(answer.seconds for answer in answers))


def came_of(
    made: Hosts, disks: Disks, out: str, before: list[int], seconds: float
) -> dict[str, Any]:
    """Return what came of a training: losses, and who read and has what."""
    result = json.loads((disks.of(0) / out / "result.json").read_text())
    came = [now - then for then, now in zip(before, received(made), strict=True)]
    folders = [sorted(p.name for p in disks.of(host).glob(out)) for host in range(HOSTS)]
    predicted = sorted(path.name for path in (disks.of(0) / out / "predictions").iterdir())
    return {
        "seconds": round(seconds, 1),
        "losses": result["losses"],
        "fetched_bytes": result.get("fetched_bytes"),
        "received_bytes": came,
        "hosts_with_run": [host for host, found in enumerate(folders) if found],
        "prediction_files": predicted,
    }


def run(made: Hosts, disks: Disks, command: Ranked, env: dict[str, str]) -> list[Answer]:
    """Run a command on every host; raise where one fails."""
    answers = made.run(
        lambda host: disks.command(host, *command(host)), deadline_seconds=280, env=env
    )
    for answer in answers:
        if answer.code != 0:
            raise SystemExit(
                f"host {answer.host}: {answer.code}\n{answer.out}\n{answer.err[-3000:]}"
            )
    return answers


def on_one_disk(root: Path) -> list[float]:
    """Return the losses of the same training on ranks of this machine."""
    command = [sys.executable, "-m", "siafu", "train", DATA, "--epochs", str(EPOCHS), "--ranks"]
    command += [str(HOSTS), "--partition", "hash", "--threads", "1", "--quiet", "--json"]
    done = subprocess.run(
        [*command, "--out", f"{root}/reference"], capture_output=True, text=True, check=True
    )
    losses: list[float] = json.loads(done.stdout.splitlines()[-1])["losses"]
    return losses


def part_bytes(parts: Path) -> list[int]:
    """Return the bytes of each part, and of what belongs to none."""
    count = open_parts(parts).num_parts
    own = [sum(f.stat().st_size for f in (parts / f"part{k}").iterdir()) for k in range(count)]
    return [*own, sum(f.stat().st_size for f in parts.iterdir() if f.is_file())]


def inside(made: Hosts, host: int, command: Sequence[str]) -> list[str]:
    """Return what runs a command in a host's network."""
    return ["ip", "netns", "exec", f"{made.prefix}-{host}", *command]


@contextmanager
def stored(made: Hosts, disks: Disks, env: dict[str, str]) -> Iterator[dict[str, str]]:
    """Have parts in an object store of host 0; yield what finds it."""
    place = f"http://{made.address(0)}:{_S3_PORT}"
    env = {**env, "AWS_ENDPOINT_URL": place}
    serve = [sys.executable, "-c", _SERVE, str(_S3_PORT)]
    with (disks.root / "s3.log").open("wb") as log:
        server = subprocess.Popen(inside(made, 0, serve), stdout=log, stderr=log)
    make = f"""
import time, boto3
for attempt in range(100):
    try:
        boto3.client("s3", endpoint_url="{place}").create_bucket(Bucket="bucket")
        break
    except Exception:
        time.sleep(0.2)
"""
    upload = [sys.executable, "-m", "siafu", "partition", DATA, _STORED]
    upload += ["--parts", str(HOSTS), "--method", "hash", "--quiet"]
    try:
        for command in ([sys.executable, "-c", make], upload):
            subprocess.run(
                inside(made, 0, command),
                env={**os.environ, **env},
                check=True,
                stdout=subprocess.DEVNULL,
            )
        yield env
    finally:
        server.kill()
        server.wait()


def by_url(made: Hosts, disks: Disks, parts: Path, env: dict[str, str]) -> dict[str, Any]:
    """Train on parts in an object store of host 0."""
    with stored(made, disks, env) as env:
        row = train(made, disks, _STORED, "by-url", env)
    return {**row, "part_bytes": part_bytes(parts)}


def on_ray(made: Hosts, disks: Disks, parts: Path, env: dict[str, str]) -> dict[str, Any]:
    """Train on a Ray cluster: its head and the command on host 0, a worker on each other one."""
    key = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    head = f"{made.address(0)}:6379"
    begin = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus", "1"]
    begin += ["--object-store-memory", "100000000", "--disable-usage-stats"]
    first = ["--head", "--port", "6379", "--temp-dir", f"{disks.path}/ray"]
    first += ["--include-dashboard", "false"]
    nodes: list[subprocess.Popen[bytes]] = []
    with stored(made, disks, env) as env:
        every = {**os.environ, **env, **key}
        try:
            for host in range(HOSTS):
                at = ["--node-ip-address", made.address(host)]
                words = [*begin, *at, *(["--address", head] if host else first)]
                log = disks.root / f"ray{host}.log"
                with log.open("wb") as file:
                    command = inside(made, host, disks.command(host, *words))
                    nodes.append(subprocess.Popen(command, env=every, stdout=file, stderr=file))
                _wait_for(log, nodes[-1])
            before, began = received(made), time.monotonic()
            words = ["-m", "siafu", *words_of(disks, _STORED, "ray-run"), "--launcher", "ray"]
            words += ["--ray-address", head, "--ranks", str(HOSTS)]
            command = inside(made, 0, disks.command(0, sys.executable, *words))
            subprocess.run(command, env=every, check=True, timeout=280)
            row = came_of(made, disks, "ray-run", before, time.monotonic() - began)
        finally:
            for node in nodes:
                node.terminate()
            made.stop()
    return {**row, "part_bytes": part_bytes(parts)}


def _wait_for(log: Path, node: "subprocess.Popen[bytes]") -> None:
    """Wait until a node of Ray is up."""
    end = time.monotonic() + 120
    while "Ray runtime started" not in log.read_text():
        if node.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"a node of Ray did not start:\n{log.read_text()[-3000:]}")
        time.sleep(0.2)


def sent(made: Hosts, disks: Disks, parts: Path, env: dict[str, str]) -> dict[str, Any]:
    """Train on data that only rank 0 can cut: the others are sent their parts."""
    return {**train(made, disks, DATA, "sent", env), "part_bytes": part_bytes(parts)}


def own(made: Hosts, disks: Disks, parts: Path, env: dict[str, str]) -> dict[str, Any]:
    """Train on parts of which each host has its own alone, and manifests of the others."""
    for host in range(HOSTS):
        target = disks.of(host) / "graph.parts"
        shutil.copytree(parts, target)
        for other in set(range(HOSTS)) - {host}:
            for file in (target / f"part{other}").iterdir():
                if file.name not in ("manifest.json", "halo_counts.npy"):
                    file.unlink()
    name = f"{disks.path}/graph.parts"
    return {**train(made, disks, name, "own", env), "part_bytes": part_bytes(parts)}


def infer(made: Hosts, disks: Disks, parts: Path, env: dict[str, str]) -> dict[str, Any]:
    """Infer under torchrun with a run that only host 0 has."""
    if not (disks.of(0) / "sent").exists():
        sent(made, disks, parts, env)
    target = f"{disks.path}/predictions"
    command = torchrun(made, "infer", f"{disks.path}/sent", "--out", target, "--quiet")
    answers = run(made, disks, command, env)
    files = sorted(path.name for path in (disks.of(0) / "predictions").iterdir())
    return {"seconds": round(max(a.seconds for a in answers), 1), "prediction_files": files}


def down(made: Hosts, disks: Disks, parts: Path, env: dict[str, str]) -> dict[str, Any]:
    """Set the link of host 2 down within an epoch, and see who notices, and what goes on."""
    deadline, epochs = 10, 60
    out = disks.of(0) / "down"
    words = ["train", DATA, "--epochs", str(epochs), "--out", f"{disks.path}/down", "--quiet"]
    words += ["--partition", "hash", "--deadline", str(deadline), "--checkpoint-every", "10"]
    words += ["--resume", "auto", "--min-ranks", str(HOSTS - 1)]
    agent = torchrun(made, *words, nodes=f"{HOSTS - 1}:{HOSTS}")
    noted: dict[str, float] = {}

    def command(host: int) -> list[str]:
        # The host that is cut off fails some time; the others are not to end with it.
        alone = ["sh", "-c", '"$@"; echo "exit code $?"', "sh"] if host == HOSTS - 1 else []
        return disks.command(host, *alone, *agent(host))

    def rows() -> int:
        metrics = out / "metrics.jsonl"
        return len(metrics.read_text().splitlines()) if metrics.exists() else 0

    def cut() -> None:
        while rows() < epochs // 2:
            time.sleep(0.1)
        noted["epochs"], noted["at"] = rows(), time.monotonic()
        tool("ip", "-n", f"{made.prefix}-2", "link", "set", "eth0", "down")
        while rows() <= noted["epochs"] + 1:  # the epoch that runs may still be noted
            time.sleep(0.1)
        noted["again"] = time.monotonic()

    threading.Thread(target=cut, daemon=True).start()
    started = time.monotonic()
    answers = made.run(command, deadline_seconds=270, env=env)
    told = [line for answer in answers[:2] for line in answer.err.splitlines() if "seen:" in line]
    result = out / "result.json"
    done = json.loads(result.read_text()) if result.exists() else {}
    return {
        "deadline_seconds": deadline,
        "epochs_when_cut": noted.get("epochs"),
        "seconds_until_cut": round(noted.get("at", started) - started, 1),
        "seconds_from_cut_until_past_it": round(noted.get("again", 0) - noted.get("at", 0), 1),
        "codes": [answer.code for answer in answers[:2]],
        "cut_off": answers[2].out.splitlines()[-1:],
        "seconds": [round(answer.seconds, 1) for answer in answers],
        "told": told[:6],
        "ranks_at_end": done.get("ranks"),
        "epochs_at_end": done.get("epochs"),
    }


CASES = {
    "url": by_url,
    "sent": sent,
    "own": own,
    "infer": infer,
    "ray": on_ray,
    "down": down,
}


def main() -> int:
    """Run the cases and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mbit", type=float, default=1000.0)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--json", type=Path, help="append the rows there")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="siafu-apart-") as scratch,
        hosts(HOSTS, mbit=args.mbit) as made,
    ):
        root = Path(scratch)
        disks, losses = Disks(root), on_one_disk(root)
        for case in args.cases.split(","):
            env = disks.environment()
            found = CASES[case](made, disks, root / "reference" / "data.parts", env)
            if "losses" in found:
                pairs = zip(found.pop("losses"), losses, strict=True)
                found["largest_difference_of_losses"] = max(abs(a - b) for a, b in pairs)
            facts = {"hosts": HOSTS, "mbit": args.mbit, "data": DATA, "case": case}
            row = {"benchmark": "no_shared_disk", **facts, **found, **machine()}
            print(json.dumps(row), flush=True)
            if args.json:
                append_json(args.json, row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
