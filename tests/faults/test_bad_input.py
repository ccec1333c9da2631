"""Bad input: exit code 2, problem, seen and fix, no traceback, nothing half written."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from siafu.graph import save_store
from siafu.ingest import load
from siafu.partitioning import partition_graph
from tests.command import Answer, Command, listing


def refused(siafu: Command, *arguments: object, is_prepared: bool = False) -> str:
    """Return what the command told, after checking that it failed in the agreed form.

    Nothing is left, but for a run whose data was prepared by then.
    """
    before = listing(siafu.here)
    answer: Answer = siafu(*arguments)
    assert answer.code == 2, answer
    assert answer.out == ""
    lines = answer.err.rstrip().splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith("error: "))
    assert lines[start + 1].startswith("  seen: "), answer.err
    notes = ("What was done is kept. To go on: ", "To use its data with other settings: ")
    told = [line for line in lines[start:] if not line.startswith(notes)]
    assert told[-1].startswith("  fix:  "), answer.err
    assert lines[start : start + len(told)] == told, "the error comes first"
    assert "Traceback" not in answer.err
    if is_prepared:
        [parts] = siafu.here.glob("runs/*/data.parts")
        assert f"settings: siafu train {parts.relative_to(siafu.here)}" in answer.err
        assert "--resume" not in answer.err, "it would end so again"
        shutil.rmtree(siafu.here / "runs")
        shutil.rmtree(siafu.here / ".cache" / "cuts", ignore_errors=True)  # notes of their cuts
    assert listing(siafu.here) == before
    return answer.err


def write_npz(path: Path, **changes) -> Path:
    generator = np.random.default_rng(0)
    arrays = {
        "edge_index": generator.integers(0, 30, (2, 90)),
        "x": generator.standard_normal((30, 4)).astype(np.float32),
        "y": generator.integers(0, 3, 30),
        **{
            f"{name}_mask": np.arange(30) % 3 == k
            for k, name in enumerate(("train", "val", "test"))
        },
    }
    np.savez(path, **{**arrays, **changes})
    return path


def write_tables(folder: Path, **edge_columns) -> Path:
    folder.mkdir()
    nodes = {"id": ["a", "b", "c"], "label": [0, 1, 0], "f": [0.5, 1.5, 2.5]}
    pq.write_table(pa.table(nodes), folder / "nodes.parquet")
    edges = {"src": ["a", "b"], "dst": ["b", "c"], **edge_columns}
    pq.write_table(pa.table(edges), folder / "edges.parquet")
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, and parts of two graphs, made once; tests copy them."""
    root = tmp_path_factory.mktemp("made")
    save_store(load("planted:200"), root / "store")
    partition_graph(load("planted:200"), root / "two.parts", num_parts=2, method="hash")
    partition_graph(load("planted:201"), root / "other.parts", num_parts=2, method="hash")
    return root


@pytest.fixture
def copies(made: Path, siafu: Command) -> Path:
    shutil.copytree(made, siafu.here, dirs_exist_ok=True)
    return siafu.here


@pytest.mark.parametrize("command", ["train", "ingest", "partition"])
@pytest.mark.parametrize("name", ["absent.npz", "absent.parquet", "absent/folder"])
def test_missing_file(siafu: Command, command: str, name: str) -> None:
    target = () if command == "train" else ("target",)
    assert name in refused(siafu, command, name, *target)


@pytest.mark.parametrize("command", ["train", "partition", "inspect"])
def test_truncated_array_in_a_store(siafu: Command, copies: Path, command: str) -> None:
    file = copies / "store" / "x.npy"
    file.write_bytes(file.read_bytes()[:-100])
    target = ("target",) if command == "partition" else ()
    assert "x.npy is damaged" in refused(siafu, command, "store", *target)


@pytest.mark.parametrize("command", [["train", "store"], ["inspect", "store", "--verify"]])
def test_wrong_checksum_in_a_store(siafu: Command, copies: Path, command: list[str]) -> None:
    file = copies / "store" / "src.npy"
    raw = bytearray(file.read_bytes())
    raw[-4] ^= 1
    file.write_bytes(raw)
    assert "wrong checksum" in refused(siafu, *command)


