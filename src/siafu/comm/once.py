"""A property that is computed when it is first read, by ranks together where it takes messages."""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

Value = TypeVar("Value")


class ComputedOnce(Generic[Value]):
    """Decorates a method into such a property.

    Python's `cached_property` holds a lock of its class while it computes, up to 3.11: ranks that
    are threads of one process would wait for it, and it for them.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute, self._name = compute, compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...

    @overload
    def __get__(self, owner: object, kind: type) -> Value: ...

    def __get__(self, owner: object | None, kind: type) -> Any:
        """Return the value, which takes this property's place in its owner."""
        if owner is None:
            return self
        value = owner.__dict__[self._name] = self._compute(owner)
        return value
