"""The order of classes, told before a run: predictions and weights of classes go by it."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from siafu.graph import Array, class_rows, count_classes
from siafu.partition import open_parts
from siafu.record import shortened


def told_classes(
    labels: Iterable[Array], names: Sequence[str | int], what: str = "Classes"
) -> list[str]:
    """Return a line with the classes in order; none where they have no names of their own."""
    if all(name == number for number, name in enumerate(names)):
        return []
    rows = class_rows(count_classes(labels, len(names)), names)
    return [f"{what}: {shortened(rows)}."]


def told_classes_of_parts(path: Path) -> list[str]:
    """Return the line of the classes of a parts folder."""
    parts = open_parts(path)
    found = (parts.part(number).load_if_present("y") for number in range(parts.num_parts))
    names = parts.facts["graph"].get("class_names", ())
    return told_classes((labels for labels in found if labels is not None), names)
