"""Tensor tasks as pure functions, pools of stateless workers that run them, and what they cost."""

from siafu.collector import collector_rests

with collector_rests():  # every worker begins here
    from siafu.elastic.compute import compute
    from siafu.elastic.node_part import (
        PartFacts,
        Question,
        answer_shape,
        draws_on_input,
        inspect_parts,
    )
    from siafu.elastic.pools.pool import Deliver, LocalPool, Pool
    from siafu.elastic.task import Bundle, Fact, Reply, Task, Tensors, Usage
    from siafu.elastic.tensors import decode_rows, encode_rows

__all__ = [
    "Bundle",
    "Deliver",
    "Fact",
    "LocalPool",
    "PartFacts",
    "Pool",
    "Question",
    "Reply",
    "Task",
    "Tensors",
    "Usage",
    "answer_shape",
    "compute",
    "decode_rows",
    "draws_on_input",
    "encode_rows",
    "inspect_parts",
]
