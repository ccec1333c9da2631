"""Job files of clusters: what they hold, what they refuse, and how they are handed over.

Both manifests were checked against the operators' own definitions, unknown fields refused (LOG.md).
"""

import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.command import Command

TRAIN = ("--", "train", "my data", "--model", "gat", "--out", "/shared/run")
SIZE = ("--nodes", 3, "--ranks-per-node", 2, "--cores", 8, "--memory", "64GB", "--hours", 1.5)


def slurm_options(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH --")]
    words = [line.removeprefix("#SBATCH --").partition("=") for line in lines]
    return {name: value for name, _, value in words}


def test_slurm_starts_torchrun_on_every_node(siafu: Command) -> None:
    text = siafu("launch", "slurm", *SIZE, "--min-nodes", 2, *TRAIN).out
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    options = slurm_options(text)
    assert (options["nodes"], options["cpus-per-task"], options["mem"]) == ("3", "8", "61036M")
    assert (options["time"], options["ntasks-per-node"]) == ("01:30:00", "1")
    assert "no-kill" in options, "a job goes on without a lost node"
    command = text[text.index("exec srun") :].replace("\\\n", "")
    words = shlex.split(command)
    assert "--nnodes=2:$SLURM_NNODES" in words
    assert "--nproc-per-node=2" in words
    given = ["train", "my data", "--model", "gat", "--out", "/shared/run", "--resume", "auto"]
    assert words[words.index("siafu") + 1 :] == given


def test_kubernetes_has_a_replica_per_node(siafu: Command) -> None:
    more = ("--image", "here/siafu", "--claim", "graphs", "--gpus", 2)
    job = yaml.safe_load(siafu("launch", "kubernetes", *SIZE, *more, *TRAIN).out)
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    policy = job["spec"]["elasticPolicy"]
    assert (worker["replicas"], policy["minReplicas"], policy["maxReplicas"]) == (3, 3, 3)
    [container] = worker["template"]["spec"]["containers"]
    assert container["name"] == "pytorch", "by which the operator finds it"
    assert container["command"][:4] == ["torchrun", "--nproc-per-node=2", "-m", "siafu"]
    limits = {"cpu": "8", "memory": "61036Mi", "nvidia.com/gpu": 2}
    assert container["resources"]["limits"] == limits
    assert container["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]


def test_ranks_of_ray_are_those_of_all_nodes(siafu: Command) -> None:
    more = ("--image", "here/siafu", "--min-nodes", 2, "--restarts", 5)
    job = yaml.safe_load(siafu("launch", "kuberay", *SIZE, *more, *TRAIN).out)
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[:3] == ["siafu", "train", "my data"]
    pairs = dict(zip(words[-8::2], words[-7::2], strict=True))
    wanted = {"--launcher": "ray", "--ranks": "6", "--max-restarts": "5", "--min-ranks": "4"}
    assert pairs == wanted
    [group] = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"]) == (3, 2)
    words = shlex.split(siafu("launch", "ray", *SIZE, *TRAIN).out)
    assert words[:3] == ["ray", "job", "submit"]
    assert words[words.index("--") + 1 : words.index("--") + 3] == ["siafu", "train"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("slurm",), "A job trains"),
        (("slurm", "--", "infer", "RUN"), "A job trains"),
        (("slurm", "--", "train", "d"), "no --out"),
        (("slurm", *TRAIN, "--ranks", "4"), "leave it out"),
        (("slurm", *TRAIN, "--modle", "gat"), "--modle"),
        (("slurm", "--name", "My Job", *TRAIN), "small letters"),
        (("slurm", "--nodes", 2, "--min-nodes", 3, *TRAIN), "--min-nodes 3 of 2"),
        (("kubernetes", *TRAIN), "--image"),
    ],
)
def test_jobs_that_could_not_run(siafu: Command, arguments: tuple[object, ...], told: str) -> None:
    answer = siafu("launch", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert told in answer.err


def test_a_job_is_handed_over(
    siafu: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\ncat > taken && echo Submitted batch job 7\n")
    sbatch.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    answer = siafu("launch", "slurm", "--submit", *TRAIN)
    assert "Submitted batch job 7" in answer.err
    assert Path("taken").read_text() == answer.out
    sbatch.write_text("#!/bin/sh\necho Invalid partition >&2; exit 1\n")
    answer = siafu("launch", "slurm", "--submit", *TRAIN)
    assert (answer.code, "Invalid partition" in answer.err) == (2, True)
    sbatch.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = siafu("launch", "slurm", "--submit", *TRAIN)
    assert (answer.code, "sbatch is not there" in answer.err) == (2, True)
