"""The rows and files a run writes, and how its progress is shown."""

from siafu.record.progress import PhaseProgress, ProgressLine
from siafu.record.run_folder import RunFolder, environment, installed

__all__ = ["PhaseProgress", "ProgressLine", "RunFolder", "environment", "installed"]
