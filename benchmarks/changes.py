"""How much less error have rounded changes of rows than rounded rows, as training goes on?

Run: SIAFU_DATA=FOLDER python -m benchmarks.changes [--data cora] [--dropout 0] [--json FILE]

One process trains SAGE; in every epoch all rows that enter a layer (before dropout, as they travel)
are coded both ways at each width. Told is the squared error of rows over that of changes, by layer
and epoch. No ranks and no clock are part of it, so a busy machine changes nothing.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import append_json, machine
from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.ingest import load
from siafu.nn import GNN
from siafu.ops import DrawKey, WireLayout, decode, encode, encode_changes
from siafu.partitioning import partition_graph
from siafu.shard import open_shard

WIDTHS = (2, 4, 8)
SHOWN = (2, 5, 10, 20, 40)


def follow(parts: Path, dropout: float, epochs: int) -> list[dict[str, Any]]:
    """Return rows of layer, epoch, width and how many times the squared error of changes is."""
    common = {"model": "sage", "layers": 3, "hidden": 256, "norm": "layer", "input_dropout": 0.0}
    config = make_config(data=str(parts), **common, dropout=dropout, lr=0.01).resolved()
    training = begin(config, open_shard(parts, World()))
    entered: dict[int, torch.Tensor] = {}
    kept: dict[tuple[int, int], torch.Tensor] = {}
    found: list[dict[str, Any]] = []
    module = training.workload.module
    assert isinstance(module, GNN)
    for number, norm in enumerate(module.norms):
        norm.register_forward_hook(
            lambda _, __, out, n=number: entered.update({n: out.detach().relu()})
        )
    for epoch in range(1, epochs + 1):
        training.step()
        training.progress.epochs += 1
        for number, rows in entered.items():
            key = DrawKey(seed=0, epoch=epoch, purpose=number)
            ids = torch.arange(len(rows))
            for bits in WIDTHS:
                codes = torch.full((len(rows),), bits, dtype=torch.uint8)
                layout = WireLayout.build(codes, rows.size(1))
                whole = decode(encode(rows, None, layout, key, ids).payload, layout)
                known = kept.setdefault((number, bits), torch.zeros_like(rows))
                encode_changes(rows, None, layout, key, ids, known)
                times = (whole - rows).square().sum() / (known - rows).square().sum()
                row = {"layer": number + 1, "epoch": epoch, "bits": bits}
                found.append(row | {"times": round(float(times), 2)})
    return [row for row in found if row["epoch"] in SHOWN]


def main() -> None:
    """Train once and tell; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="cora")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--scratch", type=Path, default=Path("changes.parts"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    partition_graph(load(args.data, undirected=True), args.scratch, num_parts=1)
    rows = follow(args.scratch, args.dropout, args.epochs)
    for row in rows:
        print(row)
    told = {"benchmark": "changes", "graph": args.data, "dropout": args.dropout, "rows": rows}
    if args.json:
        append_json(args.json, told | machine())
    print(json.dumps(told))


if __name__ == "__main__":
    main()
