"""What the answers that a run noted say, in few words."""

from typing import Any


def unpredicted(result: dict[str, Any]) -> tuple[int, list[str]]:
    """Return how many classes there are, and those that test nodes have and no answer names.

    Told by the matrix of what was taken for what, which runs of very many classes have not.
    """
    quality = result.get("quality") or {}
    matrix = (quality.get("test") or {}).get("confusion") or []
    names = quality.get("names") or range(len(matrix))
    named = [sum(column) for column in zip(*matrix, strict=True)]
    rows = zip(names, matrix, named, strict=False)  # of numbers there are names and no matrix
    return len(matrix), [str(name) for name, row, said in rows if sum(row) and not said]
