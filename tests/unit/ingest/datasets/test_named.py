"""Public data sets: the SIAFU_DATA folder, and downloads from a server on this machine."""

import gzip
import hashlib
import io
import os
import socket
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from siafu.errors import DataError
from siafu.ingest import load, load_with_notes
from siafu.ingest.datasets.download import fetch, unpack_archive
from siafu.ingest.datasets.named import NAMED, Home

REAL_DATA = os.environ.get("SIAFU_DATA")


@pytest.fixture(autouse=True)
def _own_places(tmp_path, monkeypatch):
    monkeypatch.setenv("SIAFU_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SIAFU_DATA", raising=False)


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        content = self.server.files.get(self.path)
        self.server.asked.append(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        cut = 10 if self.path.startswith("/cut") else len(content)
        self.wfile.write(content[:cut])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as answers:
        answers.files, answers.asked = {}, []
        answers.url = f"http://127.0.0.1:{answers.server_port}"
        thread = threading.Thread(target=answers.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield answers
        answers.shutdown()
        thread.join()


def _zip(files):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


def _toy_archive():
    files = {
        "toy/raw/edge.csv.gz": "0,1\n1,2\n",
        "toy/raw/num-node-list.csv.gz": "3\n",
        "toy/raw/node-feat.csv.gz": "1,2\n3,4\n5,6\n",
        "toy/raw/node-label.csv.gz": "0\n1\n0\n",
        "toy/split/time/train.csv.gz": "0\n",
        "toy/split/time/valid.csv.gz": "1\n",
        "toy/split/time/test.csv.gz": "2\n",
    }
    return _zip({name: gzip.compress(text.encode()) for name, text in files.items()})


@pytest.mark.parametrize("name", ["cora", "my-set", "my_set"])
def test_files_of_the_data_folder_come_first(tmp_path, monkeypatch, name):
    monkeypatch.setenv("SIAFU_DATA", str(tmp_path))
    for stem in ("cora", "my_set"):
        np.savez(tmp_path / f"{stem}.npz", edge_index=np.array([[0], [1]]), y=np.array([0, 1]))
    assert load(name).num_nodes == 2


def test_data_folder_must_exist(monkeypatch, tmp_path):
    monkeypatch.setenv("SIAFU_DATA", str(tmp_path / "none"))
    with pytest.raises(DataError, match="does not name a folder"):
        load("cora")


def test_sets_published_as_pickles_need_the_data_folder():
    with pytest.raises(DataError, match=r"put cora\.npz .* set SIAFU_DATA"):
        load("cora")


def test_download_becomes_a_store_once(server, monkeypatch, tmp_path):
    server.files["/toy.zip"] = _toy_archive()
    home = Home(f"{server.url}/toy.zip", undirected=True)
    monkeypatch.setitem(NAMED, "ogbn-products", home)
    seen = []
    graph, notes = load_with_notes("ogbn_products", progress=lambda *row: seen.append(row))
    assert (graph.num_nodes, graph.num_edges, graph.num_classes) == (3, 4, 2)
    np.testing.assert_array_equal(graph.val, [False, True, False])
    assert any("Both directions" in note for note in notes)
    assert ("downloading", len(server.files["/toy.zip"]), len(server.files["/toy.zip"])) in seen
    assert load("ogbn-products").num_edges == 4
    assert server.asked == ["/toy.zip"]
    left = sorted(path.name for path in (tmp_path / "cache" / "downloads").iterdir())
    assert left == ["ogbn-products.zip", "ogbn-products.zip.sha256"]


def test_known_sum_is_checked(server, tmp_path):
    server.files["/a"] = b"content"
    right = hashlib.sha256(b"content").hexdigest()
    assert fetch(f"{server.url}/a", tmp_path / "a", sha256=right).read_bytes() == b"content"
    with pytest.raises(DataError, match="wrong checksum"):
        fetch(f"{server.url}/a", tmp_path / "b", sha256="0" * 64)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "a.sha256"]


def test_recorded_sum_finds_later_damage(server, tmp_path):
    server.files["/a"] = b"content"
    fetch(f"{server.url}/a", tmp_path / "a")
    (tmp_path / "a").write_bytes(b"contenT")
    with pytest.raises(DataError, match="wrong checksum"):
        fetch(f"{server.url}/a", tmp_path / "a")


@pytest.mark.parametrize(
    ("path", "reason"), [("/none", "404"), ("/cut", "ended after|IncompleteRead")]
)
def test_failed_downloads_name_the_url_and_leave_nothing(server, tmp_path, path, reason):
    server.files["/cut"] = b"x" * 1_000
    with pytest.raises(DataError, match=reason) as caught:
        fetch(server.url + path, tmp_path / "a")
    assert server.url in str(caught.value)
    assert "SIAFU_DATA" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_offline_is_a_data_error(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(DataError, match="could not be downloaded"):
            fetch(f"http://127.0.0.1:{port}/a", tmp_path / "a", timeout_seconds=2)


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "..\\evil", "C:evil"])
def test_entries_outside_the_archive_are_refused(tmp_path, name):
    (tmp_path / "a.zip").write_bytes(_zip({"good": "1", name: "2"}))
    with pytest.raises(DataError, match="points outside"):
        unpack_archive(tmp_path / "a.zip", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]


def test_broken_archive_is_a_data_error(tmp_path):
    (tmp_path / "a.zip").write_bytes(_toy_archive()[:-40])
    with pytest.raises(DataError, match="can't be read"):
        unpack_archive(tmp_path / "a.zip", tmp_path / "out")


@pytest.mark.parametrize("name", ["cora", "amazon-photo", "ogbn_arxiv_struct"])
def test_real_sets_are_found_by_name(monkeypatch, name):
    stem = name.replace("-", "_")
    if not REAL_DATA or not (Path(REAL_DATA) / f"{stem}.npz").exists():
        pytest.skip(f"needs {stem}.npz in the folder named by SIAFU_DATA")
    monkeypatch.setenv("SIAFU_DATA", REAL_DATA)
    assert load(name).train is not None
