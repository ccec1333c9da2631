"""What a person who looks at the scores of a run would warn of, once it has ended."""

from pathlib import Path
from typing import Any

from siafu.graph import folder_kind
from siafu.launch.warnings import node_classes
from siafu.partitioning import open_parts
from siafu.record import percent, shortened, unpredicted

_FEWEST_EPOCHS = 10
"""After fewer, nobody expects a result."""


def result_warnings(path: Path, settings: dict[str, Any], result: dict[str, Any]) -> list[str]:
    """Return warnings where a run is no better at its task than one who does not look."""
    is_of_classes = settings.get("task") in (None, "node", "classification")
    if folder_kind(path) != "parts" or not is_of_classes or result["epochs"] < _FEWEST_EPOCHS:
        return []
    return [*_unlearnt(path, result), *_unpredicted(settings, result)]


def _unpredicted(settings: dict[str, Any], result: dict[str, Any]) -> list[str]:
    """Return a warning where classes are never told, and nothing was asked for against that."""
    count, names = unpredicted(result)
    if not names or settings.get("metric") or settings.get("class_weights") or settings.get("loss"):
        return []
    verb = "is" if len(names) == 1 else "are"
    return [
        f"{len(names)} of {count} classes {verb} never predicted "
        f"({shortened(names)}): try --class-weights balanced --metric macro-f1."
    ]


def _unlearnt(path: Path, result: dict[str, Any]) -> list[str]:
    _, labelled, names = node_classes(open_parts(path))
    score = (result.get("score") or {}).get("test")
    if score is None or not labelled.sum():
        return []
    share = labelled / labelled.sum()
    most = int(share.argmax())
    if result["metric"] == "accuracy" and len(names) > 1 and score <= share[most]:
        return [
            f"A test accuracy of {percent(score)} is no better than always saying {names[most]}, "
            f"which is {percent(share[most])} of all: nothing was learnt yet."
        ]
    if result["metric"] == "average-precision" and len(names) == 2 and score <= 1.1 * share.min():
        return [
            f"An average precision of {percent(score)} is what drawing lots gives "
            f"({percent(share.min())}): nothing was learnt yet."
        ]
    return []
