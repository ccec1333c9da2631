"""The weights of a finished run as a file, and what data must have for them to be used on it."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, Json, ValidationError, model_validator
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from siafu.checkpoint import first_difference
from siafu.config import ResolvedConfig
from siafu.engine.edges import edge_network, known_edges
from siafu.engine.networks.network import Network, build_network
from siafu.errors import StoreError
from siafu.files import parse_json, read_regular, write_bytes_atomically
from siafu.graph import first_fault
from siafu.nn import CARDS, Draws
from siafu.ops import CSR
from siafu.shard import Objective, Shard, require
from siafu.strategy import edge_arguments

_Width = Annotated[int, Field(ge=0, lt=1 << 31)]
_Name = str | Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]


class WeightFacts(BaseModel):
    """What the text beside the weights says; a run's own kind of data has its own."""

    model_config = ConfigDict(extra="ignore", frozen=True)


AnyFacts = TypeVar("AnyFacts", bound=WeightFacts)


def write_weights(module: nn.Module, facts: dict[str, str], file: Path) -> None:
    """Write the state of a module and facts about it, at once; a full disk is an OSError."""
    state = module.state_dict()
    # Copies, since safetensors refuses two names for one tensor, as tied weights have.
    tensors = {name: tensor.cpu().contiguous().clone() for name, tensor in state.items()}
    # safetensors would write the file itself, and tell of a full disk in an error of its own.
    write_bytes_atomically(file, save(tensors, metadata=facts | {_SUM: _sum(tensors)}))


class Weights:
    """A file of weights, whole; numbers are looked at once it is known what they are for."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            content = read_regular(file, most_bytes=_MOST_BYTES)
            self._text = _metadata(content)
            self.tensors: dict[str, Tensor] = load(content)
        except (OSError, ValueError, SafetensorError) as error:
            raise self._damaged(str(error)) from error
        except (KeyError, TypeError, RuntimeError) as error:  # dtypes that torch does not have
            raise self._damaged(f"a tensor can't be read: {error!r}") from error
        known = self._text.get(_SUM)
        if known is not None and _sum(self.tensors) != known:
            raise self._damaged("wrong checksum")

    def facts(self, model: type[AnyFacts]) -> AnyFacts:
        """Return the facts beside the weights."""
        try:
            return model.model_validate(self._text)
        except ValidationError as error:
            raise StoreError(
                "The weights do not say which data they are for.",
                seen=f"{self.file}: {first_fault(error)}",
                fix="train again with this version",
            ) from error

    def load_into(self, module: nn.Module) -> None:
        """Set the weights of a module, which must have exactly these tensors."""
        wanted = {name: _kind(tensor) for name, tensor in module.state_dict().items()}
        found = {name: _kind(tensor) for name, tensor in self.tensors.items()}
        if found != wanted:
            raise StoreError(
                "The weights do not fit the model.",
                seen=first_difference(found, wanted, f"in {self.file.name}", "in the model"),
                fix="infer with the model's code and the kind of data the run was trained with",
            )
        parameters = {name for name, _ in module.named_parameters()}
        for name, tensor in self.tensors.items():
            # A buffer of a user's model may well hold infinities, as a mask does.
            bad = ~torch.isfinite(tensor) if name in parameters else torch.isnan(tensor)
            if bool(bad.any()):
                raise self._damaged(f"{name} has a number that is NaN or infinite")
        module.load_state_dict(self.tensors)

    def _damaged(self, seen: str) -> StoreError:
        return StoreError(
            "The weights can't be read.",
            seen=f"{self.file}: {seen}",
            fix="copy the file again, or train again",
        )


def _metadata(content: bytes) -> dict[str, str]:
    """Return the text beside the tensors; the header is checked before it is parsed."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(len(content) - 8, _MOST_HEADER_BYTES):
        raise ValueError(f"a header of {length} bytes in a file of {len(content)}")
    header = parse_json(content[8 : 8 + length])
    text = header.get("__metadata__", {}) if isinstance(header, dict) else None
    if not isinstance(text, dict):
        raise ValueError("no header of safetensors")  # noqa: TRY004 - the file's fault, not a type
    return {str(key): str(value) for key, value in text.items()}


