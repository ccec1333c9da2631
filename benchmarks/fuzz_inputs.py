"""Malformed graphs as users bring them: npz, CSV, Parquet and events.

Each maker writes one case into the folder it is given, from a seeded generator, and returns the
arguments of the `siafu` command to try on it.
"""

import gzip
import os
import random
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Draw = random.Random
Maker = Callable[[Draw, Path], list[str]]

N, E = 30, 90
_EVENTS = ["--model", "tm-gcn", "--epochs", "1", "--hidden", "4", "--quiet"]
_MASKS = ("train_mask", "val_mask", "test_mask")


def odd_array(draw: Draw, like: np.ndarray[Any, Any]) -> Any:
    """Return an array that is wrong in one way: kind, shape, length or values."""
    numbers = np.asarray(like)
    pool: list[Callable[[], Any]] = [
        lambda: np.array(7),
        lambda: np.array(float("nan")),
        lambda: np.array("text"),
        lambda: np.arange(3),
        lambda: np.zeros(0),
        lambda: np.zeros((0, 3)),
        lambda: np.zeros((N, 0)),
        lambda: np.zeros((2, 2, 2, 2)),
        lambda: np.array(["a"] * N),
        lambda: np.array([b"\xff\xfe"] * N),
        lambda: np.zeros(N, np.complex64),
        lambda: np.zeros(N, "datetime64[s]"),
        lambda: np.zeros(N, [("a", "i4"), ("b", "f8")]),
        lambda: np.array([{"a": 1}, None], dtype=object),
        lambda: np.full(N, np.nan),
        lambda: np.full((N, 4), np.inf),
        lambda: np.full(N, 2**63, np.uint64),
        lambda: np.full(numbers.shape or (1,), 1e300),
        lambda: np.full(numbers.shape or (1,), -1),
        lambda: np.full(numbers.shape or (1,), 2**40),
        lambda: numbers.astype(bool),
        lambda: numbers.astype(np.float16, copy=True),
        lambda: numbers.astype(np.complex128),
        lambda: numbers.astype("U"),
        lambda: numbers[..., :-1] if numbers.ndim else numbers,
        lambda: numbers[:-1] if numbers.ndim else numbers,
        lambda: np.concatenate([numbers, numbers]) if numbers.ndim else numbers,
        lambda: numbers.T,
        lambda: numbers[None],
        lambda: numbers.reshape(-1),
        lambda: np.arange(N)[::-1] * 10**6,
    ]
    try:
        return draw.choice(pool)()
    except (ValueError, TypeError):  # text or records have no such form
        return np.array("text")


def _claiming(draw: Draw) -> bytes:
    """Return a `.npy` file whose header claims more than it holds."""
    shape = draw.choice(["(1000000000000,)", "(30, 99999999999)", "(-1,)", "(2,)", "()", "('x',)"])
    dtype = draw.choice(["<f4", "<i8", "|O", "<U9999999", "|V0", "nonsense"])
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + b"\0" * 64


def damage(draw: Draw, path: Path) -> None:
    """Cut the file short, flip some of its bytes, or put another thing in its place."""
    raw = bytearray(path.read_bytes())
    how = draw.randrange(5)
    if how == 0:
        raw = raw[: draw.randrange(len(raw))]
    elif how in (1, 2):
        for _ in range(draw.choice([1, 1, 8, 64])):
            raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
    elif how == 3:
        at = draw.randrange(len(raw))
        raw[at:at] = draw.randbytes(draw.choice([1, 16, 300]))
    else:
        path.unlink()
        draw.choice([lambda: os.mkfifo(path), path.mkdir, lambda: path.write_bytes(b"")])()
        return
    path.write_bytes(bytes(raw))


def _static_arrays() -> dict[str, Any]:
    generator = np.random.default_rng(0)
    return {
        "edge_index": generator.integers(0, N, (2, E)),
        "x": generator.standard_normal((N, 4)).astype(np.float32),
        "y": generator.integers(0, 3, N),
        **{name: np.arange(N) % 3 == k for k, name in enumerate(_MASKS)},
    }


