"""What the process that tests fork ranks from loads; it starts no thread and does no work."""

import atexit
import gc
import os
from importlib.util import find_spec

import siafu.launch.rank
import tests.harness
from siafu.ops import load_compiler

if find_spec("torch_geometric"):
    import torch_geometric.nn

__all__ = ["siafu", "tests", "torch_geometric"]

load_compiler()
gc.freeze()
# Without a look, at its end, at all that was loaded: forks end by themselves.
atexit.register(os._exit, 0)
