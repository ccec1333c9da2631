"""What editors complete is what settings there are: the types of arguments are written from them.

After a change of settings: python -m tests.docs.test_surface
"""

import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import pytest

import siafu
from siafu.config import OWNERS, RunConfig, settings_of
from siafu.config.run import SEVERAL
from siafu.errors import SiafuError
from siafu.ingest.options import TableColumns
from siafu.partitioning.options import ColumnOptions

FILE = Path(siafu.__file__).parent / "launch" / "settings.py"
APART = ("data", "nodes")
"""What functions have arguments of their own for."""
HEAD = '''"""Settings as arguments, by name and type: what editors complete and type checkers know.

Written from the options by `python -m tests.docs.test_surface`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from torch import nn
'''


def typed(kind: Any) -> str:
    """Return an annotation as it is written."""
    if get_origin(kind) in (Union, UnionType):
        return " | ".join(typed(one) for one in get_args(kind))
    if get_origin(kind) is Literal:
        return f"Literal[{', '.join(map(_quoted, get_args(kind)))}]"
    return "None" if kind is NoneType else kind.__name__


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def field(name: str) -> str:
    kind = typed(RunConfig.model_fields[name].annotation)
    if name in SEVERAL:
        numbers = {"split": "float", "class_weights": "float", "fanout": "int"}
        inside = numbers.get(name, "str")
        kind = f"str | Sequence[{inside}]{kind.removeprefix('str')}"
    if name == "schema":
        kind = f"str | Path | dict[str, Any]{kind.removeprefix('str')}"
    if name == "out":
        kind = f"str | Path{kind.removeprefix('str')}"
    if name == "model":
        kind = "str | type[nn.Module] | nn.Module | Callable[..., nn.Module]"
    if name == "loss":
        kind = f"{kind.removesuffix(' | None')} | Callable[..., Any] | None"
    told = textwrap.fill(
        f'"""{RunConfig.model_fields[name].description}."""',
        width=100,
        initial_indent=" " * 4,
        subsequent_indent=" " * 4,
        break_on_hyphens=False,
    )
    return f"    {name}: {kind}\n{told}\n"


def settings_file() -> str:
    """Return the module with the types of all settings."""
    columns = [*settings_of(TableColumns), *settings_of(ColumnOptions)]
    others = [name for owner in OWNERS for name in settings_of(owner) if name not in columns]
    text = HEAD
    for title, base, told, names in (
        ("Columns", "TypedDict", "What the columns of tables are.", columns),
        ("Settings", "Columns", "All settings of a training.", others),
    ):
        fields = "".join(field(name) for name in names if name not in APART)
        text += f'\n\nclass {title}({base}, total=False):\n    """{told}"""\n\n{fields}'
    return text


def test_the_types_of_arguments_are_those_of_the_settings() -> None:
    kept, made = FILE.read_text(), settings_file()
    laid_out = re.compile(r"[\s,()]")  # as ruff does it
    assert laid_out.sub("", kept) == laid_out.sub("", made), (
        "settings have changed: run `python -m tests.docs.test_surface`"
    )


@pytest.mark.parametrize("name", ["fit", "load", "partition", "infer"])
def test_every_argument_is_told_by_the_signature(name: str) -> None:
    told = inspect.signature(getattr(siafu, name)).parameters
    assert {"label", "node_id", "nodes"} <= set(told)
    assert all(one.kind is not one.VAR_KEYWORD for one in told.values())
    if name == "fit":
        assert set(RunConfig.model_fields) <= set(told)
        assert told["epochs"].default == 200


def test_a_wrong_name_is_told_with_the_right_one() -> None:
    with pytest.raises(SiafuError, match="epochs"):
        siafu.fit("planted", epoch=3)
    with pytest.raises(SiafuError, match="label"):
        siafu.load("planted", lable="a")


def write_settings_file() -> None:
    """Write the types of the settings there are now."""
    FILE.write_text(settings_file())
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", FILE], check=True)
