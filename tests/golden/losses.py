"""The losses a fixed seed gives, one text file per model and one per engine.

After a change that is meant to alter them: python -m tests.golden.losses [NAME ...], and say why in
the commit. A change that isn't (a faster kernel, a refactoring) must leave the files alone.
"""

import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin, begin_dynamic
from siafu.graph import load_dynamic_store, save_dynamic
from siafu.ingest import load, load_dynamic
from siafu.nn import CARDS
from siafu.partitioning import partition_graph
from siafu.record import RunFolder
from siafu.shard import open_shard
from tests.harness import RankPool

FOLDER = Path(__file__).parent
EPOCHS = 20


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One run whose losses are stored."""

    data: str
    settings: dict[str, Any]
    ranks: tuple[int, ...] = (1,)
    """Numbers of ranks that must all give the stored losses; the first wrote them."""
    epochs: int = EPOCHS
    dynamic: bool = field(default=False)


def _of_model(model: str) -> Curve:
    data = "relations:500" if model in ("rgcn", "typed-gat") else "planted:500"
    return Curve(data=data, settings={"model": model})


_SAMPLED = {"strategy": "batchgnn", "model": "sage", "fanout": "5,3", "batch_size": 40}
CURVES: dict[str, Curve] = {
    **{model: _of_model(model) for model in CARDS},
    "sar": Curve(data="planted:500", settings={"model": "gat", "strategy": "sar"}, ranks=(1, 3)),
    "columns": Curve(
        data="planted:500", settings={"model": "gat", "strategy": "columns"}, ranks=(1, 3)
    ),
    # On one rank nothing is rounded: what three ranks give is theirs alone.
    "adaqp": Curve(
        data="planted:500",
        settings={
            "model": "sage",
            "strategy": "adaqp",
            "layers": 3,
            "wire_period": 8,
            # In float32 an entry between two codes rounds up on one kind of processor alone.
            "precision": "float64",
        },
        ranks=(3,),
    ),
    "batchgnn": Curve(
        data="planted:500",
        settings={**_SAMPLED, "seed_order": "global", "step_minibatches": 3},
        ranks=(1, 3),
        epochs=6,
    ),
    "dorylus": Curve(
        data="planted:500",
        settings={"model": "gcn", "strategy": "dorylus", "pool": "none", "intervals": 3},
        ranks=(1, 3),
    ),
    "tm-gcn": Curve(
        data="drifting:120",
        settings={"model": "tm-gcn", "hidden": 8, "bandwidth": 4},
        ranks=(1, 3),
        epochs=10,
        dynamic=True,
    ),
}


def prepare(curve: Curve, ranks: int, folder: Path) -> Path:
    """Return the folder of the graph, cut into as many parts as there are ranks."""
    target = folder / f"{curve.data.replace(':', '-')}.{1 if curve.dynamic else ranks}"
    if target.exists():
        return target
    if curve.dynamic:
        graph, _ = load_dynamic(curve.data)
        save_dynamic(graph, target)
    else:
        partition_graph(load(curve.data), target, num_parts=ranks, method="hash")
    return target


def compute(world: World, name: str, data: Path, folder: Path) -> list[float]:
    """Return the losses of one rank's side of the run."""
    curve = CURVES[name]
    settings = {**curve.settings, "epochs": curve.epochs, "seed": 11, "ranks": world.size}
    config = make_config(data=curve.data, eval_every=curve.epochs, **settings).resolved()
    run = RunFolder(folder)
    if world.rank == 0:
        folder.mkdir()
    if curve.dynamic:
        training = begin_dynamic(config, load_dynamic_store(data), world, None)
        return list(training.train(run, lambda row: None).losses)
    static = begin(config, open_shard(data, world))
    result = static.train(run, lambda row: None)
    static.close()
    return list(result.losses)


def compute_on(pool: RankPool, name: str, ranks: int, scratch: Path) -> list[float]:
    """Return the losses of a run on so many ranks; one is this process."""
    data = prepare(CURVES[name], ranks, scratch)
    folder = scratch / f"{name}-{ranks}"
    if ranks == 1:
        return compute(World(), name, data, folder)
    curve: list[float] = pool.run(compute, ranks, name, data, folder)[0]
    return curve


def read(name: str) -> list[float]:
    """Return the stored losses."""
    return [float(line) for line in (FOLDER / f"{name}.txt").read_text().splitlines()]


def main() -> None:
    """Write the files anew, all or those named."""
    pool = RankPool()
    with tempfile.TemporaryDirectory() as scratch:
        for name in sys.argv[1:] or CURVES:
            curve = compute_on(pool, name, CURVES[name].ranks[0], Path(scratch))
            (FOLDER / f"{name}.txt").write_text("".join(f"{loss:.8f}\n" for loss in curve))
            sys.stdout.write(f"{name}.txt\n")
    pool.close()


if __name__ == "__main__":
    main()
