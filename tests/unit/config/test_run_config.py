"""Settings are checked when made, and a mistake is explained."""

import os
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example
from hypothesis import given as drawn
from hypothesis import strategies as st

from siafu.config import (
    RunConfig,
    make_config,
    read_config,
    write_config,
)
from siafu.errors import ConfigError, did_you_mean
from siafu.nn import CARDS
from siafu.options import joined, names_in

FULL = {
    "data": "planted",
    "model": "gat",
    "ranks": 3,
    "epochs": 7,
    "lr": 1e-3,
    "hidden": 16,
    "residual": True,
    "norm": "batch",
    "jk": "cat",
    "split": "0.6,0.2",
    "deadline": 12.5,
    "out": "some/where",
}


@pytest.mark.parametrize(
    ("typo", "meant"), [("epoch", "epochs"), ("drop_out", "dropout"), ("rank", "ranks")]
)
def test_unknown_setting_asks_what_was_meant(typo: str, meant: str) -> None:
    with pytest.raises(ConfigError, match="Unknown setting") as caught:
        make_config(data="planted", **{typo: 1})
    assert f"did you mean '{meant}'?" in caught.value.seen
    assert meant in caught.value.fix


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ranks", 0),
        ("epochs", 0),
        ("epochs", "many"),
        ("seed", -1),
        ("dropout", 1.0),
        ("dropout", -0.1),
        ("lr", 0),
        ("lr", float("nan")),
        ("heads", 2.5),
        ("norm", "batches"),
        ("jk", "sum"),
        ("device", "tpu"),
        ("partition", "metal"),
        ("head", "deep"),
        ("deadline", 0),
        ("checkpoint_every", -1),
    ],
)
def test_value_out_of_range_names_key_and_value(key: str, value) -> None:
    with pytest.raises(ConfigError, match=f"'{key}' can't be used") as caught:
        make_config(data="planted", **{key: value})
    assert f"{key}={value!r}" in caught.value.seen


def test_unknown_model_asks_what_was_meant() -> None:
    with pytest.raises(ConfigError, match="Unknown model") as caught:
        make_config(data="planted", model="sgae")
    assert "did you mean 'sage'?" in caught.value.seen
    assert "FILE.py:Class" in caught.value.fix
    assert make_config(data="planted", model="mine.py:Net").model == "mine.py:Net"


def test_missing_data_is_told() -> None:
    with pytest.raises(ConfigError, match="'data' is missing"):
        make_config(model="gcn")


def test_settings_survive_yaml(tmp_path: Path) -> None:
    config = make_config(**FULL)
    write_config(config, tmp_path / "run.yaml")
    assert make_config(**read_config(tmp_path / "run.yaml")) == config


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"split": (0.6, 0.2)}, "0.6,0.2"),
        ({"class_weights": np.array([1.0, 2.5])}, "1.0,2.5"),
        ({"fanout": [15, 10]}, "15,10"),
        ({"label": ["a", "b, c", ' "d"']}, 'a,"b, c"," ""d"""'),
        ({"schema": {"größe": {"scale": "none"}}}, '{"größe": {"scale": "none"}}'),
    ],
)
def test_lists_and_mappings_are_text_in_the_end(given: dict[str, Any], text: str) -> None:
    config = make_config(data="planted", **given)
    assert [getattr(config, name) for name in given] == [text]


@drawn(st.lists(st.text(st.characters(codec="utf-8", exclude_categories=("C",))), min_size=1))
@example(['"', '"'])
def test_names_of_columns_survive_as_text(names: list[str]) -> None:
    assert names_in(joined(names)) == tuple(names)


def test_a_path_is_taken_as_its_text() -> None:
    config = make_config(data="x", out=Path("runs") / "one", nodes=Path("people.csv"))
    assert (config.out, config.nodes) == (str(Path("runs") / "one"), "people.csv")


def test_settings_survive_toml(tmp_path: Path) -> None:
    text = "\n".join(f"{key} = {_toml(value)}" for key, value in FULL.items())
    assert tomllib.loads(text) == FULL
    (tmp_path / "run.toml").write_text(text)
    assert make_config(**read_config(tmp_path / "run.toml")) == make_config(**FULL)


