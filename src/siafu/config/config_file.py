"""Settings of a run as a file: YAML or TOML in, YAML out."""

from pathlib import Path
from typing import Any

import yaml

from siafu.config.run import RENAMED, RunConfig
from siafu.files import write_text_atomically
from siafu.options import read_config


def write_config(config: RunConfig, path: Path) -> None:
    """Write the settings, at once, as YAML that `read_config` takes back."""
    text = yaml.safe_dump(config.model_dump(exclude_none=True), sort_keys=False)
    write_text_atomically(path, text)


def read_run_config(path: Path) -> dict[str, Any]:
    """Return the settings that a run noted, by the names they have now."""
    return {RENAMED.get(name, name): value for name, value in read_config(path).items()}
