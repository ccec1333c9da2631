"""Settings of a run as a file: YAML or TOML in, YAML out."""

import tomllib
from pathlib import Path
from typing import Any

import yaml

from siafu.config.run import RunConfig
from siafu.errors import ConfigError
from siafu.files import read_regular, write_text_atomically

_MOST_BYTES = 1 << 20


def read_config(path: Path) -> dict[str, Any]:
    """Return the settings of a YAML or TOML file, unchecked."""
    try:
        text = read_regular(path, most_bytes=_MOST_BYTES).decode()
        settings = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        told = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ConfigError(
            "The config file can't be read.", seen=f"{path}: {told}", fix="check path and syntax"
        ) from error
    if not isinstance(settings, dict):
        raise ConfigError(
            "The config file holds no settings.", seen=str(path), fix="write lines as `key: value`"
        )
    return {str(key): value for key, value in settings.items()}


def write_config(config: RunConfig, path: Path) -> None:
    """Write the settings, at once, as YAML that `read_config` takes back."""
    text = yaml.safe_dump(config.model_dump(exclude_none=True), sort_keys=False)
    write_text_atomically(path, text)
