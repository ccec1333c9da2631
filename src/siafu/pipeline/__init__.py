"""An epoch as tasks on intervals of vertices: graph tasks on the rank, tensor tasks in a pool."""

from siafu.pipeline.pipeline import Pipeline
from siafu.pipeline.settings import Settings

__all__ = ["Pipeline", "Settings"]
