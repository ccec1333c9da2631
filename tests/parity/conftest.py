"""Parts folders that the parity tests share."""

from pathlib import Path

import pytest

from siafu.partitioning import write_parts
from tests.parity.graphs import assignment, awkward_graph


@pytest.fixture(scope="session")
def parts_of(tmp_path_factory: pytest.TempPathFactory):
    """Return a function that gives the parts folder for (kind, size, weighted), made once."""
    root, made = tmp_path_factory.mktemp("parts"), {}

    def make(kind: str, size: int, weighted: bool) -> Path:
        key = (kind, size, weighted)
        if key not in made:
            graph = awkward_graph(weighted=weighted)
            target = root / f"{kind}-{size}-{weighted}.parts"
            part_of = assignment(graph, kind, size)
            write_parts(graph, part_of, target, num_parts=size, method=kind, seed=0)
            made[key] = target
        return made[key]

    return make
