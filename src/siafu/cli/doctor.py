"""`siafu doctor`: what is installed, which fast paths are on, and why others are off."""

import os
import socket
from typing import Annotated, Any

import psutil
import torch
import typer

from siafu.cli.show import print_json, print_table, size
from siafu.errors import CommError
from siafu.launch.ranks import checked_ranks, under_torchrun
from siafu.memory import free_bytes, total_bytes
from siafu.ops import fast_paths
from siafu.record import environment, installed

_MOST_PAIRS = 6
"""That are told, the slowest first."""


def doctor(
    ranks: Annotated[
        int | None,
        typer.Option(help="start so many ranks and have them check each other", min=2, max=256),
    ] = None,
    device: Annotated[str, typer.Option(help="of the ranks: auto, cpu or cuda")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """Check this machine and say what siafu will use.

    With --ranks, or under torchrun, ranks check each other: versions, every pair, the same results
    as one process.
    """
    if ranks is not None or under_torchrun():
        _check_ranks(ranks or 1, device, as_json=json)
        return
    facts = environment()
    rows: dict[str, Any] = {
        "python": facts["python"],
        **facts["packages"],
        "cores": f"{facts['cores']} ({len(os.sched_getaffinity(0))} usable)",
        "memory": f"{size(free_bytes())} free of {size(total_bytes())}",
        "device": _device(),
        **{f"fast path: {name}": state for name, state in fast_paths().items()},
        "PyG models": "on" if installed("torch_geometric") else "off: pip install 'siafu[pyg]'",
        "METIS": "on" if installed("pymetis") else "off: pip install pymetis",
        "network": _network(),
    }
    if json:
        print_json(rows)
    else:
        print_table("siafu doctor", rows)


def _check_ranks(ranks: int, device: str, *, as_json: bool) -> None:
    found = checked_ranks(ranks, device)
    if found.pop("rank", 0) == 0:
        if as_json:
            print_json(found)
        else:
            print_table("siafu doctor, ranks", _rows(found))
    if found["problems"]:
        raise CommError(
            "The ranks do not work together as they should.",
            seen="\n".join(found["problems"]),
            fix="install the same versions on all machines; where results differ, tell us",
        )


def _rows(found: dict[str, Any]) -> dict[str, Any]:
    rows: dict[str, Any] = {"backend": found["backend"]}
    for rank, facts in enumerate(found["ranks"]):
        versions = ", ".join(f"{name} {facts['versions'][name]}" for name in ("torch", "siafu"))
        rows[f"rank {rank}"] = (
            f"{facts['host']}, {facts['device']}, {versions}, interface {facts['interface']}, "
            f"{size(facts['memory_free'])} of memory and {size(facts['disk_free'])} of disk free"
        )
    slowest = sorted(found["pairs"], key=lambda pair: float(pair["bytes_per_second"]))
    for pair in slowest[:_MOST_PAIRS]:
        rate, latency = size(int(pair["bytes_per_second"])), 1e6 * pair["latency_seconds"]
        rows["ranks {} and {}".format(*pair["ranks"])] = (
            f"{rate}/s, {latency:.0f} µs ({pair['way']})"
        )
    if len(slowest) > _MOST_PAIRS:
        rows["other pairs"] = f"{len(slowest) - _MOST_PAIRS:,}, all faster"
    rows["results"] = (
        f"losses within {found['loss_difference']:.1g} and weights within "
        f"{found['weight_difference']:.1g} of those of one process"
    )
    return rows


def _device() -> str:
    if not torch.cuda.is_available():
        return "cpu (torch sees no CUDA device)"
    names = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    return f"cuda: {', '.join(names)}"


def _network() -> str:
    chosen = os.environ.get("GLOO_SOCKET_IFNAME")
    if chosen:
        return f"{chosen} (from GLOO_SOCKET_IFNAME)"
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError as error:
        return f"the host name does not resolve ({error}): set GLOO_SOCKET_IFNAME to an interface"
    names = [
        name
        for name, entries in psutil.net_if_addrs().items()
        if any(entry.address == address for entry in entries)
    ]
    where = names[0] if names else "no interface has it: set GLOO_SOCKET_IFNAME"
    return f"{address} ({where}); ranks of one machine use loopback"
