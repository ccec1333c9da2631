"""The public surface, frozen: adding or renaming a flag or a name is a decision, made here too.

After such a decision: python -m tests.docs.test_surface
"""

from pathlib import Path

import siafu
from siafu.cli.main import COMMANDS
from siafu.config import OWNERS, flag_of, settings_of
from tests.docs.test_typed_settings import write_settings_file

FILE = Path(__file__).parent / "surface.txt"


def surface() -> str:
    """Return every command, setting and public name, a line each."""
    lines = [f"siafu {name}" for name in COMMANDS]
    lines += [
        f"siafu train {flag_of(name)}  ({owner.panel})"
        for owner in OWNERS
        for name in settings_of(owner)
        if name != "data"
    ]
    lines += [f"siafu.{name}" for name in siafu.__all__]
    return "\n".join(sorted(lines)) + "\n"


def test_flags_and_public_names_are_those_that_were_decided() -> None:
    assert surface() == FILE.read_text()


if __name__ == "__main__":
    FILE.write_text(surface())
    write_settings_file()
