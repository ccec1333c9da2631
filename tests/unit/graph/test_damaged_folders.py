"""Stores, parts and dynamic stores that someone changed: refused by name, whatever was changed.

Manifests are right about what was changed (checksum and fingerprint) unless a test says otherwise.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from siafu.comm import World
from siafu.errors import SiafuError, StoreError
from siafu.graph import (
    DynamicGraph,
    TextIds,
    graph_from_edges,
    load_dynamic_store,
    load_store,
    open_folder,
    save_dynamic,
    save_store,
)
from siafu.graph.dynamic import join_deltas
from siafu.graph.manifest import ArrayEntry, fingerprint
from siafu.graph.nodes import IntegerIds
from siafu.graph.snapshot import difference, snapshot_from_keys
from siafu.partitioning import open_parts, partition_graph
from siafu.shard import open_shard
from tests.folders import change_array, edit_manifest, put_array, read_manifest

NODES = 12


def typed_graph() -> Any:
    generator = np.random.default_rng(0)
    src, dst = generator.integers(0, NODES, (2, 40))
    thirds = np.arange(NODES) % 3
    return graph_from_edges(
        src,
        dst,
        NODES,
        x=generator.standard_normal((NODES, 4)).astype(np.float32),
        y=np.arange(NODES) % 3,
        num_classes=3,
        class_names=("a", "b", "c"),
        edge_type=generator.integers(0, 2, 40),
        num_edge_types=2,
        ids=TextIds.from_strings([f"node {row}" for row in range(NODES)]),
        **{name: thirds == k for k, name in enumerate(("train", "val", "test"))},
    )


def dynamic_graph() -> DynamicGraph:
    weight = np.ones(3, np.float32)
    steps = [snapshot_from_keys(np.array(keys), weight, 4) for keys in ([1, 6, 9], [1, 7, 9])]
    return DynamicGraph(
        name="little",
        ids=IntegerIds(np.arange(4)),
        times=np.arange(2.0),
        base=steps[0],
        deltas=join_deltas([difference(*steps)]),
        event_starts=np.array([0, 2, 3]),
        event_src=np.array([0, 1, 2], np.int32),
        event_dst=np.array([1, 2, 3], np.int32),
        event_label=np.array([0, 1, -1]),
        num_edge_classes=2,
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    graph = typed_graph()
    save_store(graph, root / "store")
    partition_graph(graph, root / "parts", num_parts=2, method="hash")
    save_dynamic(dynamic_graph(), root / "dynamic")
    return root


@pytest.fixture
def here(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "copy")


def refused(path: Path) -> StoreError:
    """Return the error with which a folder is refused when it is opened as runs do it."""
    with pytest.raises(StoreError) as caught:
        open_as_runs_do(path)
    assert caught.value.fix
    return caught.value


def open_as_runs_do(path: Path) -> None:
    if path.name == "store":
        load_store(path)
    elif path.name == "dynamic":
        load_dynamic_store(path)
    else:
        parts = open_parts(path)
        for part in range(parts.num_parts):
            parts.open_part(part)


FAR = 2**31 - 1


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("src", 0, FAR),
        ("src", 3, -1),
        ("src", -1, NODES),
        ("indptr", 0, 1),
        ("indptr", 3, 10**9),
        ("indptr", -1, 41),
        ("indptr", -1, -1),
        ("y", 0, 3),
        ("y", 0, -2),
        ("y", 0, -1),
        ("edge_type", 5, 2),
        ("ids_offsets", 2, 10**12),
        ("ids_offsets", 2, -5),
        ("ids_utf8", 0, 0xFF),
    ],
)
def test_a_number_out_of_range_in_a_store(here: Path, name: str, at: int, value: int) -> None:
    change_array(here / "store", name, at, value)
    assert f"{name if value != -1 or name != 'y' else 'train'}" in refused(here / "store").seen


def test_a_truth_value_that_is_none(here: Path) -> None:
    mask = np.load(here / "store" / "train.npy").view(np.uint8)
    mask[2] = 2
    put_array(here / "store", "train", mask.view(bool))
    assert "train.npy" in refused(here / "store").seen


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("src", 0, FAR),
        ("src", 0, -1),
        ("indptr", 2, 10**6),
        ("rows", 0, NODES),
        ("send_rows", 0, NODES),
        ("send_rows", 0, -1),
        ("send_counts", 0, 10**9),
        ("halo_counts", 1, 10**9),
        ("halo_counts", 1, -1),
        ("halo", 0, NODES),
    ],
)
def test_a_number_out_of_range_in_a_part(here: Path, name: str, at: int, value: int) -> None:
    change_array(here / "parts" / "part0", name, at, value)
    assert f"{name}.npy" in refused(here / "parts").seen
    with pytest.raises(StoreError):
        open_shard(here / "parts", World(rank=0, size=2))


def test_parts_that_send_another_number_of_rows_than_is_expected(here: Path) -> None:
    part = here / "parts" / "part0"
    rows, counts = np.load(part / "send_rows.npy"), np.load(part / "send_counts.npy")
    put_array(part, "send_rows", rows[:-1])
    put_array(part, "send_counts", counts - (counts > 0))
    assert "send_counts.npy" in refused(here / "parts").seen


def test_a_part_number_that_is_none(here: Path) -> None:
    change_array(here / "parts", "part_of", 0, 2)
    assert "part_of.npy" in refused(here / "parts").seen


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("base_src", 0, 4),
        ("base_indptr", 1, 9),
        ("added", 0, 16),
        ("added", 0, -1),
        ("added_starts", 1, 9),
        ("event_src", 0, 4),
        ("event_starts", 1, -1),
        ("event_label", 0, 2),
    ],
)
def test_a_number_out_of_range_over_time(here: Path, name: str, at: int, value: int) -> None:
    change_array(here / "dynamic", name, at, value)
    assert f"{name}.npy" in refused(here / "dynamic").seen


def test_a_change_of_an_edge_that_is_not_there(here: Path) -> None:
    change_array(here / "dynamic", "removed", 0, 15)
    graph = load_dynamic_store(here / "dynamic")
    with pytest.raises(StoreError, match="edge that is not there"):
        list(graph.iterate())


def fact(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda said: said["facts"].update({name: value})


BAD_FACTS = [
    ("name", 3),
    ("num_nodes", None),
    ("num_nodes", -1),
    ("num_nodes", NODES + 1),
    ("num_nodes", 10**30),
    ("num_nodes", 12.0),
    ("num_edges", "40"),
    ("num_edges", 39),
    ("num_features", 5),
    ("num_classes", 2),
    ("num_classes", [3]),
    ("multi_label", 1),
    ("multi_label", True),
    ("class_names", None),
    ("class_names", ["a", "b"]),
    ("class_names", ["a", "b", 3]),
    ("class_names", ["a", "b", 1.5]),
    ("num_edge_types", 1),
    ("edge_type_names", "ab"),
]


@pytest.mark.parametrize("folder", ["store", "parts/part0"])
@pytest.mark.parametrize(("name", "value"), BAD_FACTS)
def test_a_fact_that_can_not_be(here: Path, folder: str, name: str, value: Any) -> None:
    edit_manifest(here / folder, fact(name, value))
    refused(here / folder.split("/")[0])


@pytest.mark.parametrize(
    ("folder", "name", "value"),
    [
        ("parts", "num_parts", 10**9),
        ("parts", "num_parts", 0),
        ("parts", "graph", {}),
        ("parts", "quality", None),
        ("parts", "method", 7),
        ("parts/part1", "num_owned", 10**9),
        ("parts/part1", "num_halo", "1"),
        ("parts/part1", "num_local_edges", 10**9),
        ("parts/part1", "part", 0),
        ("dynamic", "num_snapshots", 3),
        ("dynamic", "num_events", 10**9),
        ("dynamic", "num_edge_classes", 1),
        ("dynamic", "symmetric", "no"),
        ("dynamic", "class_names", {}),
    ],
)
def test_a_fact_of_parts_or_dynamic_stores(here: Path, folder: str, name: str, value: Any) -> None:
    edit_manifest(here / folder, fact(name, value))
    refused(here / folder.split("/")[0])


@pytest.mark.parametrize("folder", ["store", "parts", "parts/part0", "dynamic"])
def test_every_fact_and_array_that_is_missing(here: Path, folder: str) -> None:
    said = read_manifest(here / folder)
    optional = {"seed", "quality", "num_interior", "num_changes", "train", "val", "test", "y"}
    optional |= {"class_names", "symmetric", "dates", "overlapping", "halo", "event_label"}
    optional |= {"num_edge_types", "edge_type_names", "event_weight"}
    optional |= {"feature_names", "edge_attr_names", "event_attr_names"}
    root = here / folder.split("/")[0]
    for section in ("facts", "arrays"):
        for name in said[section].keys() - optional:
            edit_manifest(here / folder, lambda all_, s=section, n=name: all_[s].pop(n))
            refused(root)
            (here / folder / "manifest.json").write_text(json.dumps(said))
    open_as_runs_do(root)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "\x00\xff",
        '{"format": "siafu-store"',
        '{"format": "siafu-store", "version": 2}',
        '{"format": "siafu-store", "version": true}',
        '{"format": ["siafu-store"], "version": 2}',
        "[" * 100_000,
        '{"a":' * 500 + "1" + "}" * 500,
        '{"format": "siafu-store", "version": 2, "facts": ' + "[" * 400 + "]" * 400 + "}",
        '{"format": "siafu-store", "version": 1' + "0" * 5000 + "}",
    ],
)
def test_manifests_that_are_none(here: Path, text: str) -> None:
    (here / "store" / "manifest.json").write_text(text)
    refused(here / "store")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shape", [-1]),
        ("shape", [True]),
        ("shape", [1.0]),
        ("shape", [10**30]),
        ("shape", []),
        ("shape", None),
        ("shape", 40),
        ("dtype", "|O"),
        ("dtype", "<U5"),
        ("dtype", ">i4"),
        ("dtype", None),
        ("sha256", None),
        ("sha256", "0" * 63),
        ("sha256", "g" * 64),
    ],
)
def test_an_entry_that_can_not_be(here: Path, field: str, value: Any) -> None:
    edit_manifest(
        here / "store", lambda said: said["arrays"]["src"].update({field: value}), seal=False
    )
    assert "manifest.json" in refused(here / "store").seen


@pytest.mark.parametrize("name", ["../store/src", "/etc/passwd", "..", "a/b", "", ".hidden", "a\n"])
def test_names_of_arrays_are_no_paths(here: Path, name: str) -> None:
    edit_manifest(
        here / "store", lambda said: said["arrays"].update({name: said["arrays"]["src"]}), seal=True
    )
    assert "manifest.json" in refused(here / "store").seen


@pytest.mark.parametrize("folder", ["store", "parts", "parts/part1", "dynamic"])
def test_an_edit_without_the_fingerprint_is_noticed(here: Path, folder: str) -> None:
    edit_manifest(here / folder, fact("name", "another"), seal=False)
    assert "wrong checksum" in refused(here / folder.split("/")[0]).seen


def test_an_edited_shape_is_noticed_by_the_fingerprint(here: Path) -> None:
    row = read_manifest(here / "store")["arrays"]["x"]
    edit_manifest(
        here / "store", lambda said: said["arrays"]["x"].update(shape=[4, 12]), seal=False
    )
    assert row["shape"] == [12, 4]
    assert "wrong checksum" in refused(here / "store").seen


@pytest.mark.parametrize("folder", ["store", "parts", "parts/part0", "parts/part1", "dynamic"])
def test_folders_of_version_1_open(here: Path, folder: str) -> None:
    edit_manifest(here / folder, lambda said: said.update(version=1))
    open_as_runs_do(here / folder.split("/")[0])
    edit_manifest(here / folder, fact("name", "another"), seal=False)
    assert "wrong checksum" in refused(here / folder.split("/")[0]).seen


def test_the_fingerprint_of_version_1_is_what_it_was() -> None:
    entry = ArrayEntry(shape=(2,), dtype="<i8", sha256="0" * 64)
    said = json.dumps([[("a", "0" * 64)], {"name": "x"}], sort_keys=True)
    found = fingerprint("store", 1, {"a": entry}, {"name": "x"})
    assert found == hashlib.sha256(said.encode()).hexdigest()


@pytest.mark.parametrize("file", ["manifest.json", "src.npy"])
@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "device"])
def test_only_plain_files_are_opened(here: Path, file: str, kind: str) -> None:
    path = here / "store" / file
    path.rename(here / "elsewhere")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(here / "elsewhere")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    assert file in refused(here / "store").seen


def test_a_part_that_lies_elsewhere_is_refused(here: Path) -> None:
    (here / "parts" / "part1").rename(here / "elsewhere")
    (here / "parts" / "part1").symlink_to(here / "elsewhere")
    assert "symbolic link" in refused(here / "parts").seen


def test_a_claimed_length_is_not_allocated(here: Path) -> None:
    edit_manifest(here / "store", fact("num_features", 10**9))
    edit_manifest(here / "store", lambda said: said["arrays"]["x"].update(shape=[NODES, 10**9]))
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({NODES}, 1000000000), }}"
    raw = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
    (here / "store" / "x.npy").write_bytes(raw + bytes(16))
    assert "bytes long" in refused(here / "store").seen


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"(" * 500,
        b"{'descr': 'O', 'fortran_order': False, 'shape': (40,), }",
        b"__import__('os')",
    ],
)
def test_a_header_that_is_none(here: Path, header: bytes) -> None:
    raw = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    (here / "store" / "src.npy").write_bytes(raw + bytes(160))
    assert "src.npy" in refused(here / "store").seen


def test_every_flipped_bit_of_a_manifest_is_refused_or_harmless(here: Path) -> None:
    file = here / "parts" / "part0" / "manifest.json"
    whole = file.read_bytes()
    said = json.loads(whole)
    generator = np.random.default_rng(0)
    for position in generator.choice(8 * len(whole), 300, replace=False).tolist():
        raw = bytearray(whole)
        raw[position // 8] ^= 1 << position % 8
        file.write_bytes(raw)
        try:
            open_parts(here / "parts")
        except SiafuError:
            continue
        assert json.loads(bytes(raw)) == said


def test_untouched_folders_open(here: Path) -> None:
    for name in ("store", "parts", "dynamic"):
        open_as_runs_do(here / name)
    assert open_folder(here / "store", "store").facts["num_nodes"] == NODES
