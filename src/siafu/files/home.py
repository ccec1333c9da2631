"""Where siafu keeps what it can make again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return where downloads and stores made from tables are kept."""
    common = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SIAFU_CACHE") or Path(common) / "siafu")
