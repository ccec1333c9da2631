"""Files that have a cluster run a training: of Slurm, of Kubernetes, of Ray.

Each starts torchrun on every node, or ranks on Ray, with `--resume auto`: a job that is started
again goes on with its run.
"""

import json
import math
import re
import shlex
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from siafu.errors import ConfigError
from siafu.options import read_bytes

JobKind = Literal["slurm", "kubernetes", "kuberay", "ray"]
_MIB = 2**20
_FIRST_PORT, _PORTS = 20_000, 20_000
_WARNED_SECONDS = 120
"""Before a job is ended by its scheduler: ranks save within 20 s of a SIGTERM."""
_NOT_OURS = {"--ranks": "--nodes and --ranks-per-node say", "--launcher": "the job file says"}


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRequest:
    """What a job is to have."""

    name: str
    nodes: int
    min_nodes: int | None
    """Nodes that are enough to go on with, where some are lost."""
    ranks_per_node: int
    cores: int
    """Of a node."""
    memory: str | None
    """Of a node."""
    gpus: int
    """Of a node."""
    hours: float
    queue: str | None
    image: str | None
    claim: str | None
    """A volume that all nodes see, mounted at /data."""
    restarts: int

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,51}[a-z0-9])?", self.name):
            raise ConfigError(
                "The name of a job has small letters, digits and dashes.",
                seen=self.name,
                fix="use a name such as papers-gat",
            )
        if self.min_nodes is not None and not 1 <= self.min_nodes <= self.nodes:
            raise ConfigError(
                "The fewest nodes are at most all of them.",
                seen=f"--min-nodes {self.min_nodes} of {self.nodes}",
                fix=f"use 1 to {self.nodes}",
            )

    @property
    def memory_mib(self) -> int | None:
        """The memory of a node in MiB."""
        return None if self.memory is None else math.ceil(read_bytes(self.memory) / _MIB)


def job_file(kind: JobKind, request: JobRequest, words: list[str]) -> str:
    """Return the file, or the command, that runs `siafu WORDS` on a cluster."""
    words = _checked(words)
    if kind in ("kubernetes", "kuberay") and request.image is None:
        raise ConfigError(
            "Pods run an image.",
            seen=f"siafu launch {kind} without --image",
            fix="build one with siafu in it (pip install siafu) and name it: --image REGISTRY/NAME",
        )
    if kind == "slurm":
        return _slurm(request, words)
    if kind == "kubernetes":
        return yaml.safe_dump(_pytorch_job(request, words), sort_keys=False)
    if kind == "kuberay":
        return yaml.safe_dump(_ray_job(request, words), sort_keys=False)
    return _ray_command(request, words)


def submit_command(kind: JobKind) -> list[str]:
    """Return the command that takes such a file on its standard input."""
    return {"slurm": ["sbatch"], "ray": ["bash"]}.get(kind, ["kubectl", "apply", "-f", "-"])


def _checked(words: list[str]) -> list[str]:
    """Return what to run, made to go on where it was begun."""
    if words[:1] != ["train"] or len(words) < 2:
        raise ConfigError(
            "A job trains.",
            seen=shlex.join(words) or "nothing after --",
            fix="write it as: siafu launch slurm --nodes 4 -- train DATA --model gat --out RUN",
        )
    names = [word.partition("=")[0] for word in words]
    for flag, who in _NOT_OURS.items():
        if flag in names:
            raise ConfigError(
                "The job says how ranks are started.", seen=flag, fix=f"leave it out: {who} so"
            )
    if "--out" not in names and "--resume" not in names:
        raise ConfigError(
            "A job that is started again must find its run.",
            seen="no --out",
            fix="add --out RUN, a folder that all nodes see",
        )
    return words if "--resume" in names else [*words, "--resume", "auto"]


def _slurm(request: JobRequest, words: list[str]) -> str:
    options: dict[str, Any] = {
        "job-name": request.name,
        "nodes": request.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": request.cores,
        "mem": f"{request.memory_mib}M" if request.memory_mib else None,
        "gpus-per-node": request.gpus or None,
        "time": _clock(request.hours),
        "partition": request.queue,
        "output": f"{request.name}-%j.log",
        "open-mode": "append",
        "signal": f"TERM@{_WARNED_SECONDS}",
    }
    lines = [f"#SBATCH --{name}={value}" for name, value in options.items() if value is not None]
    nodes = '"$SLURM_NNODES"'
    if request.min_nodes is not None:
        nodes = f'"{request.min_nodes}:$SLURM_NNODES"'
        lines.append("#SBATCH --no-kill")
    return "\n".join(
        [
            "#!/bin/bash",
            *lines,
            "#SBATCH --requeue",
            "set -eu",
            'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            f"port=$(({_FIRST_PORT} + SLURM_JOB_ID % {_PORTS}))",
            f"exec srun --ntasks-per-node=1 --cpus-per-task={request.cores} torchrun \\",
            f"  --nnodes={nodes} --nproc-per-node={request.ranks_per_node} \\",
            '  --rdzv-backend=c10d --rdzv-endpoint="$first:$port" --rdzv-id="$SLURM_JOB_ID" \\',
            f"  --max-restarts={request.restarts} -m siafu {shlex.join(words)}",
            "",
        ]
    )