def _save_npz(draw: Draw, path: Path, arrays: dict[str, Any]) -> None:
    """Write the arrays, now and then with an entry that is none or that claims too much."""
    np.savez_compressed(path, **arrays)
    how = draw.random()
    if how < 0.12:
        name = draw.choice([*arrays, "more"])
        with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of names that are there twice
            entry = draw.choice([f"{name}.npy", "../evil.npy", "notes.txt"])
            archive.writestr(entry, _claiming(draw))
    elif how < 0.14:
        with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("bomb.npy", b"\0" * (300 << 20))
    elif how < 0.3:
        damage(draw, path)


def npz(draw: Draw, folder: Path) -> list[str]:
    """Return a command on an `.npz` file with wrong arrays."""
    arrays = _static_arrays()
    arrays |= {
        "num_nodes": np.array(N),
        "num_classes": np.array(3),
        "symmetric": np.array(1),
        "node_id": np.arange(N),
        "edge_weight": np.ones(E),
        "edge_attr": np.ones((E, 2)),
        "edge_type": np.arange(E) % 3,
    }
    if draw.random() < 0.2:
        del arrays["x"]
        arrays |= {
            "x_indptr": np.arange(N + 1),
            "x_indices": np.arange(N) % 4,
            "x_data": np.ones(N),
            "x_shape": np.array([N, 4]),
        }
    for _ in range(draw.choice([0, 1, 1, 1, 2])):
        name = draw.choice(list(arrays))
        if draw.random() < 0.15:
            del arrays[name]
        else:
            arrays[name] = odd_array(draw, arrays[name])
    if draw.random() < 0.1:
        arrays["val_mask"] = arrays["train_mask"] = np.ones(N, bool)
    if draw.random() < 0.1:
        arrays["node_id"] = np.zeros(N, np.int64)
    _save_npz(draw, folder / "data.npz", arrays)
    return _static_command(draw, "data.npz")


def _static_command(draw: Draw, source: str) -> list[str]:
    if draw.random() < 0.4:
        return ["train", source, "--epochs", "1", "--quiet"]
    verb = draw.choice(["ingest", "ingest", "partition"])
    flags = [["--undirected"], ["--split", "0.5,0.2"], []]
    return [verb, source, "out", *draw.choice(flags), "--quiet"]


_ODD_CELLS = [
    *("", " ", "NA", "nan", "inf", "-inf", "1e400", "-0", "+7", "007", "1" * 30, "0x10", "1,5"),
    *("'", '"', "a;b", "\t", "ü", "日本", "\ufeff", "true", "None", "-1", "1.5", "2024-01-01"),
    *("x" * 5000, "9223372036854775807", "9223372036854775808", "-9223372036854775808"),
]


def _grid(draw: Draw, header: list[str], rows: list[list[str]]) -> str:
    """Return a CSV text with some cells, names or marks changed."""
    for _ in range(draw.choice([0, 1, 1, 2, 5])):
        rows[draw.randrange(len(rows))][draw.randrange(len(header))] = draw.choice(_ODD_CELLS)
    how = draw.randrange(12)
    if how == 0:
        header[draw.randrange(len(header))] = draw.choice(header + _ODD_CELLS)
    elif how == 1:
        column = draw.randrange(len(header))
        del header[column]
        for row in rows:
            del row[column]
    elif how == 2:
        rows = draw.choice([[], rows[:1], rows * 3])
    elif how == 3:
        rows[draw.randrange(len(rows))].append("more")
    elif how == 4:
        header = []
    elif how == 5:
        column, value = draw.randrange(len(header)), draw.choice(_ODD_CELLS)
        for row in rows:
            row[column] = value
    mark = draw.choice([",", ",", ",", ",", ";", "\t", "|"])
    end = draw.choice(["\n", "\n", "\n", "\r\n", "\r"])
    return end.join([mark.join(header), *(mark.join(row) for row in rows)]) + end