def _sum(tensors: Mapping[str, Tensor]) -> str:
    """Return a hash of names, shapes and contents."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {_kind(tensor)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


_SHOWN = 5
_ENTRY = re.compile(r"\[\d+\]$")
"""How an entry of a column of lists is called: name[0]."""


def check_names(seen: Sequence[str], known: Sequence[str], what: str, where: str) -> None:
    """Raise where columns have other names, or another order, than is `known` with the weights.

    Where either side has no names (arrays, or folders of an older version) nothing is compared.
    """
    if not seen or not known or list(seen) == list(known):
        return
    there, wanted = set(seen), set(known)
    missing = [name for name in known if name not in there]
    extra = [name for name in seen if name not in wanted]
    flag = "--features" if what == "features" else "--edge-attr"
    order = f"siafu ingest TABLES new.store {flag} {_columns(known)}"
    if missing or extra:
        told = [f"{_some(missing)} missing"] if missing else []
        told += [f"{_some(extra)} not known to the model"] if extra else []
        fix = "give the data the columns the run was trained on"
        if not missing:
            fix = f"take the model's columns alone: {order}"
    else:
        place = next(k for k, name in enumerate(known) if name != seen[k])
        told = [f"column {place} is {seen[place]!r}, the model's is {known[place]!r}"]
        fix = f"take the columns in the model's order: {order}"
    raise StoreError(
        f"The {what} are not those the model was trained on.",
        seen=f"in {where}: {'; '.join(told)}",
        fix=fix,
    )


def _columns(names: Sequence[str]) -> str:
    """Return the names as a flag takes them; the entries of a list are one column there."""
    return ",".join(dict.fromkeys(_ENTRY.sub("", name) for name in names))


def _some(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(map(repr, names[:_SHOWN])) + (f" and {rest} more" if rest > 0 else "")


class _ObjectiveFacts(BaseModel):
    """What turns a model's rows into answers."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    positive: int = 1
    threshold: float | None = None


class NetworkFacts(WeightFacts):
    """What the weights of a static graph's model are for."""

    num_features: _Width
    num_classes: _Width
    multi_label: Literal["0", "1"]
    class_names: Json[list[_Name]]
    edge_types: Json[Annotated[list[_Name], Field(min_length=1)]] = Field(default=[0])
    feature_names: Json[list[str]] = Field(default=[])
    edge_attr_names: Json[list[str]] = Field(default=[])
    target_names: Json[list[str]] = Field(default=[])
    objective: Json[_ObjectiveFacts] | None = None
    edge_width: _Width = 0

    @property
    def num_outputs(self) -> int:
        """Classes, or numbers to tell."""
        return self.num_classes or len((self.objective or _ObjectiveFacts()).mean)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if len(self.class_names) not in (0, self.num_classes):
            raise ValueError(f"{len(self.class_names)} class_names for {self.num_classes} classes")
        if len({type(name) for name in self.class_names}) > 1:
            raise ValueError("class_names are text and numbers")
        return self


def save_network(network: Network, shard: Shard, file: Path) -> None:
    """Write the weights, and with them the widths that inference builds the model from."""
    facts = {
        "num_features": str(_num_features(shard)),
        "num_classes": str(shard.num_classes),
        "multi_label": str(int(shard.multi_label)),
        "class_names": json.dumps(shard.class_names),
        "edge_types": json.dumps([shard.num_edge_types, *shard.edge_type_names]),
        "feature_names": json.dumps(shard.feature_names),
        "edge_attr_names": json.dumps(shard.edge_attr_names),
        "target_names": json.dumps(shard.target_names),
        "objective": _ObjectiveFacts(**asdict(shard.objective)).model_dump_json(),
        "edge_width": str(0 if shard.edge_attr is None else shard.edge_attr.size(1)),
    }
    write_weights(network.module, facts, file)


