"""What does a graph server pay to serve a pool, per byte, and from where on does offloading pay?

Run: python -m benchmarks.offload [--before CHECKOUT] [--json benchmarks/results/offload.jsonl]

A server process has tasks fetched and results pushed by client processes over loopback, as
functions in AWS Lambda do, without computing anything: processor seconds of the server process (all
threads) per GB, both ways together. In turns: the endpoint of another checkout (`--before`), ours
encrypted, ours in clear. Floors: bytes copied once in memory, and a plain TCP socket.

Break-even: operations per byte at which serving a task costs the server as many core seconds as
doing it, given what one core does of the products of a 2-layer GCN.
"""

import argparse
import inspect
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zmq

from benchmarks.measure import append_json, machine
from siafu.elastic.aws_lambda.endpoint import Endpoint
from siafu.elastic.messages import (
    Fetch,
    Invitation,
    decode,
    encode,
    read_invitation,
    result_frames,
)
from siafu.elastic.task import Bundle, Reply, Task

Row = dict[str, Any]
GB = 1e9
ROOT = Path(__file__).parents[1]


def client(events: list[Row], megabytes: float) -> None:
    """Fetch each task, and push as many bytes back."""
    torch.set_num_threads(1)
    result = {"out": torch.zeros(int(megabytes * 1e6 / 4))}
    context = zmq.Context()
    for event in events:
        clear = event.pop("clear")
        if "encrypted" not in Invitation.model_fields:
            event.pop("encrypted", None)
        invitation = read_invitation(event)
        with context.socket(zmq.DEALER) as link:
            link.linger = 0
            if clear:
                link.plain_username = invitation.client_public.encode()
                link.plain_password = invitation.client_secret.encode()
            else:
                link.curve_serverkey = invitation.server_key.encode()
                link.curve_publickey = invitation.client_public.encode()
                link.curve_secretkey = invitation.client_secret.encode()
            link.connect(invitation.address)
            link.send_multipart(encode(Fetch.of(token=invitation.token, held=())))
            decode([part.buffer for part in link.recv_multipart(copy=False)])
            facts = {"token": invitation.token, "worker": "bench", "started": 1.0, "seconds": 0.1}
            link.send_multipart(result_frames(result, failure="", is_final=False, **facts))
            link.recv_multipart()
    context.destroy(linger=0)


def serve(tasks: int, megabytes: float, clear: bool) -> Row:
    """Return processor seconds and bytes of an endpoint that serves two clients."""
    done, left = threading.Event(), [tasks]

    def deliver(reply: Reply) -> None:
        assert not reply.failure, reply.failure
        left[0] -= 1
        if not left[0]:
            done.set()

    known = inspect.signature(Endpoint.__init__).parameters
    told: Row = {"encrypted": not clear} if "encrypted" in known else {}
    endpoint = Endpoint(deliver, **told)
    rows = torch.zeros(int(megabytes * 1e6 / 4))
    events = []
    for number in range(tasks):
        bundle = Bundle(f"once/{number}", {"x": rows}, "once")
        invitation = endpoint.invite(Task(number, "forward", "", {}, (bundle,)), 600.0)
        assert invitation is not None
        events.append({**invitation.to_event(), "clear": clear})
    clients = [
        get_context("spawn").Process(target=client, args=(events[half::2], megabytes))
        for half in (0, 1)
    ]
    for process in clients:
        process.start()
    began, clock = time.process_time(), time.perf_counter()
    assert done.wait(300), "clients did not come"
    spent, wall = time.process_time() - began, time.perf_counter() - clock
    for process in clients:
        process.join()
    endpoint.close()
    return {"core_s": spent, "wall_s": wall, "bytes": 2 * 4 * rows.numel() * tasks}


def run_serve(source: Path, tasks: int, megabytes: float, clear: bool) -> Row:
    """Return what `serve` says in a process of its own that has another checkout's code."""
    command = [sys.executable, "-m", "benchmarks.offload", "--serve", f"{tasks}", f"{megabytes}"]
    command += ["--clear"] if clear else []
    environment = {**os.environ, "PYTHONPATH": f"{source}:{ROOT}"}
    found = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
    told: Row = json.loads(found.stdout.splitlines()[-1])
    return told


def memcpy_core_seconds() -> float:
    """Return the core seconds of a GB copied in memory."""
    source, target = np.ones(1 << 27, np.uint8), np.ones(1 << 27, np.uint8)
    began = time.process_time()
    for _ in range(8):
        np.copyto(target, source)
    return (time.process_time() - began) / (8 * source.nbytes / GB)


def _echo(port: int, num_bytes: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as link:
        buffer = bytearray(1 << 20)
        got = 0
        while got < num_bytes:
            got += link.recv_into(buffer)
        link.sendall(memoryview(bytearray(num_bytes)))


def tcp_core_seconds(num_bytes: int = 400_000_000) -> float:
    """Return the core seconds of a GB, half sent and half received over a plain socket."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        other = get_context("spawn").Process(
            target=_echo, args=(server.getsockname()[1], num_bytes)
        )
        other.start()
        link, _ = server.accept()
        payload, buffer, got = bytearray(num_bytes), bytearray(1 << 20), 0
        began = time.process_time()
        link.sendall(payload)
        while got < num_bytes:
            got += link.recv_into(buffer)
        spent = time.process_time() - began
        link.close()
        other.join()
    return spent / (2 * num_bytes / GB)


def product_flops() -> float:
    """Return operations per second of one core, of the products of a 2-layer GCN."""
    torch.set_num_threads(1)
    x, weight = torch.randn(8192, 300), torch.randn(300, 64)
    grad = torch.randn(8192, 64)
    best = 0.0
    for _ in range(5):
        began = time.process_time()
        for _ in range(10):
            x @ weight
            x.T @ grad
        best = max(best, 10 * 2 * 2 * 8192 * 300 * 64 / (time.process_time() - began))
    return best


def main() -> None:
    """Serve in turns; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--before", type=Path, help="a checkout to compare with")
    parser.add_argument("--tasks", type=int, default=60)
    parser.add_argument("--megabytes", type=float, default=5.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--clear", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        print(json.dumps(serve(int(args.serve[0]), float(args.serve[1]), args.clear)))
        return
    sides: dict[str, tuple[Path, bool]] = {}
    if args.before:
        sides["before"] = args.before / "src", False
    if "encrypted" in inspect.signature(Endpoint.__init__).parameters:
        sides |= {"encrypted": (ROOT / "src", False), "in clear": (ROOT / "src", True)}
    found: dict[str, list[float]] = {name: [] for name in (*sides, "memcpy", "tcp")}
    flops = product_flops()
    for _ in range(args.turns):
        for name, (source, clear) in sides.items():
            told = run_serve(source, args.tasks, args.megabytes, clear)
            found[name].append(told["core_s"] / (told["bytes"] / GB))
        found["memcpy"].append(memcpy_core_seconds())
        found["tcp"].append(tcp_core_seconds())
    rows = []
    for name, seconds in found.items():
        each = statistics.median(seconds)
        rows.append(
            {
                "side": name,
                "core_s_per_gb": round(each, 3),
                "spread": round(max(seconds) - min(seconds), 3),
                "gb_per_core_s": round(1 / each, 3),
                "break_even_flop_per_byte": round(flops * each / GB, 1),
            }
        )
        print(rows[-1])
    result = {"benchmark": "offload", "rows": rows, "core_gflops": round(flops / 1e9, 1)}
    result |= {"tasks": args.tasks, "megabytes": args.megabytes, **machine()}
    if args.json:
        append_json(args.json, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
