"""The notebooks run from the first cell to the last, and are kept without outputs."""

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks: pip install 'siafu[test]'")
nbclient = pytest.importorskip("nbclient", reason="notebooks: pip install 'siafu[test]'")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))
SECONDS = 600
"""Of a cell, on a busy machine."""


def test_there_are_two_notebooks() -> None:
    assert len(NOTEBOOKS) == 2


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_no_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)
    assert all(cell.get("execution_count") is None for cell in notebook.cells)


@pytest.mark.filterwarnings("ignore")  # of Jupyter's own packages
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", resources=place
    ).execute()
