"""Damaged or wrong folders of siafu's own, and own models: stores, parts, checkpoints, runs.

Each maker copies a valid folder from `made/` beside the case, changes it, and returns the
arguments of the `siafu` command to try on it. Numbers inside arrays are changed through siafu's
own writer, so that every checksum is right.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, get_args

import numpy as np

from benchmarks.fuzz_inputs import Draw, Maker, damage, odd_array
from siafu.graph import Array, FolderWriter, open_folder, write_folder
from siafu.graph.manifest import ArrayEntry, Dtype

_TRAIN = ["--epochs", "1", "--quiet"]
_ODD_JSON: list[Any] = [
    *(None, True, -1, 0, 1, 2**31 - 1, 10**12, 1e300, "", "x", "../../x", [], {}, [1], [[1]]),
    *({"a": 1}, "9" * 50, 0.5, [-1], [10**9], "<i8", "|O"),
]


def _copy(folder: Path, *names: str) -> None:
    for name in names:
        shutil.copytree(folder.parent / "made" / name, folder / name)


def _edit_json(draw: Draw, file: Path) -> None:
    """Change one entry of a JSON file, anywhere in it, or the file itself."""
    if draw.random() < 0.15:
        file.write_text(draw.choice(["", "null", "[]", "{", "{}", "[" * 2000, '"x"', "1e999"]))
        return
    if draw.random() < 0.1:
        damage(draw, file)
        return
    tree = json.loads(file.read_text())
    node = tree
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = draw.choice(keys)
        inner = node[key]
        if not isinstance(inner, dict | list) or not inner or draw.random() < 0.15:
            break
        node = inner
    if draw.random() < 0.15:
        del node[key]
    else:
        node[key] = draw.choice(_ODD_JSON)
    file.write_text(json.dumps(tree))


def _rewrite(draw: Draw, source: Path, target: Path, kind: str) -> None:
    """Write the folder anew with one array or fact changed and all sums right."""
    folder = open_folder(source, kind)
    arrays = {name: folder.load(name) for name in folder.entries}
    facts = json.loads(json.dumps(folder.facts))
    name = draw.choice(list(arrays))
    how = draw.random()
    if how < 0.5 and arrays[name].size and arrays[name].dtype.kind in "iu":
        changed = arrays[name].copy()
        value = draw.choice([-1, 2**31 - 1, 2**20, int(changed.max()) + 1, 0])
        changed.reshape(-1)[draw.randrange(changed.size)] = value % (
            2 ** (8 * changed.itemsize - (changed.dtype.kind == "i"))
        )
        if value == -1 and changed.dtype.kind == "i":
            changed.reshape(-1)[draw.randrange(changed.size)] = -1
        arrays[name] = changed
    elif how < 0.7:
        odd = odd_array(draw, arrays[name])
        if odd.dtype.hasobject:
            odd = odd_array(Draw(1), arrays[name])
        arrays[name] = odd
    elif how < 0.8:
        del arrays[name]
    else:
        facts[draw.choice(list(facts))] = draw.choice(_ODD_JSON)
    with write_folder(target, kind) as writer:
        for name, array in arrays.items():
            if array.ndim and not array.dtype.hasobject:
                _save(writer, name, array)
        writer.facts |= facts


def _save(writer: FolderWriter, name: str, array: Array) -> None:
    """Write an array as the writer does, also one of a kind that it would refuse."""
    if array.dtype.str in get_args(Dtype):
        writer.save(name, array)
        return
    np.save(writer.path / f"{name}.npy", array)
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    kind: Any = array.dtype.str  # one that no writer would take
    entry = ArrayEntry.model_construct(shape=array.shape, dtype=kind, sha256=digest)
    writer._entries[name] = entry


def _use_store(draw: Draw) -> list[str]:
    return draw.choice(
        [
            ["train", "store", *_TRAIN],
            ["partition", "store", "out", "--parts", "2", "--quiet"],
            ["inspect", "store", "--verify"],
            ["train", "store", "--model", "gat", "--hidden", "8", *_TRAIN],
        ]
    )


def store(draw: Draw, folder: Path) -> list[str]:
    """Return a command on a store with a wrong manifest, array or file."""
    how = draw.random()
    if how < 0.5:
        _rewrite(draw, folder.parent / "made" / "store", folder / "store", "store")
        return _use_store(draw)
    _copy(folder, "store")
    if how < 0.8:
        _edit_json(draw, folder / "store" / "manifest.json")
    else:
        damage(draw, draw.choice(sorted((folder / "store").glob("*.npy"))))
    return _use_store(draw)


def parts(draw: Draw, folder: Path) -> list[str]:
    """Return a command on parts with a wrong manifest, array or file."""
    _copy(folder, "one.parts")
    part = folder / "one.parts" / "part0"
    how = draw.random()
    if how < 0.5:
        shutil.rmtree(part)
        _rewrite(draw, folder.parent / "made" / "one.parts" / "part0", part, "part")
    elif how < 0.8:
        _edit_json(draw, draw.choice([part, part.parent]) / "manifest.json")
    else:
        damage(draw, draw.choice(sorted(part.parent.rglob("*.npy"))))
    return draw.choice([["train", "one.parts", *_TRAIN], ["inspect", "one.parts", "--verify"]])


def checkpoint(draw: Draw, folder: Path) -> list[str]:
    """Return the resumption of a run whose checkpoints are wrong."""
    _copy(folder, "run")
    saved = sorted((folder / "run" / "checkpoints").glob("epoch-*"))
    good = folder.parent / "made" / "run" / "checkpoints"
    how = draw.random()
    for one in saved if draw.random() < 0.7 else saved[-1:]:
        if how < 0.4:
            shutil.rmtree(one)
            _rewrite(draw, good / one.name, one, "checkpoint")
        elif how < 0.8:
            _edit_json(draw, one / "manifest.json")
        else:
            damage(draw, draw.choice(sorted(one.glob("*.npy"))))
    return ["train", "--resume", "run", "--epochs", "4", "--quiet"]


def weights(draw: Draw, folder: Path) -> list[str]:
    """Return an inference with damaged weights."""
    _copy(folder, "run")
    file = folder / "run" / "weights.safetensors"
    if draw.random() < 0.6:
        damage(draw, file)
    else:
        raw = file.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        file.write_bytes(raw[8 : 8 + length])
        _edit_json(draw, file)
        header = file.read_bytes() if file.is_file() else b"{}"
        size = draw.choice([len(header)] * 8 + [2**62, 0])
        if file.is_file():
            file.write_bytes(size.to_bytes(8, "little") + header + raw[8 + length :])
    return ["infer", "run", "--out", "out"]


def run_folder(draw: Draw, folder: Path) -> list[str]:
    """Return a command on a run whose small files are wrong."""
    _copy(folder, "run")
    names = ["config.yaml", "job.json", "metrics.jsonl", "result.json", "environment.json"]
    file = folder / "run" / draw.choice([n for n in names if (folder / "run" / n).exists()])
    how = draw.random()
    if how < 0.3:
        damage(draw, file)
    elif how < 0.4:
        file.unlink()
    elif file.suffix == ".json" and how < 0.8:
        _edit_json(draw, file)
    else:
        lines = file.read_text().splitlines()
        value = json.dumps(draw.choice(_ODD_JSON))
        lines[draw.randrange(len(lines))] = draw.choice(["{", "null", "\0", "", f"epochs: {value}"])
        file.write_text("\n".join(lines))
    return draw.choice(
        [
            ["train", "--resume", "run", "--epochs", "4", "--quiet"],
            ["infer", "run", "--out", "out"],
            ["inspect", "run"],
        ]
    )


_MODEL = """
import torch
{before}
class Net(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels, *args, **kwargs):
        super().__init__()
        {init}
        self.map = torch.nn.Linear({widths})
    def forward(self, {arguments}):
        {body}
        return {result}
{after}
"""


def model(draw: Draw, folder: Path) -> list[str]:
    """Return a training with an own model that is broken somewhere."""
    text = _MODEL.format(
        before=draw.choice(["", "", "import no_such_thing", "raise ValueError('mine')", "def ("]),
        init=draw.choice(["pass", "pass", "1 / 0", "self.x = None", "raise SystemExit(3)"]),
        widths=draw.choice(
            ["in_channels, out_channels"] * 4 + ["in_channels, 99", "-1, 2", "3, 3"]
        ),
        arguments=draw.choice(["x, edge_index"] * 4 + ["x", "", "x, edge_index, edge_type", "*a"]),
        body=draw.choice(["pass"] * 3 + ["x = x.mean(0)", "x = None", "x.nope()", "x = x[:3]"]),
        result=draw.choice(["self.map(x)"] * 4 + ["None", "x", "0", "(x, x)", "float('nan') * x"]),
        after=draw.choice(["", "", "Net = 3", "Net = None", "del Net"]),
    )
    (folder / "mine.py").write_text(text)
    if draw.random() < 0.1:
        damage(draw, folder / "mine.py")
    name = draw.choice(["mine.py:Net"] * 8 + ["mine.py:", ":Net", "..m:Net", "mine.py:no", "os:x"])
    return ["train", "planted:60", "--model", name, *_TRAIN]


MAKERS: dict[str, Maker] = {
    "store": store,
    "parts": parts,
    "checkpoint": checkpoint,
    "weights": weights,
    "run folder": run_folder,
    "own model": model,
}