@pytest.mark.parametrize("part", ["part0", "part1"])
def test_wrong_checksum_in_a_part_is_found_by_inspect(siafu: Command, copies, part: str) -> None:
    file = copies / "two.parts" / part / "x.npy"
    raw = bytearray(file.read_bytes())
    raw[-4] ^= 1
    file.write_bytes(raw)
    assert part in refused(siafu, "inspect", "two.parts", "--verify")


@pytest.mark.parametrize("command", ["train", "ingest"])
def test_edge_to_an_unknown_node(siafu: Command, command: str) -> None:
    tables = write_tables(siafu.here / "tables", dst=["b", "nowhere"])
    target = ("target",) if command == "ingest" else ()
    assert "nowhere" in refused(siafu, command, tables, *target)


@pytest.mark.parametrize("name", ["nodes", "edges"])
@pytest.mark.parametrize("command", ["train", "partition"])
def test_a_table_that_is_no_table(siafu: Command, command: str, name: str) -> None:
    folder = write_tables(siafu.here / "tables")
    (folder / f"{name}.parquet").write_text("not parquet")
    arguments = [command, folder] if command == "train" else [command, folder, "out", "--parts", 2]
    assert f"{name}.parquet" in refused(siafu, *arguments)


def test_nan_feature_names_the_node(siafu: Command) -> None:
    x = np.ones((30, 4), np.float32)
    x[17, 2] = np.nan
    data = write_npz(siafu.here / "data.npz", x=x, node_id=np.arange(30) + 100)
    assert "id 117" in refused(siafu, "train", data)


@pytest.mark.parametrize("value", [-2, 9])
def test_label_out_of_range(siafu: Command, value: int) -> None:
    y = np.arange(30) % 3
    y[4] = value
    data = write_npz(siafu.here / "data.npz", y=y, num_classes=3)
    assert "label" in refused(siafu, "train", data).lower()


@pytest.mark.parametrize("ranks", [1, 2])
def test_no_training_nodes(siafu: Command, ranks: int) -> None:
    data = write_npz(siafu.here / "data.npz", train_mask=np.zeros(30, bool))
    told = refused(siafu, "train", data, "--ranks", ranks, is_prepared=True)
    assert "no training nodes" in told


def test_no_labels(siafu: Command) -> None:
    data = siafu.here / "data.npz"
    np.savez(data, edge_index=np.array([[0, 1], [1, 2]]), x=np.ones((3, 2), np.float32))
    assert "no labels" in refused(siafu, "train", data, is_prepared=True)


@pytest.mark.parametrize("command", [["train", "--ranks"], ["partition", "target", "--parts"]])
def test_more_parts_than_nodes(siafu: Command, command: list[str]) -> None:
    data = write_npz(siafu.here / "data.npz")
    assert "30 nodes" in refused(siafu, command[0], data, *command[1:], 31)


def test_ranks_that_differ_from_the_parts(siafu: Command, copies: Path) -> None:
    told = refused(siafu, "train", "two.parts", "--ranks", 3)
    assert "3 ranks, 2 parts" in told
    assert "--ranks 2" in told


@pytest.mark.parametrize("name", ["run.yaml", "run.toml"])
def test_unknown_setting_in_a_file(siafu: Command, name: str) -> None:
    mark = ":" if name.endswith("yaml") else " ="
    (siafu.here / name).write_text(f'data{mark} "planted"\nepoch{mark} 3\n')
    assert "did you mean 'epochs'?" in refused(siafu, "train", name)


def test_unknown_flag(siafu: Command) -> None:
    before = listing(siafu.here)
    answer = siafu("train", "planted", "--epoch", 3)
    assert answer.code == 2
    assert "--epochs" in answer.err
    assert listing(siafu.here) == before


def test_setting_out_of_range(siafu: Command) -> None:
    assert "dropout=1.5" in refused(siafu, "train", "planted", "--dropout", 1.5)