def _toml(value) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.yaml", "data: [1", "can't be read"),
        ("a.toml", "data = ", "can't be read"),
        ("a.yaml", "", "no lines as"),
        ("a.yaml", "- planted", "no lines as"),
        ("a.yaml", "1: 2\ndata: planted", "Unknown setting"),
    ],
)
def test_broken_config_file_is_told(tmp_path: Path, name: str, text: str, told: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=told):
        make_config(**read_config(tmp_path / name))


def test_config_file_of_bytes_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="can't be read"):
        read_config(tmp_path / "a.yaml")


def test_missing_config_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        read_config(tmp_path / "absent.yaml")


@pytest.mark.parametrize("model", [*CARDS, "mine.py:Net"])
def test_model_defaults_fill_what_is_unset(model: str) -> None:
    config = make_config(data="planted", model=model, dropout=0.0).resolved()
    assert config.dropout == 0.0
    for key in ("hidden", "lr", "weight_decay", "norm"):
        assert getattr(config, key) is not None
    if model == "gin":
        assert config.norm == "batch"
        chosen = make_config(data="planted", model=model, norm="none").resolved()
        assert chosen.norm == "none"


def test_settings_are_frozen_and_described() -> None:
    assert all(field.description for field in RunConfig.model_fields.values())
    with pytest.raises(ValueError, match="frozen"):
        make_config(data="planted").epochs = 3


def test_far_words_get_no_suggestion() -> None:
    assert did_you_mean("zzz", ["gcn", "gat"]) == ""


@pytest.mark.parametrize(
    ("settings", "epochs"),
    [
        ({}, 1),
        ({"strategy": "sar"}, 1),
        ({"strategy": "adaqp", "ranks": 2}, 10),
        ({"strategy": "adaqp"}, 1),
        ({"wire": "4", "ranks": 2}, 10),
        ({"strategy": "adaqp", "wire": "32", "ranks": 2}, 1),
        ({"strategy": "adaqp", "eval_every": 3}, 3),
    ],
)
def test_evaluation_is_rarer_where_rows_are_rounded(settings: dict[str, Any], epochs: int) -> None:
    assert make_config(data="planted", **settings).resolved().eval_every == epochs


def test_capitals_are_no_other_word() -> None:
    with pytest.raises(ConfigError, match="did you mean 'gcn'"):
        make_config(data="planted", model="GCN")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("deadline", float("inf")),
        ("deadline", 1e300),
        ("lr", float("nan")),
        ("seed", 10**26),
        ("out", "a\0b"),
        ("data", "plan\nted"),
    ],
)
def test_values_that_no_machine_can_use_are_refused(setting: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"The setting '{setting}' can't be used"):
        make_config(**{"data": "planted", setting: value})


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(data="planted", dropout=1.5, epochs=0)
    assert "epochs=0" in caught.value.seen
    assert "dropout=1.5" in caught.value.seen
    with pytest.raises(ConfigError) as caught:
        make_config(data="planted", epoch=1, droput=0.5)
    assert "'epochs'" in caught.value.seen
    assert "'dropout'" in caught.value.seen


@pytest.mark.parametrize("text", ["{" * 5000, "[" * 5000])
@pytest.mark.parametrize("name", ["run.yaml", "run.toml"])
def test_files_nested_too_deeply_are_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match="can't be read"):
        read_config(tmp_path / name)


@pytest.mark.parametrize("kind", ["pipe", "folder", "huge"])
def test_config_files_that_are_none_are_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "run.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_text("#" * (2 << 20))
    with pytest.raises(ConfigError, match="can't be read"):
        read_config(path)


def test_numbers_are_taken_where_words_are_too() -> None:
    asked = {"stages": 2, "memory": 10**9, "threshold": 0.25, "wire": 8}
    config = make_config(data="planted", **asked)
    told = {name: getattr(config, name) for name in asked}
    assert told == {"stages": "2", "memory": "1000000000", "threshold": "0.25", "wire": "8"}
    assert make_config(data="planted", macrobatch=4, strategy="batchgnn").chosen.macrobatch == 4
    with pytest.raises(ConfigError, match="data=5"):
        make_config(data=5)
