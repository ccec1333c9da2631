"""METIS in a process of its own: native code that aborts takes only this process with it.

Run as a file, `python -P metis_child.py FOLDER PARTS SEED PARENT`, so that siafu itself and Numba
are not loaded beside METIS. Reads offsets, neighbours, weights and, where they are there,
edge_weights (.npy); writes part_of.npy. It ends with the process that started it, PARENT.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pymetis
from pymetis import _internal

_EXTENSION: Any = _internal  # its stubs leave out most of it
_METIS_OK = 1
_NUM_OPTIONS = 40
_PR_SET_PDEATHSIG = 1
_UFACTOR = 50
"""Parts may exceed the mean by this many thousandths, in each constraint."""


def main() -> int:
    """Return 0 after writing part_of.npy."""
    folder, num_parts, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    _end_with(int(sys.argv[4]))
    offsets, neighbours, weights = (
        np.load(folder / f"{name}.npy", mmap_mode="c")
        for name in ("offsets", "neighbours", "weights")
    )
    edges = folder / "edge_weights.npy"
    edge_weights = np.load(edges, mmap_mode="c") if edges.exists() else None
    graph = (offsets, neighbours, weights, edge_weights)
    library = ctypes.CDLL(_EXTENSION.__file__)
    if hasattr(library, "METIS_PartGraphKway"):
        part_of = _several_constraints(library, num_parts, seed, *graph)
    else:
        part_of = _one_constraint(num_parts, seed, *graph)
    np.save(folder / "part_of.npy", part_of)
    return 0


def _end_with(parent: int) -> None:
    """Have the kernel end this process when its parent dies, however it dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def _several_constraints(
    library: Any,
    num_parts: int,
    seed: int,
    offsets: Any,
    neighbours: Any,
    weights: Any,
    edge_weights: Any,
) -> Any:
    """Call the METIS that pymetis carries: its wrapper fixes the number of constraints at one."""
    options = np.zeros(_NUM_OPTIONS, offsets.dtype)
    library.METIS_SetDefaultOptions(_pointer(options))
    options[_EXTENSION.options_indices.SEED] = seed % 2**31
    options[_EXTENSION.options_indices.UFACTOR] = _UFACTOR
    part_of = np.empty(len(offsets) - 1, offsets.dtype)
    num_nodes, constraints, parts, cut = (
        np.array([value], offsets.dtype) for value in (*weights.shape, num_parts, 0)
    )
    graph = [_pointer(array) for array in (num_nodes, constraints, offsets, neighbours, weights)]
    heavy = None if edge_weights is None else _pointer(edge_weights)
    outcome = library.METIS_PartGraphKway(
        *graph, None, heavy, _pointer(parts), None, None,
        _pointer(options), _pointer(cut), _pointer(part_of),
    )  # fmt: skip
    if outcome != _METIS_OK:
        raise RuntimeError(f"METIS_PartGraphKway returned {outcome}")
    return part_of.astype(np.int32)


def _pointer(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _one_constraint(
    num_parts: int,
    seed: int,
    offsets: Any,
    neighbours: Any,
    weights: Any,
    edge_weights: Any = None,
) -> Any:
    """Call pymetis with one weight, the sum of all in thousandths of a part."""
    share = weights * (1000.0 * num_parts / weights.sum(axis=0))
    found = pymetis.part_graph(
        num_parts,
        pymetis.CSRAdjacency(offsets, neighbours),
        eweights=edge_weights,
        vweights=np.ceil(1000 * share.sum(axis=1)).astype(offsets.dtype),
        options=pymetis.Options(seed=seed % 2**31, ufactor=_UFACTOR),
        recursive=False,
    )
    return np.asarray(found.vertex_part, np.int32)


if __name__ == "__main__":
    sys.exit(main())
