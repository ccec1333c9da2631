"""Tensor tasks of a rank's intervals: which tensors go along, and which workers may keep.

Weights have versions, since an interval's backward uses those that its forward used. A version is
what one optimiser step made; version 0 is before the first. It is kept while intervals use it or
while it is the newest.
"""

import itertools
import json
from collections.abc import Callable
from dataclasses import asdict

import torch
from torch import Tensor, nn

from siafu.elastic import Bundle, Fact, Task, Tensors, encode_rows, inspect_parts
from siafu.nn import ModelSpec
from siafu.nn.cards import layer_widths
from siafu.ops import DrawKey, sum_type
from siafu.shard import Shard


class Stash:
    """The versions in use, counted, as bundles for tasks: one for each part of the model."""

    def __init__(
        self,
        module: nn.Module,
        parts: list[tuple[str, ...]],
        prefix: str,
        forget: Callable[[str], None],
        *,
        most: int,
    ) -> None:
        """`parts` names the weights that each part uses; `forget` is told keys let go of."""
        self._module, self._parts, self._prefix, self._forget = module, parts, prefix, forget
        self._most = most
        self._bundles: dict[int, list[Bundle]] = {}
        self._uses: dict[int, int] = {}
        self.newest = -1

    @property
    def versions(self) -> list[int]:
        """Versions that are kept."""
        return sorted(self._bundles)

    def publish(self, version: int) -> None:
        """Take the module's present weights as a new version."""
        before, self.newest = self.newest, version
        held: dict[str, Tensor] = {
            name: p.detach().clone() for name, p in self._module.named_parameters()
        }
        self._bundles[version] = [
            Bundle(
                f"{self._prefix}/w/{version}/{number}",
                {f"w.{name}": held[name] for name in names},
                "version",
            )
            for number, names in enumerate(self._parts)
        ]
        self._uses[version] = 0
        self._drop_unused(before)
        assert len(self._bundles) <= self._most, f"{self.versions} are kept of {self._most}"

    def take(self) -> int:
        """Return the newest version, kept until it is released as often as it was taken."""
        self._uses[self.newest] += 1
        return self.newest

    def bundle(self, version: int, part: int) -> Bundle:
        """Return the weights of one part at a version that is taken."""
        return self._bundles[version][part]

    def release(self, version: int) -> None:
        """Let go of one use."""
        self._uses[version] -= 1
        self._drop_unused(version)

    def _drop_unused(self, version: int) -> None:
        if version == self.newest or self._uses.get(version, 1):
            return
        del self._uses[version]
        for bundle in self._bundles.pop(version):
            self._forget(bundle.key)


class TaskMaker:
    """Makes the tasks of a model's parts for each interval."""

    def __init__(
        self,
        spec: ModelSpec,
        shard: Shard,
        bounds: tuple[int, ...],
        x_ND: Tensor,
        *,
        seed: int,
        prefix: str,
        bits: int = 32,
    ) -> None:
        """`prefix` makes keys unlike those of any other rank or run; `bits` are of rows."""
        self._spec, self._shard = spec, shard
        self.parts = inspect_parts(spec)
        self._bounds, self._prefix, self._bits, self._seed = bounds, prefix, bits, seed
        self._model = json.dumps(asdict(spec))
        self._numbers = itertools.count()
        self._like = x_ND.new_empty(0, dtype=sum_type(x_ND.dtype))
        self._is_narrow = x_ND.dtype == torch.bfloat16
        self._constant: dict[tuple[str, int], Bundle] = {}
        self.stash: Stash
        for interval in range(len(bounds) - 1):
            rows = slice(bounds[interval], bounds[interval + 1])
            self.add_constant("ids", interval, {"ids": shard.row_ids[rows]})
            self.add_constant("x", interval, {"x": x_ND[rows]})
            self.add_constant("labels", interval, self._labels(rows))

    def _labels(self, rows: slice) -> Tensors:
        assert self._shard.y is not None
        train = self._shard.train
        mine = train[(train >= rows.start) & (train < rows.stop)]
        objective = self._shard.objective
        labels = {"y": objective.prepared(self._shard.y[mine]), "train": mine - rows.start}
        if (weight_C := objective.weight_C(self._like)) is not None:
            labels["class_weight"] = weight_C
        return labels

    def add_constant(self, name: str, interval: int, tensors: Tensors) -> None:
        """Keep tensors that every epoch uses; workers may keep them too."""
        key = f"{self._prefix}/{name}/{interval}"
        kept = {key: tensor.contiguous() for key, tensor in tensors.items()}
        self._constant[name, interval] = Bundle(key, kept, "run")

    @property
    def has_constant_answer(self) -> bool:
        """Whether the first layer's answer is the same in every epoch."""
        return any(name == "answer" for name, _ in self._constant)

    def constant(self, name: str, interval: int) -> Tensors:
        """Return tensors given to `add_constant`."""
        return self._constant[name, interval].tensors

    def make(
        self, code: str, part: int, interval: int, epoch: int, version: int, once: Tensors
    ) -> Task:
        """Return a task; `once` are the tensors of this epoch."""
        bundles = [self._constant["ids", interval], self.stash.bundle(version, part)]
        if part == 0 or (part == 1 and self.parts[1].reads_x):
            bundles.append(self._constant["x", interval])
        if part == 1 and ("answer", interval) in self._constant:
            bundles.append(self._constant["answer", interval])
        facts = self._facts(code, part, epoch)
        if code == "finish":
            bundles.append(self._constant["labels", interval])
            facts["loss_count"] = self._loss_count
            if self._shard.objective.loss != "cross-entropy":
                facts["loss"] = self._shard.objective.loss
        number, ids = next(self._numbers), self.constant("ids", interval)["ids"]
        draw = DrawKey(self._seed, epoch, 0)
        sent = encode_rows(once, ids, self._bits, f"to {code} {part}", draw)
        if sent:
            bundles.append(Bundle(f"{self._prefix}/task/{number}", sent, "once"))
        return Task(number, code, f"{code} {part}", facts, tuple(bundles))

    @property
    def _loss_count(self) -> float:
        return max(1, self._shard.mask_totals["train"]) * self._shard.objective.per_row

    def _facts(self, code: str, part: int, epoch: int) -> dict[str, Fact]:
        parts = self.parts
        facts: dict[str, Fact] = {
            "model": self._model,
            "part": part,
            "epoch": epoch,
            "seed": self._seed,
            "width": layer_widths(self._spec, max(0, part - 1)).into,
        }
        if self._bits != 32:
            facts["bits"] = self._bits
        if self._is_narrow:
            facts["precision"] = "bf16"
        if code == "forward":
            facts["keep_x"] = part > 0 and parts[part + 1].reads_x
        else:
            facts["grad_of_x"] = part > 1 and parts[part].reads_x
            facts["grad_of_answer"] = part > 0 and parts[part - 1].asks_for_learnt
        return facts


def flat_gradient(grads: list[Tensors], names: list[str], like: list[Tensor]) -> Tensor:
    """Return the gradients of all weights in one row, added up in the order given."""
    pieces = []
    for name, weight in zip(names, like, strict=True):
        total = torch.zeros_like(weight)
        for found in grads:
            if (grad := found.get(f"g.{name}")) is not None:
                total += grad
        pieces.append(total.flatten())
    return torch.cat(pieces)
