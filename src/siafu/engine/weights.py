"""The weights of a finished run, and what the data must have for them to be used on it."""

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from siafu.config import RunConfig
from siafu.engine.column_names import check_names
from siafu.engine.network import Network, build_network
from siafu.errors import StoreError
from siafu.nn import Draws
from siafu.nn.models import TYPED
from siafu.ops import CSR
from siafu.shard import Shard, require


def save_network(network: Network, shard: Shard, file: Path) -> None:
    """Write the weights, and with them the widths that inference builds the model from."""
    state = network.module.state_dict()
    tensors = {name: tensor.contiguous().cpu() for name, tensor in state.items()}
    facts = {
        "num_features": str(_num_features(shard)),
        "num_classes": str(shard.num_classes),
        "multi_label": str(int(shard.multi_label)),
        "class_names": json.dumps(shard.class_names),
        "edge_types": json.dumps([shard.num_edge_types, *shard.edge_type_names]),
        "feature_names": json.dumps(shard.feature_names),
        "edge_attr_names": json.dumps(shard.edge_attr_names),
    }
    save_file(tensors, file, metadata=facts)


def load_network(
    config: RunConfig, shard: Shard, draws: Draws, file: Path
) -> tuple[Network, Shard]:
    """Return the trained model on a shard, and the shard with the classes the model knows.

    The shard needs features of the right width; its own labels, if any, do not matter.
    """
    with safe_open(file, "pt") as opened:
        facts = opened.metadata() or {}
    if "num_features" not in facts:
        raise StoreError(
            "The weights do not say which data they are for.",
            seen=str(file),
            fix="train again with this version",
        )
    require(shard, "x")
    check_names(shard.feature_names, facts.get("feature_names"), "features", shard.name)
    if _num_features(shard) != int(facts["num_features"]):
        raise StoreError(
            "The features do not fit the model.",
            seen=f"{_num_features(shard)} columns in {shard.name}, "
            f"the model was trained on {facts['num_features']}",
            fix="infer on a graph with the features the run was trained on",
        )
    if config.edge_features:
        attr = (shard.edge_attr_names, facts.get("edge_attr_names"))
        check_names(*attr, "edge features", shard.name)
    known = json.loads(facts.get("edge_types", "[0]"))
    if config.model in TYPED and known != [shard.num_edge_types, *shard.edge_type_names]:
        raise StoreError(
            "The edge types do not fit the model.",
            seen=f"{shard.num_edge_types} types in {shard.name} {list(shard.edge_type_names)[:8]}, "
            f"the model was trained on {known[0]} {known[1:9]}",
            fix="infer on a graph whose edges have the types, by name, that the run was trained on",
        )
    multi_label = facts["multi_label"] == "1"
    num_classes, class_names = int(facts["num_classes"]), tuple(json.loads(facts["class_names"]))
    shard = replace(
        shard,
        y=_as_known(shard, class_names, num_classes),
        num_classes=num_classes,
        multi_label=multi_label,
        class_names=class_names,
    )
    network = build_network(config, shard, draws, training=False)
    try:
        network.module.load_state_dict(load_file(file, device=str(shard.world.device)))
    except RuntimeError as error:
        raise StoreError(
            "The weights do not fit the model.",
            seen=str(error).splitlines()[-1].strip(),
            fix="infer with the model's code and the kind of data the run was trained with",
        ) from error
    return network, shard


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
