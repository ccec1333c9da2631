"""Code blocks of documents, and how they are run: in this process, ranks in the tests' pool."""

import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.command import Command

ROOT = Path(__file__).parents[2]
EPOCHS = 2
"""What lines without a number of epochs are given: they are to work as they stand, and that 200
epochs lead somewhere is asked by others (tests/parity/test_curves.py, tests/unit/launch)."""
SMALLER = {"examples/fraud/make_data.py": ["--customers", "2000", "--transactions", "20000"]}
FENCE = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]+?) -->\n)?"
    r"^```(?P<language>bash|python)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a document."""

    language: str
    text: str
    line: int
    reason: str | None
    """Why it is not run; None where it is."""


def blocks_of(path: Path) -> list[Block]:
    """Return the code blocks of a document in order."""
    text = path.read_text()
    return [
        Block(
            found["language"], found["text"], text[: found.start()].count("\n") + 1, found["reason"]
        )
        for found in FENCE.finditer(text)
    ]


def commands_of(text: str) -> list[tuple[str, int]]:
    """Return the lines of a bash block with their exit codes: 2 below a comment `# fails: ...`."""
    found, code = [], 0
    for line in text.splitlines():
        if line.startswith("#"):
            code = 2 if line.startswith("# fails:") else code
        elif line.strip():
            found.append((line.split(" #")[0].strip(), code))
            code = 0
    return found


def shortened(line: str, *, smaller: bool = True) -> str:
    """Return a line that trains, on a smaller graph and for few epochs unless it names them."""
    if " train " not in line:
        return line
    if smaller:
        line = re.sub(r" (planted|drifting) ", r" \1:400 ", f"{line} ")
    line += "" if "--epochs" in line else f" --epochs {EPOCHS}"
    if "dorylus" in line and "--pool none" not in line:  # each worker is a process
        line = line.replace("--ranks 2", "--ranks 1") + " --pool-workers 1 --intervals 2"
    return line


def run_commands(block: Block, siafu: Command, *, smaller: bool = True) -> None:
    """Run each line of a bash block as `siafu` here; blocks with others are marked as not run."""
    for line, code in commands_of(block.text):
        program, *arguments = shlex.split(shortened(line, smaller=smaller))
        if program == "python" and arguments[0].startswith("examples/"):
            _run_example(line, arguments, siafu.here)
            continue
        assert program == "siafu", f"line {block.line}: mark the block `<!-- not run: why -->`"
        if arguments == ["demo"]:
            arguments += ["--epochs", str(EPOCHS), "--ranks", "2"]
        if "--memory" in arguments:
            # What this process holds after thousands of tests would count.
            _run_apart(line, arguments, code, siafu.here)
            continue
        # Ranks of the pool work in another folder.
        answer = siafu(*(str(Path(a).absolute()) if ".py:" in a else a for a in arguments))
        assert answer.code == code, f"{line}\n{answer.out}\n{answer.err}"


def _run_example(line: str, arguments: list[str], folder: Path) -> None:
    """Run a script of `examples/`, on smaller data where it makes some."""
    script, *rest = arguments
    rest += SMALLER.get(script, []) if len(rest) == 1 else []
    command = [sys.executable, str(ROOT / script), *rest]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


def _run_apart(line: str, arguments: list[str], code: int, folder: Path) -> None:
    command = [sys.executable, "-m", "siafu", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, f"{line}\n{done.stdout}\n{done.stderr}"


def run_python(block: Block, names: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run a Python block after those before it, and return all names."""
    text = re.sub(
        r"siafu\.fit\((?!.*epochs=)(.*)\)", rf"siafu.fit(\1, epochs={EPOCHS})", block.text
    ).replace('"planted"', '"planted:400"')
    file = folder / f"block_{block.line}.py"
    file.write_text("\n" * block.line + text)
    return runpy.run_path(str(file), init_globals=names)
