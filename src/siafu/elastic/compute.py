"""The functions a worker may be asked for, by name; nothing else can be run on one."""

from collections.abc import Callable

from siafu.elastic.task import Fact, Tensors
from siafu.errors import TaskError

Compute = Callable[[dict[str, Fact], Tensors], Tensors]


def ping(facts: dict[str, Fact], tensors: Tensors) -> Tensors:
    """Return the tensors as they came: the cost of a task that does nothing."""
    return {f"out_{name}": tensor.clone() for name, tensor in tensors.items()}


CODES: dict[str, Compute] = {"ping": ping}


def compute(code: str, facts: dict[str, Fact], tensors: Tensors) -> Tensors:
    """Return what a task's function makes of its tensors; raise TaskError for an unknown one."""
    if code not in CODES:
        raise TaskError("The task names unknown code.", seen=code, fix="use matching versions")
    return CODES[code](facts, tensors)
