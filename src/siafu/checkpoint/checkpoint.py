"""The state of a training run on disk: a folder of arrays, written whole, read without pickle.

Random draws are counter-based, so the epoch number is all the state they have.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from siafu.errors import StoreError
from siafu.graph import Folder, open_folder, write_folder

_KEPT = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """All that a run needs to go on as if it had never stopped."""

    model: dict[str, Tensor]
    best: dict[str, Tensor]
    """Weights at the best validation epoch so far."""
    optimiser: dict[str, Any]
    wire: dict[str, Tensor] = field(default_factory=dict)
    """What the widths of messages depend on, of all ranks; empty where all rows have one."""
    facts: dict[str, Any]
    """Epochs done, best scores, the graph's fingerprint, the settings."""


def save_checkpoint(checkpoint: Checkpoint, parent: Path) -> Path:
    """Write the checkpoint as `parent/epoch-NNNNNN`; keep it and the one before, drop others."""
    target = parent / f"epoch-{checkpoint.facts['epochs']:06d}"
    groups = {"model": checkpoint.model, "best": checkpoint.best}
    names: dict[str, list[str]] = {}
    with write_folder(target, "checkpoint", overwrite=True) as writer:
        for group, tensors in groups.items():
            names[group] = list(tensors)
            for number, tensor in enumerate(tensors.values()):
                writer.save(f"{group}-{number}", _as_rows(tensor))
        for number, state in checkpoint.optimiser["state"].items():
            for name, value in state.items():
                writer.save(f"optimiser-{number}-{name}", _as_rows(torch.as_tensor(value)))
        for name, tensor in checkpoint.wire.items():
            writer.save(f"wire-{name}", _as_rows(tensor))
        writer.facts |= {
            "run": checkpoint.facts,
            "names": names,
            "param_groups": checkpoint.optimiser["param_groups"],
        }
    # Later ones are of a training that was taken up again before them, where they were damaged.
    earlier = sorted(path for path in parent.glob("epoch-*") if path.name <= target.name)
    for old in set(parent.glob("epoch-*")) - set(earlier[-_KEPT:]):
        shutil.rmtree(old, ignore_errors=True)
    return target


def _as_rows(tensor: Tensor) -> Any:
    array = tensor.detach().cpu().numpy()
    return array.reshape(1) if array.ndim == 0 else array


def has_checkpoint(parent: Path) -> bool:
    """Return whether there is a checkpoint under `parent`, be it damaged."""
    return any(parent.glob("epoch-*"))


def newest_checkpoint(parent: Path, say: Callable[[str], None] = lambda line: None) -> Path:
    """Return the newest whole checkpoint under `parent`; `say` is told which are passed over."""
    found = sorted(parent.glob("epoch-*"), reverse=True)
    if not found:
        raise StoreError(
            "There is no checkpoint to go on from.",
            seen=str(parent),
            fix="start the run again; --checkpoint-every sets how often one is written",
        )
    damaged = []
    for path in found:
        try:
            open_folder(path, "checkpoint").verify()
        except StoreError as error:
            damaged.append(f"{path.name}: {error.seen}")
            continue
        for line in damaged:
            say(f"Passed over a damaged checkpoint, {line}")
        return path
    raise StoreError(
        "No checkpoint of the run is whole.",
        seen="; ".join(damaged),
        fix=f"to train from the first epoch: rm -r {parent}, then siafu train --resume "
        f"{parent.parent}",
    )


def clear_leftovers(parent: Path) -> None:
    """Remove what killed processes had not finished saving."""
    for pattern in (".epoch-*.tmp", ".epoch-*.old"):
        for leftover in parent.glob(pattern):
            shutil.rmtree(leftover, ignore_errors=True)


def _check_model(folder: Folder, shapes: dict[str, torch.Size]) -> None:
    """Raise unless the checkpoint holds exactly the tensors of the model."""
    names = folder.facts["names"]["model"]
    found = {name: folder.entries[f"model-{number}"].shape for number, name in enumerate(names)}
    wanted = {name: tuple(shape) or (1,) for name, shape in shapes.items()}
    if found != wanted:
        name = next(n for n in [*wanted, *found] if found.get(n) != wanted.get(n))
        raise StoreError(
            "The checkpoint is of another model.",
            seen=f"{name}: {found.get(name, 'nothing')} in it, {wanted.get(name, 'nothing')} here",
            fix="resume with the settings of the run (its config.yaml)",
        )


def load_checkpoint(path: Path, model: nn.Module) -> Checkpoint:
    """Return the checkpoint after checking its sums; shapes are taken from `model`."""
    folder = open_folder(path, "checkpoint")
    folder.verify()
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    _check_model(folder, shapes)
    groups = {
        group: {
            name: torch.tensor(folder.load(f"{group}-{number}")).reshape(shapes[name])
            for number, name in enumerate(names)
        }
        for group, names in folder.facts["names"].items()
    }
    state: dict[int, dict[str, Tensor]] = {}
    parameters = list(model.parameters())
    for entry in folder.entries:
        if entry.startswith("optimiser-"):
            _, number, name = entry.split("-", 2)
            value = torch.tensor(folder.load(entry))
            shape = parameters[int(number)].shape if name != "step" else ()
            state.setdefault(int(number), {})[name] = value.reshape(shape)
    wire = {
        entry.removeprefix("wire-"): torch.tensor(folder.load(entry))
        for entry in folder.entries
        if entry.startswith("wire-")
    }
    optimiser = {"state": state, "param_groups": folder.facts["param_groups"]}
    return Checkpoint(
        model=groups["model"],
        best=groups["best"],
        optimiser=optimiser,
        wire=wire,
        facts=folder.facts["run"],
    )
