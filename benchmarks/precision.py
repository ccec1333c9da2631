"""What does bf16 gain and cost: seconds and memory of epochs, and scores, beside float32?

Run: SIAFU_DATA=FOLDER python -m benchmarks.precision [--json FILE] [--device cuda|cpu]
     [--scale 1.0] [--epochs 10] [--seeds 5] [--parts whole,sampled,pyg,accuracy]

Epochs are those of `benchmarks.sampled_gpu`'s graph (1.2 M nodes, 40 M edges, three layers of 256):
over the whole graph and sampled with rows on the device, each precision in a trainer of its own, as
the command line would begin it. Beside the whole graph's SAGE: PyG's, in float32 and under torch's
autocast. Scores are of `benchmarks.accuracy`'s sets, the same seeds in both precisions.
"""

import argparse
import statistics
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from benchmarks.accuracy import TARGETS
from benchmarks.measure import append_json, machine
from benchmarks.sampled_gpu import epoch_of, make_shard, measure, training_of
from benchmarks.sampled_gpu_plain import CLASSES, HIDDEN, WIDTH
from siafu import fit
from siafu.config import make_config
from siafu.engine import Trainer, begin
from siafu.shard import Shard, moved_shard

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyG scripts parts of itself, which torch has deprecated
    from torch_geometric.nn import GraphSAGE

PRECISIONS = ("float32", "bf16")
SETS = ("cora", "citeseer", "pubmed", "amazon_photo")
MODELS: dict[str, dict[str, Any]] = {"sage": {}, "gcn": {}, "gat": {"heads": 4}}


def whole_training(shard: Shard, model: str, precision: str) -> Trainer:
    """Return the training of a whole graph, as the command line would begin it."""
    config = make_config(
        data="made",
        model=model,
        layers=3,
        hidden=HIDDEN,
        dropout=0.5,
        lr=0.003,
        epochs=1000,
        inference="none",
        device=shard.world.device.type,
        precision=precision,
        **MODELS[model],
    )
    return begin(config.resolved(), shard)


def epochs_of(
    make: Callable[[], Trainer], epochs: int, steps: int, device: torch.device
) -> dict[str, Any]:
    """Return the row of a training, which is let go of after."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    training = make()
    row = measure(lambda: epoch_of(training), epochs, steps, device)
    training.close()
    return row


def measure_pyg(shard: Shard, precision: str, epochs: int) -> dict[str, Any]:
    """Return PyG's row: the same layers over the whole graph."""
    device = shard.world.device
    net = GraphSAGE(WIDTH, HIDDEN, 3, CLASSES, dropout=0.5).to(device)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.003)
    x, y, train, edge_index = shard.x, shard.y, shard.train, shard.edge_index
    assert isinstance(x, torch.Tensor)
    assert y is not None

    def epoch() -> float:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            out = net(x, edge_index)
        loss = functional.cross_entropy(out.float()[train], y[train])
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    return measure(epoch, epochs, 1, device)


def scores_of(name: str, precision: str, seeds: int, device: str) -> dict[str, Any]:
    """Return the mean and spread of a set's test scores."""
    target = next(one for one in TARGETS if one.name == name)
    found = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as scratch:
            out = str(Path(scratch) / "run")
            settings = {**target.settings, "precision": precision, "device": device}
            run = fit(target.data or name, seed=seed, out=out, quiet=True, **settings)
        found.append(round(100 * run.score["test"], 2))
    mean, spread = statistics.mean(found), statistics.pstdev(found)
    return {"scores": found, "mean": round(mean, 2), "std": round(spread, 2)}


def sides_of(args: argparse.Namespace) -> dict[tuple[str, str, str], Callable[[], dict[str, Any]]]:
    """Return what is measured, by part, name and precision; graphs are made when asked for."""
    device, parts = torch.device(args.device), args.parts.split(",")
    made: list[Shard] = []

    def host() -> Shard:
        if not made:
            made.append(make_shard(args.scale, device))
        return made[0]

    def there() -> Shard:
        if len(made) < 2:
            made.append(moved_shard(host(), device))
        return made[1]

    def whole(model: str, precision: str) -> dict[str, Any]:
        return epochs_of(lambda: whole_training(there(), model, precision), args.epochs, 1, device)

    def sampled(model: str, precision: str) -> dict[str, Any]:
        places = {"rows_on": "device"} if device.type == "cuda" else {}
        steps = -(-len(host().train) // 1024)

        def make() -> Trainer:
            return training_of(host(), model, {**places, "precision": precision})

        return epochs_of(make, max(2, args.epochs // 2), steps, device)

    calls: dict[str, tuple[tuple[str, ...], Callable[[str, str], dict[str, Any]]]] = {
        "accuracy": (SETS, lambda name, kind: scores_of(name, kind, args.seeds, args.device)),
        "whole": (tuple(MODELS), whole),
        "pyg": (("sage",), lambda _, kind: measure_pyg(there(), kind, args.epochs)),
        "sampled": (("sage", "gat"), sampled),
    }
    return {
        (part, name, kind): partial(call, name, kind)
        for part, (names, call) in calls.items()
        if part in parts
        for name in names
        for kind in PRECISIONS
    }


def main() -> None:
    """Measure all parts; one that fails is told and the rest go on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="append one line for each row to this file")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--parts", default="whole,sampled,pyg,accuracy")
    args = parser.parse_args()
    for (part, name, precision), side in sides_of(args).items():
        row: dict[str, Any] = {"benchmark": "precision", "part": part, "name": name}
        row |= {"precision": precision, "device": args.device, "scale": args.scale}
        try:
            row |= side()
        except Exception as error:  # noqa: BLE001 - the others are still worth measuring
            row["failed"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        print({key: value for key, value in row.items() if key != "benchmark"}, flush=True)
        if args.json:
            append_json(args.json, row | machine(args.device))


if __name__ == "__main__":
    main()
