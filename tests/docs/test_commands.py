"""Every command of the README and every example runs, on data made here."""

import re
import runpy
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import siafu
from siafu.partitioning import partition_graph

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SECONDS = 180
EPOCHS = 10
"""What lines without a number of epochs are given: they are to work as they stand, and that 200
epochs lead somewhere is asked by others (tests/parity/test_curves.py, tests/unit/launch)."""


def blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def commands() -> list[str]:
    lines = [line.split(" #")[0].strip() for block in blocks("bash") for line in block.splitlines()]
    return [line for line in lines if line.startswith(("siafu", "torchrun"))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: tables with text ids, an npz and a model of their own."""
    place = tmp_path_factory.mktemp("user")
    graph = siafu.load("planted:400")
    ids = np.array([f"v{number}" for number in range(graph.num_nodes)])
    src, dst = graph.edge_index()
    split = np.select([graph.train, graph.val], ["train", "val"], "test")
    columns = {f"x{k}": graph.x[:, k] for k in range(graph.num_features)}
    (place / "my_data").mkdir()
    pq.write_table(
        pa.table({"id": ids, "label": graph.y, "split": split, **columns}),
        place / "my_data" / "nodes.parquet",
    )
    pq.write_table(
        pa.table({"src": ids[src], "dst": ids[dst]}), place / "my_data" / "edges.parquet"
    )
    np.savez(
        place / "cora.npz",
        edge_index=graph.edge_index().astype(np.int32),
        x=graph.x,
        y=graph.y,
        num_classes=graph.num_classes,
        symmetric=1,
        train_mask=graph.train,
        val_mask=graph.val,
        test_mask=graph.test,
    )
    shutil.copy(ROOT / "examples" / "net.py", place / "my_model.py")
    days = np.sort(np.random.default_rng(0).integers(0, 200, len(src))) * 86_400
    lines = [f"{s},{d},{day}" for s, d, day in zip(src, dst, days, strict=True)]
    (place / "events.csv").write_text("\n".join(["src,dst,time", *lines]) + "\n")
    return place


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_on_two_hosts(command: list[str], folder: Path) -> None:
    """Run the line twice, as on two machines; only the name of the first host is filled in."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        host = f"localhost:{probe.getsockname()[1]}"
    command = [word.replace("HOST:29400", host) for word in command]
    both = [
        subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(2)
    ]
    for agent in both:
        said, _ = agent.communicate(timeout=SECONDS)
        assert agent.returncode == 0, f"{' '.join(command)}\n{said}"


def test_readme_names_the_commands() -> None:
    verbs = {line.split()[1] for line in commands() if line.startswith("siafu")}
    assert verbs >= {"doctor", "train", "partition", "infer"}


def shortened(line: str) -> str:
    """Return a line that trains, with few epochs unless it names their number."""
    return f"{line} --epochs {EPOCHS}" if " train " in line and "--epochs" not in line else line


def test_readme_commands_run_in_order(folder: Path) -> None:
    for line in map(shortened, commands()):
        words = [str(BIN / line.split()[0]), *line.split()[1:]]
        if line.startswith("torchrun"):
            run_on_two_hosts(words, folder)
        else:
            run(words, folder)
    assert (folder / "out" / "part3.parquet").exists()


def test_readme_python_runs(folder: Path) -> None:
    for block in blocks("python"):
        assert "siafu.fit(graph, " in block
        short = block.replace("siafu.fit(graph, ", f"siafu.fit(graph, epochs={EPOCHS}, ")
        assert "test" in run([sys.executable, "-c", short], folder)


@pytest.fixture(scope="module")
def planted_parts(folder: Path) -> str:
    """The parts that the examples name."""
    partition_graph(siafu.load("planted"), folder / "planted.parts", num_parts=2)
    return "planted.parts"


def test_two_examples_print_the_same_losses(folder: Path, planted_parts: str) -> None:
    one = run([sys.executable, "-W", "ignore", str(ROOT / "examples/01_one_process.py")], folder)
    torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"]
    many = run([*torchrun, str(ROOT / "examples/02_many_ranks.py"), planted_parts], folder)
    pairs = [
        [float(line.split()[-1]) for line in text.splitlines() if line.startswith("epoch")]
        for text in (one, many)
    ]
    assert len(pairs[0]) == 4
    # float32 through batch norm and attention: sums in another order, twenty epochs apart.
    assert pairs[1] == pytest.approx(pairs[0], abs=1e-4)


@pytest.mark.parametrize("example", ["02_many_ranks.py", "03_minibatches.py"])
def test_examples_without_parts_say_how_to_get_them(
    example: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.setattr(sys, "argv", [example])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(ROOT / "examples" / example))
    assert "siafu partition planted" in str(caught.value)
    assert f"examples/{example} planted.parts" in str(caught.value)


def test_minibatch_example_learns(folder: Path, planted_parts: str) -> None:
    torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"]
    said = run([*torchrun, str(ROOT / "examples/03_minibatches.py"), planted_parts], folder)
    scores = [float(line.split()[-1]) for line in said.splitlines() if line.startswith("epoch")]
    assert len(scores) == 5
    assert scores[-1] > max(0.6, scores[0])
