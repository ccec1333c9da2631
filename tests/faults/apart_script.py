"""Trains, goes on twice and infers as one of torchrun's two ranks, of which only rank 0 has a run.

`python apart_script.py FOLDER`; ranks work in folders of their own there.
"""

import json
import os
import sys
from pathlib import Path

import siafu
from siafu.cli.main import main
from siafu.launch import apart

SETTINGS = ("planted:300", "--model", "sage", "--partition", "hash", "--threads", "1", "--quiet")


def run_command(*arguments: str) -> None:
    """Call the command line, which ends by an exit."""
    sys.argv = ["siafu", *arguments]
    try:
        main()
    except SystemExit as error:
        if error.code:
            raise RuntimeError(f"{arguments} ended with {error.code}") from error


if __name__ == "__main__":
    rank = int(os.environ["RANK"])
    here = Path(sys.argv[1]) / f"disk{rank}"
    here.mkdir()
    os.chdir(here)
    # One machine has both disks: the other's is taken for one that is not there.
    apart._seen = lambda *rest: [True, False]
    seen = apart._digest
    apart._digest = lambda folder: "" if rank else seen(folder)

    run_command("train", *SETTINGS, "--out", "run", "--epochs", "2", "--deadline", "77")
    siafu.resume("run", epochs=3, quiet=True)
    run_command("train", *SETTINGS, "--out", "run", "--epochs", "5", "--resume", "auto")
    table = siafu.infer("run", quiet=True)
    Path("rows.json").write_text(json.dumps(table.num_rows))
    assert rank == 0 or not Path("run").exists()
