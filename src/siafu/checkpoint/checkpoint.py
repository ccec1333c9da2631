"""The state of a training run on disk: a folder of arrays, written whole, read without pickle.

Random draws are counter-based, so the epoch number is all the state they have.
"""

import json
import math
import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from siafu.checkpoint.shares import check_shares, drop_shares
from siafu.errors import SiafuError, StoreError
from siafu.graph import Facts, Folder, open_folder, read_facts, write_folder
from siafu.graph.manifest import MANIFEST

_NAME = re.compile(r"epoch-(\d+)(?:-step-(\d+))?")
_HOW = {"fused"}
"""Settings of an optimiser that tell how it steps on a device, not what it does."""
_ADAM = {"step", "exp_avg", "exp_avg_sq"}
_STATE = {"Adam": _ADAM, "AdamW": _ADAM, "SGD": {"momentum_buffer"}}
"""What each optimiser keeps of a weight."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """All that a run needs to go on as if it had never stopped."""

    model: dict[str, Tensor]
    best: dict[str, Tensor]
    """Weights at the best validation epoch so far."""
    optimiser: dict[str, Any]
    shares: int = 0
    """Ranks that have added something of their own (`shares`)."""
    facts: dict[str, Any]
    """Epochs done, best scores, the graph's fingerprint, and what the workload adds."""

    @property
    def name(self) -> str:
        """The name of its folder: the epochs that are done, and the steps of the one after."""
        steps = len(self.facts.get("steps", {}).get("losses", []))
        return f"epoch-{self.facts['epochs']:06d}" + (f"-step-{steps:08d}" if steps else "")


def save_checkpoint(checkpoint: Checkpoint, parent: Path, keep: int = 2) -> Path:
    """Write the checkpoint into `parent`, and keep the `keep` newest of its kind.

    Those of the middle of an epoch go when the epoch has ended.
    """
    target = parent / checkpoint.name
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
        writer.facts |= {
            "run": checkpoint.facts,
            **({"shares": checkpoint.shares} if checkpoint.shares else {}),
            "names": names,
            "param_groups": checkpoint.optimiser["param_groups"],
        }
    _drop_others(parent, target, keep)
    drop_shares(parent, {path.name for path in checkpoints_in(parent)})
    return target


def _drop_others(parent: Path, newest: Path, keep: int) -> None:
    found = checkpoints_in(parent)
    # Later ones are of a training that was taken up again before them, where they were damaged.
    earlier = [path for path in found if moment_of(path) <= moment_of(newest)]
    whole = [path for path in earlier if not moment_of(path)[1]][-keep:]
    amid = [path for path in earlier if not whole or moment_of(path) > moment_of(whole[-1])]
    for old in set(found) - {*whole, *amid[-keep:]}:
        shutil.rmtree(old, ignore_errors=True)


def _as_rows(tensor: Tensor) -> Any:
    array = tensor.detach().cpu().numpy()
    return array.reshape(1) if array.ndim == 0 else array


def has_checkpoint(parent: Path) -> bool:
    """Return whether there is a checkpoint under `parent`, be it damaged."""
    return bool(checkpoints_in(parent))


def checkpoints_in(parent: Path) -> list[Path]:
    """Return the checkpoints under `parent`, the oldest first, and nothing else that lies there."""
    found = (path for path in parent.glob("epoch-*") if _NAME.fullmatch(path.name))
    return sorted(found, key=moment_of)


def moment_of(checkpoint: Path) -> tuple[int, int]:
    """Return the epochs that were done when a checkpoint was saved, and steps of the next one."""
    found = _NAME.fullmatch(checkpoint.name)
    assert found is not None, "one of checkpoints_in"
    return int(found[1]), int(found[2] or 0)


