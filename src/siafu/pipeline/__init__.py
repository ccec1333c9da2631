"""An epoch as tasks on intervals of nodes: graph tasks on the rank, tensor tasks in a pool."""

from siafu.pipeline.passage import most_age
from siafu.pipeline.pipeline import Pipeline

__all__ = ["Pipeline", "most_age"]