def _write_text(draw: Draw, path: Path, text: str) -> None:
    encoding = draw.choice(["utf-8"] * 30 + ["latin-1", "utf-16", "utf-8-sig"])
    raw = text.encode(encoding, "replace")
    if draw.random() < 0.05:
        raw = raw.replace(b"1", b"\0", 1)
    if draw.random() < 0.05:
        path = path.with_name(path.name + ".gz")
        raw = gzip.compress(raw) if draw.random() < 0.5 else raw
    path.write_bytes(raw)
    if draw.random() < 0.06 and raw:
        damage(draw, path)


def csv(draw: Draw, folder: Path) -> list[str]:
    """Return a command on a node table and an edge table in CSV."""
    tables = folder / "tables"
    tables.mkdir()
    ids = [draw.choice(["{}", "{:03d}", "n{}"]).format(k) for k in range(12)]
    if draw.random() < 0.85:
        header = ["id", "label", "a", "b", *draw.choice([[], [], ["split"], ["emb"], ["emb"]])]
        words = ["train", "val", "test", ""]
        rows = [
            [one, str(k % 3), f"{k / 7}", str(k), words[k % 4]][: len(header)]
            for k, one in enumerate(ids)
        ]
        _write_text(draw, tables / "nodes.csv", _grid(draw, header, rows))
    header = ["src", "dst", *draw.choice([[], ["w"], ["type"]])]
    rows = [[ids[k % 12], ids[k * 5 % 12], str(k % 2)][: len(header)] for k in range(40)]
    _write_text(draw, tables / "edges.csv", _grid(draw, header, rows))
    return _static_command(draw, "tables")