def _clock(hours: float) -> str:
    minutes = math.ceil(60 * hours)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


def _pod(
    request: JobRequest, container: str, command: list[str] | None, *, cores: int | None = None
) -> dict[str, Any]:
    """Return a pod of one container, with what a node of the job has."""
    much: dict[str, Any] = {"cpu": str(request.cores if cores is None else cores)}
    if request.memory_mib is not None:
        much["memory"] = f"{request.memory_mib}Mi"
    if request.gpus and cores is None:
        much["nvidia.com/gpu"] = request.gpus
    made: dict[str, Any] = {"name": container, "image": request.image}
    if command is not None:
        made |= {"command": command}
    made |= {"resources": {"requests": much, "limits": dict(much)}}
    spec: dict[str, Any] = {"containers": [made], "terminationGracePeriodSeconds": _WARNED_SECONDS}
    if request.claim is not None:
        made["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": request.claim}}
        spec["volumes"] = [volume]
    return {"spec": spec}


def _pytorch_job(request: JobRequest, words: list[str]) -> dict[str, Any]:
    """Return a PyTorchJob of Kubeflow's training operator, which tells torchrun where to meet."""
    ranks = f"--nproc-per-node={request.ranks_per_node}"
    pod = _pod(request, "pytorch", ["torchrun", ranks, "-m", "siafu", *words])
    if request.queue is not None:
        pod["spec"]["priorityClassName"] = request.queue
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": request.name},
        "spec": {
            "nprocPerNode": str(request.ranks_per_node),
            "elasticPolicy": {
                "rdzvBackend": "c10d",
                "minReplicas": request.min_nodes or request.nodes,
                "maxReplicas": request.nodes,
                "maxRestarts": request.restarts,
            },
            "runPolicy": {
                "backoffLimit": request.restarts,
                "activeDeadlineSeconds": math.ceil(3600 * request.hours),
            },
            "pytorchReplicaSpecs": {
                "Worker": {
                    "replicas": request.nodes,
                    "restartPolicy": "OnFailure",
                    "template": pod,
                }
            },
        },
    }


def _on_ray(request: JobRequest, words: list[str]) -> list[str]:
    ranks = request.nodes * request.ranks_per_node
    more = ["--launcher", "ray", "--ranks", str(ranks), "--max-restarts", str(request.restarts)]
    if request.min_nodes is not None:
        more += ["--min-ranks", str(request.min_nodes * request.ranks_per_node)]
    names = {word.partition("=")[0] for word in words}
    pairs = zip(more[::2], more[1::2], strict=True)
    kept = [word for pair in pairs if pair[0] not in names for word in pair]
    return ["siafu", *words, *kept]


def _ray_job(request: JobRequest, words: list[str]) -> dict[str, Any]:
    """Return a RayJob of KubeRay: a cluster for this training alone, whose head has no ranks."""
    workers = {
        "groupName": "ranks",
        "replicas": request.nodes,
        "minReplicas": request.min_nodes or request.nodes,
        "maxReplicas": request.nodes,
        "rayStartParams": {},
        "template": _pod(request, "ray-worker", None),
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": request.name},
        "spec": {
            "entrypoint": shlex.join(_on_ray(request, words)),
            "shutdownAfterJobFinishes": True,
            "backoffLimit": request.restarts,
            "activeDeadlineSeconds": math.ceil(3600 * request.hours),
            "rayClusterSpec": {
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0"},
                    "template": _pod(request, "ray-head", None, cores=2),
                },
                "workerGroupSpecs": [workers],
            },
        },
    }


def _ray_command(request: JobRequest, words: list[str]) -> str:
    """Return the command that hands a training to a Ray cluster, named by RAY_ADDRESS."""
    environment = {"env_vars": {"RAY_DEDUP_LOGS": "0"}}
    command = ["ray", "job", "submit", "--submission-id", request.name]
    command += ["--runtime-env-json", json.dumps(environment), "--"]
    return shlex.join([*command, *_on_ray(request, words)]) + "\n"
