"""Siafu's function for the emulator, with code that never ends."""

import os
import time
from pathlib import Path
from typing import Any

from siafu.elastic.aws_lambda.handler import handler
from siafu.elastic.compute import CODES

__all__ = ["handler"]


def hang(facts: Any, tensors: Any) -> Any:
    """Leave a file that says that the task is here, and do nothing for long."""
    Path(os.environ["SIAFU_TEST_MARK"]).touch()
    time.sleep(600)


CODES["hang"] = hang
