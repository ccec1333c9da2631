"""The image of the function can be built: its base runs the wheels that are pinned."""

import re
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAMBDA = ROOT / "packaging" / "lambda"
GLIBC_OF_BASE = {"3.11": (2, 26), "3.12": (2, 34), "3.13": (2, 34), "3.14": (2, 34)}
"""By the Python of AWS's image: Amazon Linux 2 until 3.11, Amazon Linux 2023 from 3.12 on."""
OLD_NAMES = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}


def least_glibc(wheel: str) -> tuple[int, int]:
    """Return the oldest glibc that a wheel runs on, from its tags; (0, 0) where it needs none."""
    found = [
        (int(a), int(b)) for a, b in re.findall(r"^Tag: .*manylinux_(\d+)_(\d+)_", wheel, re.M)
    ]
    found += [glibc for name, glibc in OLD_NAMES.items() if f"{name}_" in wheel]
    return min(found, default=(0, 0))


def packages() -> list[str]:
    lines = (LAMBDA / "requirements.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")] + ["llvmlite"]


def base_python() -> str:
    match = re.search(
        r"^FROM amazon/aws-lambda-python:(\S+)$", (LAMBDA / "Dockerfile").read_text(), re.M
    )
    assert match is not None
    return match[1]


@pytest.mark.parametrize("name", packages())
def test_base_of_the_image_has_the_glibc_that_pinned_wheels_need(name: str) -> None:
    pinned = re.search(rf"(?im)^{name}==(\S+)$", (ROOT / "constraints.txt").read_text())
    found = metadata.distribution(name)
    assert pinned is not None
    assert found.version.split("+")[0] == pinned[1], "not the wheel that is pinned"
    assert least_glibc(found.read_text("WHEEL") or "") <= GLIBC_OF_BASE[base_python()]


def test_glibc_is_read_from_a_wheels_tags() -> None:
    tags = "Tag: cp311-cp311-manylinux_2_27_x86_64\nTag: cp311-cp311-manylinux_2_28_x86_64\n"
    assert least_glibc(tags) == (2, 27)
    assert least_glibc("Tag: cp36-abi3-manylinux2010_x86_64\n") == (2, 12)
    assert least_glibc("Tag: py3-none-any\n") == (0, 0)


def test_base_has_a_python_that_siafu_supports() -> None:
    asked = re.search(r'requires-python = ">=(\d+)\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert asked is not None
    major, minor = base_python().split(".")
    assert (int(major), int(minor)) >= (int(asked[1]), int(asked[2]))
