"""Files of settings, in place of data on the command line."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from siafu.config import is_asked, make_config, read_config, read_run_config
from siafu.errors import ConfigError
from siafu.record import RunFolder

SUFFIXES = (".yaml", ".yml", ".toml")


def settings_in(path: Path, *, again: bool = False) -> dict[str, Any]:
    """Return the settings of a file; `again`: those of a run that is to be repeated elsewhere."""
    settings = read_run_config(path)
    if again and _is_of_a_run(path):
        settings.pop("out", None)
    return settings


def _is_of_a_run(path: Path) -> bool:
    folder = RunFolder(path.parent)
    return path.name == folder.config.name and folder.environment.exists()


def holds_settings(data: str) -> bool:
    """Return whether a file says what data is to be trained on, as files of settings do."""
    with suppress(ConfigError):
        return data.endswith(SUFFIXES) and "data" in read_config(Path(data))
    return False


def settings_among(path: Path, known: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return those settings of a file that are known, and the names of others that say something.

    All of them are checked.
    """
    settings = settings_in(path)
    config = make_config(**settings)
    others = [name for name in settings if name not in known and is_asked(config, name)]
    return {name: settings[name] for name in settings if name in known}, others
