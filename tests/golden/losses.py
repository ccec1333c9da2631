"""The losses a fixed seed gives, one text file a model.

After a change that is meant to alter them: python -m tests.golden.losses, and say why in the
commit. A change that isn't (a faster kernel, a refactoring) must leave the files alone.
"""

import sys
import tempfile
from pathlib import Path

from siafu.comm import World
from siafu.config import MODEL_DEFAULTS, make_config
from siafu.engine import begin
from siafu.ingest import load
from siafu.partition import partition_graph
from siafu.shard import open_shard

FOLDER = Path(__file__).parent
EPOCHS = 20


def data_of(model: str) -> str:
    """Return the built-in graph with 500 vertices that a model is trained on."""
    return "relations:500" if model in ("rgcn", "typed-gat") else "planted:500"


def compute(model: str, parts: Path) -> list[float]:
    """Return the losses of 20 epochs with default settings."""
    config = make_config(data=data_of(model), model=model, epochs=EPOCHS, seed=11).resolved()
    training = begin(config, open_shard(parts, World()))
    curve = []
    for epoch in range(1, EPOCHS + 1):
        curve.append(training.step())
        training.progress.epochs = epoch
    return curve


def make_parts(data: str, folder: Path) -> Path:
    """Write the graph as one part, unless it is there, and return its folder."""
    parts = folder / f"{data.replace(':', '-')}.parts"
    if not parts.exists():
        partition_graph(load(data), parts, num_parts=1)
    return parts


def read(model: str) -> list[float]:
    """Return the stored losses."""
    return [float(line) for line in (FOLDER / f"{model}.txt").read_text().splitlines()]


def main() -> None:
    """Write the files anew."""
    with tempfile.TemporaryDirectory() as scratch:
        for model in MODEL_DEFAULTS:
            parts = make_parts(data_of(model), Path(scratch))
            lines = "".join(f"{loss:.8f}\n" for loss in compute(model, parts))
            (FOLDER / f"{model}.txt").write_text(lines)
            sys.stdout.write(f"{model}.txt\n")


if __name__ == "__main__":
    main()
