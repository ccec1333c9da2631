"""Which device a rank has, and which transport serves all of them, agreed on before they meet."""

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import Store  # type: ignore[attr-defined]

from siafu.errors import CommError, ConfigError

if TYPE_CHECKING:
    from siafu.comm.world import World

LOCAL_RANK_VARIABLES = (
    "LOCAL_RANK",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
)
"""Who starts ranks tells each its number on its machine in one of these, or in none."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank is."""

    host: str
    kind: str
    """cpu or cuda."""
    gpu: str = ""
    """What its GPU is called, different for each of a machine."""


def choose_device(name: str, local_rank: int) -> torch.device:
    """Return the device for a rank; `auto` takes CUDA where there is any."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise ConfigError("Unknown device.", seen=name, fix="use auto, cpu or cuda")
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            "No CUDA device can be used.",
            seen=f"torch {torch.__version__} sees none",
            fix="use --device cpu, or see `siafu doctor`",
        )
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def told_local_rank(environ: Mapping[str, str] | None = None) -> int | None:
    """Return the number of this rank on its machine, if whoever started it tells."""
    environ = os.environ if environ is None else environ
    told = next((environ[name] for name in LOCAL_RANK_VARIABLES if name in environ), None)
    return None if told is None else int(told)


def settle(
    store: Store, rank: int, size: int, device: str, backend: str = "auto"
) -> tuple[torch.device, int, str]:
    """Return this rank's device, its number on its machine, and the backend of all ranks.

    Every rank calls this, with the same settings, before it joins a process group.
    """
    local_rank = told_local_rank()
    if local_rank is None:
        hosts = _table(store, "host", rank, size, _host())
        local_rank = hosts[:rank].count(_host())
    chosen = choose_device(device, local_rank)
    if device == "cpu" and backend == "auto":
        return chosen, local_rank, "gloo"
    mine = Place(_host(), chosen.type, name_of(chosen))
    places = [
        Place(**json.loads(text))
        for text in _table(store, "place", rank, size, json.dumps(asdict(mine)))
    ]
    return chosen, local_rank, agreed_backend(places, backend)


def agreed_backend(places: list[Place], asked: str = "auto") -> str:
    """Return NCCL where every rank has a GPU of its own, Gloo where ranks share some or none has.

    NCCL refuses two ranks on one GPU; Gloo carries their rows through the host. What is `asked` for
    is taken where it can be.
    """
    kinds = {place.kind for place in places}
    if len(kinds) > 1:
        on_cpu = [rank for rank, place in enumerate(places) if place.kind == "cpu"]
        raise CommError(
            "Some ranks have a GPU and some have none.",
            seen=f"ranks {on_cpu} of {len(places)} are on a CPU",
            fix="give every rank a GPU, or use --device cpu",
        )
    gpus = {(place.host, place.gpu) for place in places}
    has_own = kinds == {"cuda"} and len(gpus) == len(places)
    if asked == "nccl" and not has_own:
        shared = f"{len(places)} ranks on {len(gpus)} GPUs" if kinds == {"cuda"} else "CPUs"
        raise CommError(
            "NCCL needs a GPU for every rank.",
            seen=f"--backend nccl and {shared}",
            fix="start as many ranks as there are GPUs, or leave --backend out",
        )
    return "nccl" if has_own and asked != "gloo" else "gloo"


def hosts_of(store: Any, size: int) -> tuple[str, ...]:
    """Return the machine of each rank; nothing where all are on one, or can't be asked at once."""
    if not store.has_extended_api():
        return ()
    found = tuple(name.decode() for name in store.multi_get([f"host/{r}" for r in range(size)]))
    return found if len(set(found)) > 1 else ()


def _table(store: Store, what: str, rank: int, size: int, mine: str) -> list[str]:
    """Return what every rank tells, by rank."""
    store.set(f"{what}/{rank}", mine)
    return [store.get(f"{what}/{other}").decode() for other in range(size)]


def _host() -> str:
    """Return a name of this machine; containers of one machine may share its host name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"


def sharers(world: "World") -> tuple[int, int]:
    """Return how many ranks have this rank's GPU, and its host; every rank calls this together."""
    host = socket.gethostname()
    found = world.gather_texts(f"{host} {name_of(world.device)}")
    mine = found[world.rank]
    return found.count(mine), sum(text.startswith(f"{host} ") for text in found)


def name_of(device: torch.device) -> str:
    """Return what a GPU is called, different for each of a machine; nothing for a CPU."""
    if device.type != "cuda":
        return ""
    return str(getattr(torch.cuda.get_device_properties(device), "uuid", device.index))
