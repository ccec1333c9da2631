"""Three hosts that share no disk: what each reads, and that the result is that of one disk.

Run: python -m benchmarks.no_shared_disk --mbit 1000 [--cases url,sent,own,infer,down] [--json FILE]

Hosts are network namespaces with their own addresses (`benchmarks.hosts`); each has its own disk
under one path, by a bind mount, and starts its rank by torchrun. `url`: parts in an S3 server on
host 0 (moto, if installed). `sent`: rank 0 alone has the data, cuts it and sends parts. `own`: each
host has its own part on its disk. `infer`: predictions of the run of `sent`. `down`: the link of
host 2 is set down within an epoch; the others must name it within the deadline, and torchrun
(--nnodes 2:3) goes on with two.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
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


def train(made: Hosts, disks: Disks, data: str, out: str, env: dict[str, str]) -> dict[str, Any]:
    """Train on all hosts and return what came of it."""
    arguments: tuple[str, ...] = (
        "train",
        data,
        "--epochs",
        str(EPOCHS),
        "--out",
        f"{disks.path}/{out}",
    )
    arguments += ("--threads", "1")
    before = received(made)
    command = torchrun(made, *arguments, "--partition", "hash", "--quiet")
    if data.endswith(".parts"):
        command = torchrun(made, *arguments, "--quiet")
    answers = run(made, disks, command, env)
    result = json.loads((disks.of(0) / out / "result.json").read_text())
    came = [now - then for then, now in zip(before, received(made), strict=True)]
    folders = [sorted(p.name for p in disks.of(host).glob(out)) for host in range(HOSTS)]
    predicted = sorted(path.name for path in (disks.of(0) / out / "predictions").iterdir())
    return {
        "seconds": round(max(answer.seconds for answer in answers), 1),
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


def by_url(made: Hosts, disks: Disks, parts: Path, env: dict[str, str]) -> dict[str, Any]:
    """Train on parts in an object store of host 0."""
    place = f"http://{made.address(0)}:{_S3_PORT}"
    env = {**env, "AWS_ENDPOINT_URL": place}
    serve = [sys.executable, "-c", _SERVE, str(_S3_PORT)]
    with (disks.root / "s3.log").open("wb") as log:
        server = subprocess.Popen(
            ["ip", "netns", "exec", f"{made.prefix}-0", *serve], stdout=log, stderr=log
        )
    try:
        make = f"""
import time, boto3
for attempt in range(100):
    try:
        boto3.client("s3", endpoint_url="{place}").create_bucket(Bucket="bucket")
        break
    except Exception:
        time.sleep(0.2)
"""
        upload = [sys.executable, "-m", "siafu", "partition", DATA, "s3://bucket/graph.parts"]
        upload += ["--parts", str(HOSTS), "--method", "hash", "--quiet"]
        for command in ([sys.executable, "-c", make], upload):
            inside = ["ip", "netns", "exec", f"{made.prefix}-0", *command]
            subprocess.run(inside, env={**os.environ, **env}, check=True, stdout=subprocess.DEVNULL)
        row = train(made, disks, "s3://bucket/graph.parts", "by-url", env)
    finally:
        server.kill()
        server.wait()
    return {**row, "part_bytes": part_bytes(parts)}


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
    deadline, epochs = 10, 400
    out = disks.of(0) / "down"
    words: tuple[str, ...] = (
        "train",
        DATA,
        "--epochs",
        str(epochs),
        "--out",
        f"{disks.path}/down",
        "--quiet",
    )
    words += ("--partition", "hash", "--deadline", str(deadline), "--checkpoint-every", "20")
    words += ("--resume", "auto")
    command = torchrun(made, *words, nodes=f"{HOSTS - 1}:{HOSTS}")
    noted: dict[str, float] = {}

    def cut() -> None:
        metrics = out / "metrics.jsonl"
        while not metrics.exists() or len(metrics.read_text().splitlines()) < 30:
            time.sleep(0.2)
        noted["epochs"] = len(metrics.read_text().splitlines())
        noted["at"] = time.monotonic()
        tool("ip", "-n", f"{made.prefix}-2", "link", "set", "eth0", "down")

    threading.Thread(target=cut, daemon=True).start()
    started = time.monotonic()
    answers = made.run(
        lambda host: disks.command(host, *command(host)), deadline_seconds=270, env=env
    )
    told = [line for answer in answers[:2] for line in answer.err.splitlines() if "seen:" in line]
    result = out / "result.json"
    done = json.loads(result.read_text()) if result.exists() else {}
    return {
        "deadline_seconds": deadline,
        "epochs_when_cut": noted.get("epochs"),
        "seconds_until_cut": round(noted.get("at", started) - started, 1),
        "codes": [answer.code for answer in answers],
        "seconds": [round(answer.seconds, 1) for answer in answers],
        "told": told[:6],
        "ranks_at_end": done.get("ranks"),
        "epochs_at_end": done.get("epochs"),
        "err": [answer.err[-1500:] for answer in answers] if not done else [],
    }


CASES = {"url": by_url, "sent": sent, "own": own, "infer": infer, "down": down}


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