def test_part_of_another_graph(siafu: Command, copies: Path) -> None:
    shutil.rmtree(copies / "two.parts" / "part1")
    shutil.copytree(copies / "other.parts" / "part1", copies / "two.parts" / "part1")
    told = refused(siafu, "train", "two.parts", "--ranks", 2)
    assert "another graph" in told
    assert "part1" in told


def test_missing_part(siafu: Command, copies: Path) -> None:
    shutil.rmtree(copies / "two.parts" / "part1")
    assert "part1" in refused(siafu, "train", "two.parts", "--ranks", 2)


@pytest.mark.parametrize("model", ["absent.py:Net", "no_such_package:Net"])
def test_own_model_that_does_not_exist(siafu: Command, model: str) -> None:
    is_prepared = not model.startswith("absent")  # a file is looked for before
    assert model in refused(
        siafu, "train", "planted:200", "--model", model, is_prepared=is_prepared
    )


def test_own_model_without_that_class(siafu: Command) -> None:
    (siafu.here / "mine.py").write_text("import torch\n")
    command = ("train", "planted:200", "--model", "mine.py:Net")
    assert "no such class" in refused(siafu, *command)


@pytest.mark.parametrize("command", [["train", "planted:200"], ["ingest", "planted:200", "target"]])
def test_nonsense_split(siafu: Command, command: list[str]) -> None:
    assert "--split nonsense" in refused(siafu, *command, "--split", "nonsense")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("ranks", [1, 2])
def test_cuda_without_cuda(siafu: Command, ranks: int) -> None:
    told = refused(siafu, "train", "planted:200", "--device", "cuda", "--ranks", ranks)
    assert "--device cpu" in told


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["plantet"], "'planted'"),
        (["planted", "--model", "gatt"], "'gat'"),
        (["planted", "--strategy", "hallo"], "'halo'"),
    ],
)
def test_misspelt_name_asks_what_was_meant(siafu: Command, arguments, meant: str) -> None:
    assert f"did you mean {meant}?" in refused(siafu, "train", *arguments)


def test_no_data(siafu: Command) -> None:
    assert "siafu train planted" in refused(siafu, "train")


def test_existing_targets_are_kept(siafu: Command, copies: Path) -> None:
    assert "--overwrite" in refused(siafu, "ingest", "planted:200", "store")
    assert "--overwrite" in refused(siafu, "partition", "store", "two.parts")
    assert "--out" in refused(siafu, "train", "planted:200", "--out", "store")


@pytest.mark.parametrize("command", ["inspect", "infer"])
def test_folder_that_is_not_ours(siafu: Command, command: str) -> None:
    (siafu.here / "folder").mkdir()
    refused(siafu, command, "folder")


def test_resume_of_nothing(siafu: Command) -> None:
    assert "No run there" in refused(siafu, "train", "--resume", "absent")


def test_loss_that_diverges(siafu: Command) -> None:
    data = write_npz(siafu.here / "data.npz", x=np.full((30, 4), 3e38, np.float32))
    assert "loss is not finite" in refused(siafu, "train", data, "--quiet", is_prepared=True)


@pytest.mark.parametrize("name", ["data.pt", "data.json", "data.graphml"])
@pytest.mark.parametrize("command", [["train"], ["train", "--model", "tm-gcn"]])
def test_a_kind_of_file_that_is_not_read(siafu: Command, command: list[str], name: str) -> None:
    (siafu.here / name).write_text("{}")
    told = refused(siafu, command[0], name, *command[1:])
    assert "This kind of file is not read" in told
    assert ".npz" in told
    assert ".parquet" in told


def test_names_of_data_sets_are_complete(siafu: Command) -> None:
    assert "drifting" in refused(siafu, "train", "nothing-near")


def test_no_features(siafu: Command) -> None:
    data = siafu.here / "data.npz"
    np.savez(data, edge_index=np.array([[0, 1], [1, 2]]), y=np.array([0, 1, 0]))
    told = refused(siafu, "train", data, is_prepared=True)
    assert "no node features" in told
    assert "--split" not in told


