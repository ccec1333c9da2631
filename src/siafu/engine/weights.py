"""The weights of a finished run, and what the data must have for them to be used on it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, Json, model_validator
from torch import Tensor

from siafu.config import RunConfig
from siafu.engine.column_names import check_names
from siafu.engine.network import Network, build_network
from siafu.engine.weight_file import WeightFacts, Weights, write_weights
from siafu.errors import StoreError
from siafu.nn import CARDS, Draws
from siafu.ops import CSR
from siafu.shard import Shard, require
from siafu.strategy import edge_arguments

_Width = Annotated[int, Field(ge=0, lt=1 << 31)]
_Name = str | Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]


class _Facts(WeightFacts):
    num_features: _Width
    num_classes: _Width
    multi_label: Literal["0", "1"]
    class_names: Json[list[_Name]]
    edge_types: Json[Annotated[list[_Name], Field(min_length=1)]] = Field(default=[0])
    feature_names: Json[list[str]] = Field(default=[])
    edge_attr_names: Json[list[str]] = Field(default=[])

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
    }
    write_weights(network.module, facts, file)


def load_network(
    config: RunConfig, shard: Shard, draws: Draws, file: Path
) -> tuple[Network, Shard]:
    """Return the trained model on a shard, and the shard with the classes the model knows.

    The shard needs features of the right width; its own labels, if any, do not matter.
    """
    weights = Weights(file)
    facts = weights.facts(_Facts)
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
    class_names = tuple(facts.class_names)
    shard = replace(
        shard,
        y=_as_known(shard, class_names, facts.num_classes),
        num_classes=facts.num_classes,
        multi_label=facts.multi_label == "1",
        class_names=class_names,
    )
    network = build_network(config, shard, draws, training=False)
    if ":" in config.model:
        _check_edges_of_own(edge_arguments(network.module, shard), shard, facts)
    weights.load_into(network.module)
    return network, shard


def _check_edges_of_own(given: tuple[str, ...], shard: Shard, facts: _Facts) -> None:
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
