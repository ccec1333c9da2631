"""Every command of the README and every example runs, on data made here."""

import re
import runpy
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import siafu
from siafu.partitioning import partition_graph
from tests.command import Command
from tests.docs.pages import Block, blocks_of, run_commands, run_python

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
BIN = Path(sys.executable).parent
SECONDS = 180
EPOCHS = 3
"""Of lines without a number of epochs that run as processes of their own."""
REAL = ("siafu doctor", "torchrun")
"""Lines that start processes; others are called in this one, their ranks in the tests' pool.
Ranks that siafu starts by itself are those of tests/faults and of the demo (test_wheel.py)."""


def lines() -> list[tuple[int, str]]:
    """Return the README's commands after `make`, each with the line of its block."""
    found = [
        (block.line, line.split(" #")[0].strip())
        for block in blocks_of(README)
        if block.language == "bash"
        for line in block.text.splitlines()
    ]
    # Two machines show what four ranks on them would, with one rank each.
    fewer = {"my.parts --parts 4": "my.parts --parts 2", "--nproc-per-node 2": "--nproc-per-node 1"}
    for more, less in fewer.items():
        found = [(at, line.replace(more, less)) for at, line in found]
    return [(at, line) for at, line in found if line.startswith(("siafu", "torchrun"))]


@pytest.fixture(scope="module")
def folder(user_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder that all tests of this file share."""
    return Path(shutil.copytree(user_data, tmp_path_factory.mktemp("readme") / "user"))


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


def run_as_processes(line: str, folder: Path) -> None:
    few = f"{line} --epochs {EPOCHS}" if " train " in line else line
    words = [str(BIN / few.split()[0]), *few.split()[1:]]
    if line.startswith("torchrun"):
        run_on_two_hosts(words, folder)
    else:
        run(words, folder)


def test_readme_names_the_commands() -> None:
    verbs = {line.split()[1] for _, line in lines() if line.startswith("siafu")}
    assert verbs >= {"doctor", "train", "partition", "infer"}
    text = README.read_text()
    assert "make test" in text
    assert "make test" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.usefixtures("runs_on_pool")
def test_readme_commands_run_in_order(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    for at, line in lines():
        if line.startswith(REAL):
            run_as_processes(line, folder)
        else:
            block = Block("bash", line, at, None)
            # A line after it names the run of this graph.
            run_commands(block, Command(folder, monkeypatch, capsys), smaller=False)
    assert (folder / "out" / "part3.parquet").exists()


@pytest.mark.usefixtures("runs_on_pool")
def test_readme_python_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for block in blocks_of(README):
        if block.language == "python":
            assert "test" in run_python(block, {}, folder)["run"].score


def test_readme_diff_is_that_of_the_examples() -> None:
    shown = re.findall(r"```diff\n(.*?)```", README.read_text(), flags=re.DOTALL)[0].splitlines()
    before, after = (
        {line.strip() for line in (ROOT / "examples" / name).read_text().splitlines()}
        for name in ("01_one_process.py", "02_many_ranks.py")
    )
    assert {line[1:].strip() for line in shown if line.startswith("-")} <= before - after
    added = [line[1:].strip() for line in shown if line.startswith("+")]
    assert len(added) == 6
    ways_out = {"import sys", "if len(sys.argv) != 2:", "sys.exit(__doc__)"}
    assert set(added) == {line for line in after - before - ways_out if _is_code(line)}


def _is_code(line: str) -> bool:
    return not line.startswith(('"""', "siafu ", "torchrun "))


def test_documents_name_files_that_exist() -> None:
    """Links between pages of the site are checked where it is built."""
    documents = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")]
    missing = [
        f"{path.name}: {target}"
        for path in documents
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text())
        if not target.startswith("http") and not (ROOT / target).exists()
    ]
    assert not missing


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


@pytest.mark.parametrize("example", ["03_minibatches.py", "04_fabric.py"])
def test_minibatch_example_learns(folder: Path, planted_parts: str, example: str) -> None:
    if example == "04_fabric.py":
        pytest.importorskip("lightning")
    torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"]
    said = run([*torchrun, str(ROOT / "examples" / example), planted_parts], folder)
    scores = [float(line.split()[-1]) for line in said.splitlines() if line.startswith("epoch")]
    assert len(scores) == 5
    assert scores[-1] > max(0.6, scores[0])
