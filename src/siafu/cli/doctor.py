"""`siafu doctor`: what is installed, which fast paths are on, and why others are off."""

import os
import socket
from typing import Annotated, Any

import psutil
import torch
import typer

from siafu.cli.show import print_json, print_table, size
from siafu.ops import fast_paths
from siafu.record import environment, installed


def doctor(
    json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """Check this machine and say what siafu will use."""
    facts = environment()
    memory = psutil.virtual_memory()
    rows: dict[str, Any] = {
        "python": facts["python"],
        **facts["packages"],
        "cores": f"{facts['cores']} ({len(os.sched_getaffinity(0))} usable)",
        "memory": f"{size(memory.available)} free of {size(memory.total)}",
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
