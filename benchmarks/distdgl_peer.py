"""DistDGL's side of `benchmarks.distdgl`, run by an interpreter of its own.

Run: PYTHON benchmarks/distdgl_peer.py cut TASK HOSTS FOLDER
     PYTHON benchmarks/distdgl_peer.py host JOB.json

Needs DGL and numpy alone, not siafu. `cut` writes DGL's partitions of the graph that lies in TASK
as .npy files, along the parts given there; `host` is one host of the cluster: the graph's server, a
process of its own as DGL starts it, and a trainer whose epochs are timed. RANK, WORLD_SIZE and
MASTER_ADDR are those of torchrun.

Shapes: N nodes, B seeds, V nodes that a minibatch reads, D width.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

NAME = "graph"


class _NoGraphBolt(ModuleType):
    """What DistDGL names of GraphBolt when imported; it is called only with `use_graphbolt`."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def let_dgl_load() -> None:
    """Leave GraphBolt out where it has no library for this torch."""
    spec = importlib.util.find_spec("dgl")
    assert spec is not None
    assert spec.origin is not None
    library = f"libgraphbolt_pytorch_{torch.__version__.split('+')[0]}.so"
    if not (Path(spec.origin).parent / "graphbolt" / library).exists():
        sys.modules.setdefault("dgl.graphbolt", _NoGraphBolt("dgl.graphbolt"))


let_dgl_load()  # in the processes that sample too, which import this file first


def cut(task: Path, hosts: int, folder: Path) -> None:
    """Write DGL's partitions, with the parts of the task instead of METIS's."""
    dgl = importlib.import_module("dgl")
    held = {path.stem: torch.from_numpy(np.load(path)) for path in task.glob("*.npy")}
    graph = dgl.graph((held["src"].long(), held["dst"].long()), num_nodes=len(held["y"]))
    graph.ndata["y"], graph.ndata["train"] = held["y"].long(), held["train"].bool()
    graph.ndata["x"] = held["x"]
    partition: Any = importlib.import_module("dgl.distributed.partition")
    partition.metis_partition_assignment = lambda *_, **__: held["part"].long()
    partition.partition_graph(
        graph, NAME, hosts, str(folder), num_hops=1, part_method="metis", graph_formats=["csc"]
    )


class Net(nn.Module):
    """GraphSAGE of means over the blocks of a minibatch."""

    def __init__(self, widths: list[int], dropout: float) -> None:
        super().__init__()
        convs = importlib.import_module("dgl.nn")
        self.convs = nn.ModuleList(convs.SAGEConv(a, b, "mean") for a, b in pairwise(widths))
        self.dropout = dropout

    def forward(self, blocks: list[Any], x_VD: Tensor) -> Tensor:
        """Return logits of the seeds."""
        last = len(self.convs) - 1
        for number, (conv, block) in enumerate(zip(self.convs, blocks, strict=True)):
            x_VD = conv(block, x_VD)
            if number < last:
                x_VD = functional.dropout(torch.relu(x_VD), self.dropout, self.training)
        return x_VD


def serve(environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start the server of this host's part."""
    return subprocess.Popen(
        [sys.executable, __file__, "server"], env=environment | {"DGL_ROLE": "server"}
    )


def variables(job: dict[str, Any]) -> dict[str, str]:
    """Return what DGL's launcher sets for the processes of a host."""
    rank, size = os.environ["RANK"], int(os.environ["WORLD_SIZE"])
    return {
        "DGL_DIST_MODE": "distributed",
        "DGL_SERVER_ID": rank,
        "DGL_NUM_SERVER": "1",
        "DGL_NUM_SAMPLER": str(job["samplers"]),
        "DGL_NUM_CLIENT": str(size * (1 + job["samplers"])),
        "DGL_CONF_PATH": str(Path(job["folder"]) / f"{NAME}.json"),
        "DGL_IP_CONFIG": job["addresses"],
        "DGL_GRAPH_FORMAT": "csc",
        "DGL_KEEP_ALIVE": "0",
        "DGLBACKEND": "pytorch",
        "OMP_NUM_THREADS": str(job["threads"]),
    }


class Trainer:
    """One client: its seeds, its model and its epochs."""

    def __init__(self, job: dict[str, Any]) -> None:
        dgl = importlib.import_module("dgl")
        self.graph = dgl.distributed.DistGraph(NAME, part_config=os.environ["DGL_CONF_PATH"])
        book = self.graph.get_partition_book()
        seeds = dgl.distributed.node_split(self.graph.ndata["train"], book, force_even=True)
        # DGL names the fan-out of the layer that is farthest from the seeds first.
        sampler = dgl.dataloading.NeighborSampler(job["fanouts"][::-1])
        self.loader = dgl.dataloading.DistNodeDataLoader(
            self.graph, seeds, sampler, batch_size=job["batch"], shuffle=True, drop_last=False
        )
        features = self.graph.ndata["x"].shape[1]
        widths = [features, *[job["hidden"]] * (len(job["fanouts"]) - 1), job["classes"]]
        self.net = nn.parallel.DistributedDataParallel(Net(widths, job["dropout"]))
        self.optimiser = torch.optim.Adam(self.net.parameters(), lr=0.01)

    def epoch(self) -> dict[str, float]:
        """Train one epoch, and return its seconds by what they went into."""
        spent = {"sample": 0.0, "rows": 0.0, "train": 0.0}
        loss, steps = torch.tensor(0.0), 0
        began = marked = time.perf_counter()
        for sources_V, seeds_B, blocks in self.loader:
            spent["sample"] += (now := time.perf_counter()) - marked
            x_VD = self.graph.ndata["x"][sources_V]
            y_B = self.graph.ndata["y"][seeds_B].long()
            spent["rows"] += (then := time.perf_counter()) - now
            self.optimiser.zero_grad()
            loss = functional.cross_entropy(self.net(blocks, x_VD), y_B)
            loss.backward()
            self.optimiser.step()
            spent["train"] += (marked := time.perf_counter()) - then
            steps += 1
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "steps": steps, "loss": float(loss.detach()), **spent}


def host(job: dict[str, Any]) -> None:
    """Serve a part and train; the last line is what was measured."""
    os.environ |= variables(job)
    server = serve(dict(os.environ))
    os.environ["DGL_ROLE"] = "client"
    dgl = importlib.import_module("dgl")
    dgl.distributed.initialize(job["addresses"])
    torch.set_num_threads(job["threads"])
    torch.distributed.init_process_group("gloo")
    trainer = Trainer(job)
    epochs = []
    for _ in range(job["epochs"]):
        torch.distributed.barrier()
        epochs.append(trainer.epoch())
    torch.distributed.barrier()
    print(json.dumps({"dgl": dgl.__version__, "torch": torch.__version__, "epochs": epochs}))
    sys.stdout.flush()
    dgl.distributed.exit_client()
    server.wait(60)


def main() -> None:
    """Do what the first word says."""
    if sys.argv[1] == "cut":
        cut(Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    elif sys.argv[1] == "server":
        importlib.import_module("dgl").distributed.initialize(os.environ["DGL_IP_CONFIG"])
    else:
        host(json.loads(Path(sys.argv[2]).read_text()))


if __name__ == "__main__":
    main()
