"""The cut of a former run is used again for the same data and settings, and for nothing else."""

import json
import os
import re
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

import siafu
from siafu.config import make_config
from siafu.errors import DataError
from siafu.graph import load_store, save_store
from siafu.launch import start_run
from siafu.launch.reuse import note_cut, take_cut
from siafu.launch.run_state import parts_of
from siafu.partitioning import open_parts
from siafu.record import RunFolder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SIAFU_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    save_store(siafu.load("planted:90"), tmp_path / "store")
    return tmp_path


def train(out: str, *, data: str = "store", **settings) -> list[str]:
    """Train for an epoch and return what was said of a cut that was used."""
    said: list[str] = []
    start_run(
        make_config(data=data, out=out, epochs=1, hidden=4, **settings), say=said.append, quiet=True
    )
    return [line for line in said if line.startswith("Used the cut of")]


def arrays(run: str) -> dict[str, bytes]:
    root = Path(parts_of(RunFolder(Path(run))))
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_the_same_data_is_cut_once(here: Path):
    assert train("a") == []
    (told,) = train("b", lr=0.3, model="sage")
    assert told == f"Used the cut of a: the same data and settings (1 part, {_method()})."
    assert arrays("a") == arrays("b")
    one, other = (Path(run) / "data.parts" / "part0" / "src.npy" for run in "ab")
    assert one.samefile(other), "no second copy on the disk"


def test_what_was_told_of_tables_is_told_again_columns_in_a_line(
    here: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = [f"{k},{k % 7},{k % 3 == 0:d},{k % 3 == 0:d},{k * k}" for k in range(200)]
    Path("nodes.csv").write_text("\n".join(["id,age,churned,copy,pay", *rows]))
    edges = [f"{k % 200},{(k + 1) % 200},{k % 5},{k % 9}" for k in range(400)]
    Path("edges.csv").write_text("\n".join(["src,dst,weight,pay", *edges, "9999,1,3,4"]))

    def told(out: str, **settings) -> list[str]:
        said: list[str] = []
        settings |= {"nodes": "nodes.csv", "label": "churned", "epochs": 1, "hidden": 4}
        config = make_config(data="edges.csv", out=out, **settings)
        start_run(config, say=said.append, quiet=True)
        return said

    first = told("a")
    notes = [line for line in first if "olumns of the " in line or "eights of" in line]
    notes += [line for line in first if "Dropped 1" in line or "tell the target" in line]
    assert len(notes) == 6, first
    tables = [line for line in notes if "used as" in line]
    assert len(tables) == 2
    for again in (told("b"), told("c", partition="hash")):
        assert [line for line in notes if line not in again] == tables
        assert any(line.startswith(("Used the cut of", "Used the store")) for line in again)
        (short,) = (line for line in again if line.startswith("Their columns are as they were"))
        store = short.partition("siafu inspect ")[2].partition(" shows")[0]
        assert [one.name for one in load_store(store).schema.nodes] == ["age", "pay"]
    monkeypatch.setenv("SIAFU_CACHE", str(here / "cache e"))
    assert "edge feature     0  with --model gat --edge-features" in "\n".join(first)
    able = "\n".join(told("e", model="gatv2", heads=1))
    assert "edge feature     0  with --edge-features, or own model" in able
    monkeypatch.setenv("SIAFU_CACHE", str(here / "cache d"))
    read = "\n".join(told("d", model="gat", heads=1, edge_features=True))
    assert "edge feature     0\n" in f"{read}\n"
    assert "with --edge-features" not in read
    Path("net.py").write_text(OWN)
    monkeypatch.setenv("SIAFU_CACHE", str(here / "cache o"))
    own = "\n".join(told("o", model="net.py:Net"))
    assert "edge feature     0  if forward takes edge_attr" in own
    page = re.sub(r"<[^>]+>", " ", Path("o/report.html").read_text())
    assert "net.py:Net, hidden 4" in page
    assert "? layers" not in page
    assert re.search(r"edge columns used +pay \(if forward takes edge_attr\)", page)
    assert "edge columns used  pay " not in Path("a/report.html").read_text()


def test_links_tell_what_they_leave_out(here: Path):
    rows = [f"{k},{k % 7},{k % 3},{('train', 'val', 'test')[k % 3]}" for k in range(200)]
    Path("nodes.csv").write_text("\n".join(["id,age,label,split", *rows]))
    edges = [f"{k % 200},{(k + 1 + k // 400) % 200}" for k in range(600)]
    Path("edges.csv").write_text("\n".join(["src,dst", *edges]))
    said: list[str] = []
    config = make_config(data="edges.csv", nodes="nodes.csv", task="link", epochs=1, hidden=4)
    run = start_run(config, say=said.append, quiet=True)
    assert "Not used, since links alone are learnt: the nodes' target and split." in said
    (told,) = (line for line in said if line.startswith("Held out"))
    assert "as copies or reverses of these" in told
    assert sum(map(int, re.findall("[0-9]+", told))) == 600
    Path("new.csv").write_text("src,dst\n1,2\n")
    with pytest.raises(DataError, match="trained with a table of nodes, and the data has none"):
        siafu.infer(run, "new.csv")


OWN = """
import torch

class Net(torch.nn.Module):
    def __init__(self, in_channels, out_channels, hidden_channels=8):
        super().__init__()
        self.map = torch.nn.Linear(in_channels, out_channels)

    def forward(self, x, edge_index, edge_attr=None):
        return self.map(x)
"""


def _method() -> str:
    return str(open_parts("a/data.parts").facts["method"])


@pytest.mark.parametrize(
    "settings", [{"seed": 1}, {"undirected": True}, {"split": "0.5,0.2"}, {"partition": "hash"}]
)
def test_other_settings_of_the_cut_make_another(here: Path, settings):
    train("a")
    assert train("b", **settings) == []


def test_data_that_changed_is_cut_anew(here: Path):
    train("a")
    before = load_store("store")
    shutil.rmtree("store")
    save_store(siafu.load("planted:91"), "store")
    assert train("b") == []
    assert open_parts("b/data.parts").facts["graph"]["num_nodes"] == before.num_nodes + 1
    # the same bytes at another time may be other bytes on the way there
    for file in Path("store").rglob("*.npy"):
        os.utime(file, ns=(1, 1))
    assert train("c") == []


def test_tables_are_cut_once_by_their_options(here: Path):
    generator = np.random.default_rng(0)
    rows = [f"{k},{k % 3},{a:.3f},{k % 2}" for k, a in enumerate(generator.random(60))]
    Path("nodes.csv").write_text("\n".join(["id,label,a,b", *rows]) + "\n")
    pairs = generator.integers(0, 60, (200, 2)).tolist()
    Path("edges.csv").write_text("\n".join(["src,dst", *(f"{s},{d}" for s, d in pairs)]) + "\n")
    named = {"data": "edges.csv", "nodes": "nodes.csv"}
    train("a", **named, label="label")
    assert len(train("b", **named, label="label")) == 1
    assert train("c", **named, label="b") == []
    with Path("nodes.csv").open("a") as file:
        file.write("60,1,0.5,1\n")
    assert train("e", **named, label="label") == []


def test_a_run_stays_whole_when_the_former_one_and_the_cache_go(here: Path):
    train("a")
    train("b")
    shutil.rmtree("a")
    shutil.rmtree(here / "cache")
    open_parts("b/data.parts").verify()
    assert train("c") == []


def test_another_cut_at_the_noted_place_is_not_used(here: Path):
    train("a")
    shutil.rmtree("a")
    train("a", seed=5)
    assert train("b") == []


def test_a_former_run_that_went_is_not_missed(here: Path):
    train("a")
    shutil.rmtree("a")
    assert train("b") == []
    assert len(train("c")) == 1
    assert len(list((here / "cache" / "cuts").iterdir())) == 1, "notes of what is gone go"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"parts": 3}', '{"parts": "a", "digest": ""}'])