@pytest.mark.parametrize("flags", [["--strategy", "sar"], ["--strategy", "batchgnn"]])
def test_memory_without_a_unit(siafu: Command, flags: list[str]) -> None:
    told = refused(siafu, "train", "planted:200", "--memory", 4, *flags)
    assert "did you mean 4GB?" in told
    told = refused(siafu, "partition", "planted:200", "target", "--memory", 4)
    assert "did you mean 4GB?" in told


@pytest.mark.parametrize("data", ["planted:1000000m", "drifting:1000000m"])
def test_a_built_in_graph_larger_than_memory(siafu: Command, data: str) -> None:
    model = ["--model", "tm-gcn"] if data.startswith("drifting") else []
    assert "bytes" in refused(siafu, "train", data, *model)


def test_more_lags_than_snapshots(siafu: Command) -> None:
    flags = ["--model", "tm-gcn", "--task", "signal", "--lags", 100_000_000]
    assert "use --lags 4" in refused(siafu, "train", "drifting:60", *flags)


def test_a_model_larger_than_memory(siafu: Command) -> None:
    told = refused(siafu, "train", "planted:60", "--hidden", 1_000_000, "--layers", 9)
    assert "would not fit in memory" in told


def _columns(folder: Path, *names: str) -> Path:
    folder.mkdir()
    values = {name: [0.1 * len(name), 1.5, 2.5, 3.5, 4.5, 5.5] for name in names}
    nodes = {"id": range(6), "label": [0, 1] * 3, "split": ["train", "val", "test"] * 2}
    pq.write_table(pa.table({k: list(v) for k, v in (nodes | values).items()}), folder / "n.pq")
    (folder / "n.pq").rename(folder / "nodes.parquet")
    edges = {"src": [0, 1, 2, 3, 4, 5], "dst": [1, 2, 3, 4, 5, 0]}
    pq.write_table(pa.table(edges), folder / "edges.parquet")
    return folder


def test_inference_on_columns_in_another_order(siafu: Command) -> None:
    trained = _columns(siafu.here / "tables", "age", "income")
    assert siafu("train", trained, "--epochs", 1, "--out", "run", "--quiet").code == 0
    for name, columns in {"fewer": ("age",), "others": ("age", "pay")}.items():
        store = siafu.here / f"{name}.store"
        assert siafu("ingest", _columns(siafu.here / name, *columns), store, "--quiet").code == 0
        told = refused(siafu, "infer", "run", "--data", store, "--out", "out")
        assert "no 'income' in the node table" in told
    for name, columns in {"same": ("age", "income"), "turned": ("income", "age")}.items():
        tables = _columns(siafu.here / name, *columns)
        assert siafu("infer", "run", "--data", tables, "--out", f"{name}.out").code == 0
    same, turned = (pq.read_table(siafu.here / f"{name}.out") for name in ("same", "turned"))
    assert same.column("confidence") == turned.column("confidence")
    plain = write_npz(siafu.here / "data.npz", x=np.ones((30, 2), np.float32))
    assert "have no names" in refused(siafu, "infer", "run", "--data", plain, "--out", "none")


def test_labels_of_other_data_keep_their_names(siafu: Command) -> None:
    trained = _columns(siafu.here / "tables", "age")
    names = {"tables": ["ant", "bee"] * 3, "new": ["bee", "cow"] * 3}
    _columns(siafu.here / "new", "age")
    for folder, labels in names.items():
        file = siafu.here / folder / "nodes.parquet"
        table = pq.read_table(file)
        pq.write_table(table.set_column(1, "label", pa.array(labels)), file)
    assert siafu("train", trained, "--epochs", 1, "--out", "run", "--quiet").code == 0
    assert siafu("infer", "run", "--data", "new", "--out", "out").code == 0
    rows = pq.read_table(siafu.here / "out").sort_by("id")
    assert rows["label"].to_pylist() == ["bee", None] * 3
