"""Train graph neural networks on one big graph, static or changing over time, over many ranks.

A run of four ranks equals a run of one to rounding, unless you allow it to be cheaper:

    import siafu

    run = siafu.fit("planted", model="gat", ranks=4)     # data: a name, files, PyG objects
    run.score["test"], run.predictions                # scores, and a table by your own ids
    siafu.infer(run, "new.npz")                          # the same model on other data
    siafu.resume(run, epochs=400)                        # go on where it ended

Data
    load, load_dynamic    a graph, or a dynamic graph, from names, files and objects
    partition             a graph cut into parts, one per rank, within a memory budget
Runs
    fit                   train; every flag of `siafu train` is an argument
    resume, open_run      go on with a run; read one that has ended
    infer                 predictions of a run, for its own graph or another
    make_plan             what each strategy would take: memory, bytes, seconds, dollars
Your own loop
    World                 the ranks, under torchrun or alone
    open_shard            this rank's part of a graph
    parallelize           a PyG model over all ranks, unmodified and exact
    MinibatchLoader       sampled minibatches of a partitioned graph

Each has an example in its help. Mistakes raise `SiafuError`: the problem, what was seen, the fix.
The command line (`siafu --help`) does the same without Python.
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from siafu.collector import collector_rests

if TYPE_CHECKING:
    from siafu.comm import World
    from siafu.errors import SiafuError
    from siafu.graph import DynamicGraph, Graph
    from siafu.launch.api import load, load_dynamic, open_run, partition, resume
    from siafu.launch.fit import fit
    from siafu.launch.infer import infer
    from siafu.launch.planning import make_plan
    from siafu.launch.run import Run
    from siafu.minibatch import MinibatchLoader
    from siafu.shard import Shard, open_shard
    from siafu.strategy import parallelize

__all__ = [
    "DynamicGraph",
    "Graph",
    "MinibatchLoader",
    "Run",
    "Shard",
    "SiafuError",
    "World",
    "fit",
    "infer",
    "load",
    "load_dynamic",
    "make_plan",
    "open_run",
    "open_shard",
    "parallelize",
    "partition",
    "resume",
]

_HOMES = {
    "DynamicGraph": "graph",
    "Graph": "graph",
    "MinibatchLoader": "minibatch",
    "Run": "launch",
    "Shard": "shard",
    "SiafuError": "errors",
    "World": "comm",
    "fit": "launch",
    "infer": "launch",
    "load": "launch",
    "load_dynamic": "launch",
    "make_plan": "launch",
    "open_run": "launch",
    "open_shard": "shard",
    "parallelize": "strategy",
    "partition": "launch",
    "resume": "launch",
}
"""Where each name is, loaded when it is first asked for: a worker needs a part of siafu."""


_PACKAGES = frozenset(
    [
        "comm",
        "config",
        "errors",
        "graph",
        "ingest",
        "minibatch",
        "nn",
        "ops",
        "partitioning",
        "plan",
        "shard",
        "strategy",
    ]
)


def __getattr__(name: str) -> Any:
    """Return a public name or a package, from now on found here."""
    if name == "__version__":
        return metadata.version(__name__)
    if name not in _HOMES and name not in _PACKAGES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with collector_rests():
        if name in _PACKAGES:
            return import_module(f"{__name__}.{name}")
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
