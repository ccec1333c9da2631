"""What does a first session look like? Runs the commands below and draws what they print.

Run: python -m benchmarks.terminal [--out docs/demo.svg]
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
COMMANDS = ["siafu demo --epochs 40"]
"""Four ranks beside one process."""
COLUMNS = 100
SECONDS_PER_LINE = 0.12


def record(command: str, folder: Path) -> str:
    """Return what a command prints on its terminal, both streams in order, run in a folder."""
    program, *arguments = shlex.split(command)
    path = Path(sys.executable).parent / program
    done = subprocess.run(
        [path, *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": str(COLUMNS), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return done.stdout.replace(f"{path.parent}/", "")


def draw(sessions: dict[str, str]) -> str:
    """Return an SVG of commands and what each printed, whose lines appear one after another."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        for command, printed in sessions.items():
            console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
            console.print(Text.from_ansi(printed.rstrip()))
        svg = console.export_svg(
            title="siafu", theme=MONOKAI, code_format=_without_fonts(), unique_id="demo"
        )
    return _one_after_another(svg)


def _without_fonts() -> str:
    """Return rich's form of a terminal, with fonts of the reader instead of downloaded ones."""
    form = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return form.replace("Fira Code", "ui-monospace, Menlo, Consolas")


def _one_after_another(svg: str) -> str:
    """Return the drawing with a delay for each line; where nothing moves, all lines are seen."""
    rule = (
        "@keyframes appear { from { opacity: 0 } } .demo-matrix text { animation: appear 1ms both }"
    )
    svg = svg.replace("</style>", f"{rule}\n    </style>", 1)

    def delayed(match: re.Match[str]) -> str:
        seconds = SECONDS_PER_LINE * int(match[1])
        return f'clip-path="url(#demo-line-{match[1]})" style="animation-delay:{seconds:.2f}s"'

    return re.sub(r'clip-path="url\(#demo-line-(\d+)\)"', delayed, svg)


def main() -> None:
    """Run the commands in a scratch folder and write the drawing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "demo.svg")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        sessions = {command: record(command, Path(scratch)) for command in COMMANDS}
    drawing = "\n".join(line.rstrip() for line in draw(sessions).splitlines())
    args.out.write_text(f"{drawing}\n")


if __name__ == "__main__":
    main()