def load_network(
    config: ResolvedConfig,
    shard: Shard,
    draws: Draws,
    file: Path,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Network, Shard]:
    """Return the trained model on a shard, and the shard with the classes the model knows.

    The shard needs features of the right width; its own labels, if any, do not matter. `say` is
    told where answers may differ from those of the whole graph.
    """
    weights = Weights(file)
    facts = weights.facts(NetworkFacts)
    require(shard, "x")
    check_names(shard.feature_names, facts.feature_names, "features", shard.name)
    if _num_features(shard) != facts.num_features:
        raise StoreError(
            "The features do not fit the model.",
            seen=f"{_num_features(shard)} columns in {shard.name}, "
            f"the model was trained on {facts.num_features}",
            fix="infer on a graph with the features the run was trained on",
        )
    if config.edge_features:
        check_names(shard.edge_attr_names, facts.edge_attr_names, "edge features", shard.name)
    if config.model in CARDS and CARDS[config.model].needs_types:
        _check_types(shard, facts.edge_types)
    if config.task == "edge":
        check_names(shard.edge_attr_names, facts.edge_attr_names, "edge features", shard.name)
        shard = known_edges(shard)
    class_names = tuple(facts.class_names)
    shard = replace(
        shard,
        y=_as_known(shard, class_names, facts.num_classes),
        num_classes=facts.num_classes,
        multi_label=facts.multi_label == "1",
        class_names=class_names,
        **_answers(facts),
    )
    network = build_network(config, shard, draws, training=False, say=say)
    if config.task == "edge":
        network = edge_network(config, network, shard, shard)
    if ":" in config.model:
        _check_edges_of_own(edge_arguments(network.module, shard), shard, facts)
    weights.load_into(network.module)
    return network, shard


def _answers(facts: NetworkFacts) -> dict[str, Any]:
    """Return the fields of a shard that tell how the model's rows are read."""
    known = facts.objective or _ObjectiveFacts()
    return {
        "num_targets": len(known.mean),
        "target_names": tuple(facts.target_names),
        "objective": Objective(**known.model_dump()),
    }


def _check_edges_of_own(given: tuple[str, ...], shard: Shard, facts: NetworkFacts) -> None:
    """Raise where a model of the user's own would be given other columns than it has learnt."""
    if "edge_attr" in given:
        check_names(shard.edge_attr_names, facts.edge_attr_names, "edge features", shard.name)
    if "edge_type" in given:
        _check_types(shard, facts.edge_types)


def _check_types(shard: Shard, known: list[Any]) -> None:
    if known != [shard.num_edge_types, *shard.edge_type_names]:
        raise StoreError(
            "The edge types do not fit the model.",
            seen=f"{shard.num_edge_types} types in {shard.name} {list(shard.edge_type_names)[:8]}, "
            f"the model was trained on {known[0]} {known[1:9]}",
            fix="infer on a graph whose edges have the types, by name, that the run was trained on",
        )


def _as_known(shard: Shard, names: tuple[str | int, ...], num_classes: int) -> Tensor | None:
    """Return the data's own labels by the model's numbers of classes, -1 for one it has not.

    The data numbers the classes it has itself: without `ant`, `bee` is the first.
    """
    y, own = shard.y, shard.class_names
    if y is None or y.dim() != 1:
        return y
    known = [number if number < num_classes else -1 for number in range(shard.num_classes)]
    if own and names:
        number_of = {name: number for number, name in enumerate(names)}
        known = [number_of.get(name, -1) for name in own]
    # The last entry serves -1.
    return torch.tensor([*known, -1], dtype=y.dtype, device=y.device)[y]


def _num_features(shard: Shard) -> int:
    assert shard.x is not None, "require(shard, 'x') comes first"
    return shard.x.num_cols if isinstance(shard.x, CSR) else shard.x.size(1)


_SUM = "sha256"
_MOST_HEADER_BYTES = 1 << 24
_MOST_BYTES = 1 << 40
