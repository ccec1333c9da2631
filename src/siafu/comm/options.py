"""What can be told of the processes that a run is spread over."""

from typing import ClassVar, Literal

from siafu.options import Options, Scope, setting

RAY = Scope(
    lambda kind: "ray" in (kind.config.launcher, kind.pool),
    "where nothing runs on Ray",
    "add --launcher ray or --pool ray",
)


class MachineOptions(Options):
    """Where ranks run."""

    panel: ClassVar[str] = "Machine"

    ranks: int = setting(1, "processes, one per part", usual=2, ge=1)
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "auto, cpu or cuda", usual=13)
    backend: Literal["auto", "gloo", "nccl"] = setting(
        "auto",
        "what carries rows between ranks: nccl where each has a GPU of its own, gloo elsewhere; "
        "gloo takes those of GPUs through the host",
    )
    threads: int = setting(0, "threads per rank; 0 shares the cores", ge=0, le=4096)
    deadline: float = setting(300.0, "seconds any wait between ranks may last", gt=0, le=10**7)
    max_restarts: int = setting(
        0, "times a training goes on from its newest checkpoint when a rank is lost", ge=0, le=999
    )
    min_ranks: int | None = setting(
        None,
        "go on without ranks that were lost, as long as so many are left (default: start as many "
        "again); with --max-restarts",
        ge=1,
    )
    launcher: Literal["local", "ray"] = setting(
        "local", "start ranks on this machine, or on the nodes of a Ray cluster"
    )
    ray_address: str = setting(
        "auto", "the Ray cluster: auto, HOST:PORT, or local for one started here", RAY
    )