def test_a_damaged_note_is_passed_over(here: Path, content: str):
    train("a")
    (note,) = (here / "cache" / "cuts").iterdir()
    note.write_text(content)
    assert train("b") == []


def test_where_files_can_not_be_linked_they_are_copied(here: Path, monkeypatch):
    def refuse(source, target):
        raise OSError("another disk")

    train("a")
    monkeypatch.setattr(os, "link", refuse)
    assert len(train("b")) == 1
    assert arrays("a") == arrays("b")
    assert not Path("a/data.parts/manifest.json").samefile("b/data.parts/manifest.json")


def test_a_run_that_goes_while_it_is_linked_leaves_nothing(here: Path, monkeypatch):
    train("a")
    key = next((here / "cache" / "cuts").iterdir()).stem
    real, count = os.link, [0]

    def link(source, target):
        count[0] += 1
        if count[0] == 3:
            shutil.rmtree("a")
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    (here / "b").mkdir()
    assert not take_cut(key, here / "b" / "data.parts", lambda line: None)
    assert list((here / "b").iterdir()) == []


def test_two_processes_may_take_and_note_at_once(here: Path):
    train("a")
    key = next((here / "cache" / "cuts").iterdir()).stem
    taken: dict[int, bool] = {}

    def work(number: int) -> None:
        target = here / f"t{number}" / "data.parts"
        target.parent.mkdir()
        taken[number] = take_cut(key, target, lambda line: None)
        note_cut(key, target)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken == dict.fromkeys(range(6), True)
    for number in range(6):
        open_parts(here / f"t{number}" / "data.parts").verify()
    note = json.loads((here / "cache" / "cuts" / f"{key}.json").read_text())
    assert Path(note["parts"]).is_dir()


def test_what_is_in_memory_or_made_by_name_is_not_noted(here: Path):
    train("a", data="planted:60")
    assert train("b", data="planted:60") == []
    assert not (here / "cache" / "cuts").exists()


def test_emptying_the_cache_forgets_cuts(here: Path):
    train("a")
    assert siafu.ingest.list_cache()[-1].path.parent.name == "cuts"
    siafu.ingest.empty_cache()
    assert train("b") == []