def newest_checkpoint(
    parent: Path,
    say: Callable[[str], None] = lambda line: None,
    fits: Callable[[Path], None] | None = None,
    passed: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """Return the newest whole checkpoint under `parent`; `say` is told which are passed over.

    `fits` raises for one of another run. Who gives it is a rank, whose launcher has told of those
    that are damaged. `passed` are known not to be whole, each for a reason.
    """
    found = checkpoints_in(parent)[::-1]
    if not found:
        raise StoreError(
            "There is no checkpoint to go on from.",
            seen=str(parent),
            fix="start the run again; --checkpoint-every sets how often one is written",
        )
    damaged: list[str] = []
    foreign: list[tuple[str, SiafuError]] = []
    for path in found:
        if path.name in passed:
            damaged.append(f"{path.name}: {passed[path.name]}")
            continue
        try:
            folder = open_folder(path, "checkpoint")
            folder.verify()
            check_shares(path, read_facts(folder, _CheckpointFacts).shares)
        except StoreError as error:
            damaged.append(f"{path.name}: {error.seen}")
            continue
        try:
            if fits is not None:
                fits(path)
        except SiafuError as error:
            foreign.append((path.name, error))
            continue
        for line in damaged if fits is None else ():
            say(f"Passed over a damaged checkpoint, {line}")
        for name, other in foreign:
            say(f"Passed over a checkpoint, {name}: {other.problem} ({other.seen})")
        return path
    if foreign:
        raise foreign[0][1]
    raise StoreError(
        "No checkpoint of the run is whole.",
        seen="; ".join(damaged),
        fix=f"to train from the first epoch: rm -rf {shlex.quote(str(parent))} "
        f"{shlex.quote(str(parent.parent / 'weights.safetensors'))}, then "
        f"siafu train --resume {shlex.quote(str(parent.parent))}",
    )


def clear_leftovers(parent: Path) -> None:
    """Remove what killed processes had not finished saving."""
    for pattern in (".epoch-*.tmp", ".epoch-*.old"):
        for leftover in parent.glob(pattern):
            shutil.rmtree(leftover, ignore_errors=True)


class _Names(Facts):
    model: list[str]
    best: list[str]


class _CheckpointFacts(Facts):
    run: dict[str, Any]
    """What the engine that wrote it reads again."""
    shares: int = 0
    """Ranks that have added something of their own."""
    names: _Names
    param_groups: list[dict[str, Any]]


def _check_tensors(folder: Folder, names: _Names, state: dict[str, Tensor]) -> None:
    """Raise unless the checkpoint holds exactly the tensors of the model, of the best epoch too."""
    wanted = {name: _form(_as_rows(tensor)) for name, tensor in state.items()}
    for group, told in (("model", names.model), ("best", names.best)):
        entries = [folder.entry(f"{group}-{number}") for number in range(len(told))]
        found = {name: _form(entry) for name, entry in zip(told, entries, strict=True)}
        if len(found) != len(told):
            raise folder.damaged(MANIFEST, f"a tensor of {group} is named twice")
        if found != wanted and (found or group == "model"):
            raise StoreError(
                "The checkpoint is of another model.",
                seen=first_difference(found, wanted, "in it", "here"),
                fix="resume with the settings of the run (its config.yaml)",
            )


def first_difference(
    found: Mapping[str, str], wanted: Mapping[str, str], there: str, here: str
) -> str:
    """Return the first of the named tensors that differs, as it is there and as it is here."""
    name = next(n for n in [*wanted, *found] if found.get(n) != wanted.get(n))
    return f"{name}: {found.get(name, 'nothing')} {there}, {wanted.get(name, 'nothing')} {here}"


def _form(array: Any) -> str:
    """Return how the shape and dtype of an array are told."""
    dtype = np.dtype(array.dtype)
    shown = f"({', '.join(str(size) for size in array.shape)})"
    return shown if dtype == np.float32 else f"{shown} {dtype}"


def _optimiser_state(folder: Folder, model: nn.Module) -> dict[int, dict[str, Tensor]]:
    """Return what the optimiser kept of each parameter."""
    state: dict[int, dict[str, Tensor]] = {}
    parameters = list(model.parameters())
    for entry in folder.entries:
        if not entry.startswith("optimiser-"):
            continue
        _, number, name = entry.split("-", 2) if entry.count("-") > 1 else ("", "", "")
        if not number.isdecimal() or int(number) >= len(parameters):
            raise folder.damaged(MANIFEST, f"{entry}: the model has {len(parameters)} parameters")
        value = torch.tensor(folder.load(entry))
        shape = parameters[int(number)].shape if name != "step" else torch.Size()
        if tuple(value.shape) != (tuple(shape) or (1,)) or not value.is_floating_point():
            seen = f"{value.dtype} {list(value.shape)} for a parameter {list(shape)}"
            raise folder.damaged(f"{entry}.npy", seen)
        if name == "step" and not 0 <= float(value[0]) < math.inf:
            raise folder.damaged(f"{entry}.npy", f"{float(value[0])} steps")
        state.setdefault(int(number), {})[name] = value.reshape(shape)
    return state


def load_checkpoint(path: Path, model: nn.Module) -> Checkpoint:
    """Return the checkpoint after checking its sums; shapes are taken from `model`."""
    folder = open_folder(path, "checkpoint")
    facts = read_facts(folder, _CheckpointFacts)
    state = model.state_dict()
    _check_tensors(folder, facts.names, state)
    folder.verify()
    groups = {
        group: {
            name: torch.tensor(folder.load(f"{group}-{number}")).reshape(state[name].shape)
            for number, name in enumerate(names)
        }
        for group, names in (("model", facts.names.model), ("best", facts.names.best))
    }
    kept = {"state": _optimiser_state(folder, model), "param_groups": facts.param_groups}
    return Checkpoint(
        model=groups["model"],
        best=groups["best"],
        optimiser=kept,
        shares=facts.shares,
        facts=facts.run,
    )


def check_optimiser(optimiser: torch.optim.Optimizer, kept: dict[str, Any]) -> None:
    """Raise unless a checkpoint kept this of an optimiser with the same settings."""
    mine = optimiser.state_dict()["param_groups"]
    groups = json.loads(json.dumps(mine))  # as a manifest holds them
    told = kept["param_groups"]
    # Another version of torch may have settings that this one has not.
    differ = [
        f"{key} is {its[key]!r} in it, {ours[key]!r} here"
        for ours, its in zip(groups, told, strict=False)
        for key in (ours.keys() & its.keys()) - _HOW
        if its[key] != ours[key]
    ]
    if differ or len(told) != len(groups):
        raise StoreError(
            "The optimiser of the checkpoint has other settings.",
            seen="; ".join(differ) or f"{len(told)} groups of parameters, {len(groups)} here",
            fix="resume with the settings of the run (its config.yaml)",
        )
    fields = [set(state) for state in kept["state"].values()]
    known = _STATE[type(optimiser).__name__]
    if any(names != known for names in fields):
        missing = next(names for names in fields if names != known) ^ known
        raise StoreError(
            "The optimiser of the checkpoint is another one.",
            seen=f"it differs in {', '.join(sorted(missing))}",
            fix="resume with the version that wrote it",
        )


def restore_optimiser(optimiser: torch.optim.Optimizer, kept: dict[str, Any]) -> None:
    """Give the optimiser what a checkpoint kept, if it was of one with the same settings."""
    check_optimiser(optimiser, kept)
    mine = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": kept["state"], "param_groups": mine})