def _odd_column(draw: Draw, count: int) -> pa.Array:
    """Return a column of a type that tables of graphs seldom have."""
    pool: list[Callable[[], pa.Array]] = [
        lambda: pa.array([{"a": 1}] * count),
        lambda: pa.array([[1, 2]] * count),
        lambda: pa.array([[k] * (k % 3) for k in range(count)]),
        lambda: pa.array([[1.0, None]] * count),
        lambda: pa.array([["a", "b"]] * count),
        lambda: pa.array([[1.0, 2.0]] * count, pa.list_(pa.float32(), 2)),
        lambda: pa.array([[]] * count, pa.list_(pa.float32())),
        lambda: pa.array([None] * count),
        lambda: pa.array([None] * count, pa.int64()),
        lambda: pa.array([b"\xff"] * count),
        lambda: pa.array(["a"] * count).dictionary_encode(),
        lambda: pa.array(range(count)).cast(pa.decimal128(30, 2)),
        lambda: pa.array(range(count)).cast(pa.timestamp("us")),
        lambda: pa.array(range(count), pa.int32()).cast(pa.date32()),
        lambda: pa.array([[("k", 1)]] * count, pa.map_(pa.string(), pa.int64())),
        lambda: pa.array([float("nan")] * count),
        lambda: pa.array([1e300] * count),
        lambda: pa.array([True, None] * (count // 2) + [True] * (count % 2)),
        lambda: pa.array([2**64 - 1] * count, pa.uint64()),
        lambda: pa.array([1e17 + k for k in range(count)]),
        lambda: pa.array([str(k) for k in range(count)]),
        lambda: pa.array(["1", "x"] * (count // 2) + ["2"] * (count % 2)),
        lambda: pa.array([-1] * count),
        lambda: pa.array([0.5] * count),
        lambda: pa.array([[[1]]] * count),
    ]
    return draw.choice(pool)()


def _write_parquet(draw: Draw, path: Path, columns: dict[str, pa.Array]) -> None:
    count = len(next(iter(columns.values())))
    names, arrays = list(columns), list(columns.values())
    for _ in range(draw.choice([0, 1, 1, 2])):
        arrays[draw.randrange(len(arrays))] = _odd_column(draw, count)
    how = draw.randrange(10)
    if how == 0:
        names.append(draw.choice(names))
        arrays.append(draw.choice(arrays))
    elif how == 1:
        names.append(draw.choice(["", "__index_level_0__", "y", "split", "é"]))
        arrays.append(_odd_column(draw, count))
    elif how == 2:
        arrays = [array.slice(0, 0) for array in arrays]
    elif how == 3:
        del names[0], arrays[0]
    pq.write_table(pa.table(arrays, names=names), path)
    if draw.random() < 0.08:
        damage(draw, path)


def parquet(draw: Draw, folder: Path) -> list[str]:
    """Return a command on a node table and an edge table in Parquet."""
    tables = folder / "tables"
    tables.mkdir()
    ids = pa.array([f"n{k}" for k in range(12)] if draw.random() < 0.3 else list(range(12)))
    nodes = {
        "id": ids,
        "label": pa.array([k % 3 for k in range(12)]),
        "a": pa.array([k / 7 for k in range(12)]),
        "b": pa.array(range(12)),
    }
    if draw.random() < 0.85:
        _write_parquet(draw, tables / "nodes.parquet", nodes)
    ends = [pa.array([k * step % 12 for k in range(40)]) for step in (1, 5)]
    edges = {"src": ids.take(ends[0]), "dst": ids.take(ends[1])}
    edges |= draw.choice([{}, {"w": pa.array(range(40))}, {"type": pa.array([1] * 40)}])
    _write_parquet(draw, tables / "edges.parquet", edges)
    return _static_command(draw, "tables")


def events(draw: Draw, folder: Path) -> list[str]:
    """Return a command on timed events as CSV, Parquet or npz."""
    kind = draw.choice(["npz", "npz", "csv", "parquet"])
    flags = draw.choice([[], [], ["--window", draw.choice(["3", "0", "1e9", "5e", "x", "each"])]])
    if kind == "npz":
        _save_npz(draw, folder / "events.npz", _event_arrays(draw))
    elif kind == "csv":
        header = ["src", "dst", "time", *draw.choice([[], ["weight"], ["label"]])]
        rows = [[str(k % 9), str(k * 4 % 9), str(k), str(k % 2)][: len(header)] for k in range(60)]
        _write_text(draw, folder / "events.csv", _grid(draw, header, rows))
    else:
        columns = {
            "src": pa.array([k % 9 for k in range(60)]),
            "dst": pa.array([k * 4 % 9 for k in range(60)]),
            "time": pa.array(range(60)),
            "weight": pa.array([1.0] * 60),
            "label": pa.array([k % 2 for k in range(60)]),
        }
        _write_parquet(draw, folder / "events.parquet", columns)
    return ["train", f"events.{kind}", *_EVENTS, *flags]


def _event_arrays(draw: Draw) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "src": generator.integers(0, N, E),
        "dst": generator.integers(0, N, E),
        "t": np.arange(E) // 10,
        "weight": np.ones(E),
        "edge_label": np.arange(E) % 2,
    }
    more: dict[str, Any] = {
        "num_nodes": np.array(N),
        "node_id": np.arange(N),
        "y": np.arange(N) % 3,
        "num_classes": np.array(3),
        "class_names": np.array(["a", "b", "c"]),
        "edge_label_names": np.array(["no", "yes"]),
        "x": np.ones((N, 3), np.float32),
        "signal": np.ones((9, N), np.float32),
        "node_feat": np.ones((9, N, 2), np.float32),
        "node_time": np.arange(N),
    }
    for name in draw.sample(list(more), draw.randrange(4)):
        arrays[name] = more[name]
    for _ in range(draw.choice([0, 1, 1, 1, 2])):
        name = draw.choice(list(arrays))
        arrays[name] = odd_array(draw, arrays[name])
    if draw.random() < 0.1:
        del arrays[draw.choice(list(arrays))]
    return arrays


MAKERS: dict[str, Maker] = {
    "npz": npz,
    "csv": csv,
    "parquet": parquet,
    "events": events,
}
