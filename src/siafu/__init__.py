"""Train graph neural networks on one big graph over many ranks, exactly by default."""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from siafu.collector import collector_rests

if TYPE_CHECKING:
    from siafu.comm import World
    from siafu.errors import SiafuError
    from siafu.graph import Graph
    from siafu.ingest import load
    from siafu.launch import Run, fit
    from siafu.minibatch import MinibatchLoader
    from siafu.shard import Shard, open_shard
    from siafu.strategy import parallelize

__all__ = [
    "Graph",
    "MinibatchLoader",
    "Run",
    "Shard",
    "SiafuError",
    "World",
    "fit",
    "load",
    "open_shard",
    "parallelize",
]

_HOMES = {
    "Graph": "graph",
    "MinibatchLoader": "minibatch",
    "Run": "launch",
    "Shard": "shard",
    "SiafuError": "errors",
    "World": "comm",
    "fit": "launch",
    "load": "ingest",
    "open_shard": "shard",
    "parallelize": "strategy",
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
        "partition",
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
