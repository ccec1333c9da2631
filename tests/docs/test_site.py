"""The site of the documents builds without a warning, and its reference has every public name."""

import os
import re
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path

import pytest
import yaml

import siafu

ROOT = Path(__file__).parents[2]
API = (ROOT / "docs" / "reference" / "api.md").read_text()


@pytest.mark.skipif(
    not (util.find_spec("mkdocs") and util.find_spec("mkdocstrings")),
    reason="the site: pip install 'siafu[docs]'",
)
def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "reference" / "api" / "index.html").read_text()
    missing = [name for name in siafu.__all__ if f'id="siafu.{name}"' not in reference]
    assert not missing
    # Pages are read without a network: nothing is loaded from elsewhere.
    assert not re.findall(
        r'<(?:script|link)[^>]*(?:src|href)="https?://[^"]*\.(?:js|css)', reference
    )


def test_reference_has_every_public_name_with_an_example() -> None:
    """A new name of `siafu.__all__` gets a heading, an example that uses it and its docstring."""
    for name in siafu.__all__:
        section = re.search(rf"^### {name}\n(.*?)(?=^##|\Z)", API, re.DOTALL | re.MULTILINE)
        assert section, f"docs/reference/api.md: no section `### {name}`"
        assert f"::: siafu.{name}" in section[1], f"{name}: no docstring"
        example = re.search(r"```python\n(.*?)```", section[1], re.DOTALL)
        assert example, f"{name}: no example"


def test_reference_has_no_other_names() -> None:
    assert set(re.findall(r"^::: siafu\.(\w+)$", API, re.MULTILINE)) == set(siafu.__all__)


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert not {page for page in pages if f": {page}" not in text}
    assert yaml.safe_load(text)["theme"]["font"] is False


def test_version_is_the_same_everywhere() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version is not None
    released = re.findall(
        r"^## (\d+\.\d+\.\d+) - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.M
    )
    assert released[0] == version[1]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version[1]
    assert metadata.version("siafu") == version[1]
