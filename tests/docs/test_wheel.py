"""A wheel is built, installed into an empty environment, and works there."""

import subprocess
import sys
import venv
import zipfile
from importlib import util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 180


def call(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    if not util.find_spec("hatchling"):
        pytest.skip("building a wheel: pip install 'siafu[test]'")
    place = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place, cwd=ROOT)
    return next(place.glob("siafu-*.whl"))


@pytest.fixture(scope="module")
def empty(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel alone; its dependencies are those of the tests' environment."""
    place = tmp_path_factory.mktemp("empty")
    venv.create(place, with_pip=False)
    site = next(place.glob("lib/python3*/site-packages"))
    pip = (sys.executable, "-m", "pip", "--python", place / "bin" / "python")
    call(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=place)
    # Below what is installed here, and without the editable siafu, whose `.pth` is not read there.
    packages = [path for path in sys.path if path.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(packages) + "\n")
    return place


def test_wheel_has_types_prices_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "siafu/py.typed" in names
    assert "siafu/plan/prices.toml" in names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "docs/"))]


def test_installed_wheel_is_found_and_trains(empty: Path) -> None:
    python, siafu = empty / "bin" / "python", empty / "bin" / "siafu"
    assert call(python, "-c", "import siafu; print(siafu.__file__)", cwd=empty).startswith(
        str(empty)
    )
    assert "train" in call(siafu, "--help", cwd=empty)
    assert call(siafu, "--version", cwd=empty).splitlines()[0].endswith("0.1.0")
    assert "the same" in call(siafu, "demo", "--ranks", "2", "--epochs", "2", cwd=empty)
