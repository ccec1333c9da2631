"""`siafu cache`, and what `siafu train` says of memory."""

import json
from pathlib import Path

from tests.command import Command


def test_a_budget_has_train_say_what_it_predicts(siafu: Command) -> None:
    budget = ("--memory", "8GB", "--epochs", "1", "--hidden", "8")
    assert "a rank is predicted to need" in siafu("train", "planted:200", *budget).err
    assert "predicted" not in siafu("train", "planted:200", *budget, "--quiet").err


def test_cache_is_shown_and_emptied(siafu: Command) -> None:
    tables = siafu.here / "data"
    tables.mkdir()
    rows = [f"{number},{number % 2},{number % 3}" for number in range(9)]
    (tables / "nodes.csv").write_text("\n".join(["id,label,x", *rows]) + "\n")
    (tables / "edges.csv").write_text("src,dst\n0,1\n1,2\n")
    assert siafu("train", "data", "--epochs", "1", "--split", "0.5,0.2").code == 0
    held = json.loads(siafu("cache", "--json").out)
    assert sorted(Path(name).parent.name for name in held["kept"]) == ["cuts", "tables"]
    assert held["bytes"] > 0
    assert not held["is_removed"]
    assert "in all" in siafu("cache").out
    assert json.loads(siafu("cache", "--empty", "--json").out)["bytes"] == held["bytes"]
    assert json.loads(siafu("cache", "--json").out)["kept"] == {}
