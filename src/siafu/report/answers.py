"""How good the answers of a run are: by class, by target, and whether probabilities hold."""

from collections.abc import Sequence
from typing import Any

from siafu.record import percent, shown_score
from siafu.report.blocks import as_details, figures, section, table
from siafu.report.plots import Series, line_plot, matrix_plot
from siafu.report.told import ToldRun

_MOST_CLASSES_OF_A_MATRIX = 40
_MOST_ROWS = 12
_ERRORS = ("rmse", "mae", "r2")


def answers(run: ToldRun, *, named: bool) -> str:
    """Return the section on the answers for test nodes, or edges; nothing where none are known."""
    quality = run.result.get("quality") or {}
    test = quality.get("test") if isinstance(quality, dict) else None
    if not isinstance(test, dict):
        return ""
    names = list(map(str, quality.get("names") or ()))
    drawn = figures(
        [
            ("Classes", _by_class(test.get("classes") or {}, names)),
            ("What is taken for what", _confusion(test.get("confusion") or [], names)),
            ("Probabilities", _calibration(test.get("calibration") or {})),
            ("Targets", _by_target(test, names)),
        ]
    )
    return section(f"Test answers of {run.name}" if named else "Test answers", drawn)


def _by_class(found: dict[str, Sequence[float]], names: Sequence[str]) -> str:
    if not found:
        return ""
    shares = [name for name in ("precision", "recall", "f1") if name in found]
    rows = [
        [_name(names, k), f"{count:,}", *(percent(found[share][k]) for share in shares)]
        for k, count in enumerate(found["count"])
    ]
    told = table(["class", "there are", *shares], rows)
    return told if len(rows) <= _MOST_ROWS else as_details(told, f"{len(rows)} classes")


def _confusion(counts: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """Return the matrix with each row shaded by its own sum, so that rare classes can be seen."""
    if not 1 < len(counts) <= _MOST_CLASSES_OF_A_MATRIX:
        return ""
    labels = [_name(names, k) for k in range(len(counts))]

    def tell(row: int, column: int) -> str:
        of = f"{counts[row][column]:,} of {sum(counts[row]):,}"
        return f"{labels[row]} taken for {labels[column]}: {of}"

    plot = matrix_plot(
        [[value / max(1, sum(row)) for value in row] for row in counts],
        title="Confusion matrix",
        rows_are="class",
        tell=tell,
        names=labels,
    )
    rows = [[label, *map("{:,}".format, row)] for label, row in zip(labels, counts, strict=True)]
    return plot + as_details(table(["class, taken for", *labels], rows))


def _calibration(found: dict[str, Any]) -> str:
    if not found:
        return ""
    bins = list(zip(found["claimed"], found["true"], found["count"], strict=True))
    bins = [one for one in bins if one[2]]
    plot = line_plot(
        [
            Series("came true", tuple((claimed, true) for claimed, true, _ in bins)),
            Series("as it should be", ((0.0, 0.0), (1.0, 1.0)), 1, dashed=True),
        ],
        title="Calibration",
        x_name="probability told",
        y_name="share that came true",
    )
    rows = [[percent(claimed), percent(true), f"{count:,}"] for claimed, true, count in bins]
    exact = as_details(table(["told", "came true", "answers"], rows))
    return f"{plot}<p>{percent(found['error'])} off on average.</p>{exact}"


def _by_target(test: dict[str, Any], names: Sequence[str]) -> str:
    errors = [name for name in _ERRORS if isinstance(test.get(name), list)]
    if not errors or len(test[errors[0]]) < 2:
        return ""
    rows = [
        [_name(names, k), *(shown_score(error, test[error][k]) for error in errors)]
        for k in range(len(test[errors[0]]))
    ]
    return table(["target", *errors], rows)


def _name(names: Sequence[str], place: int) -> str:
    return names[place] if place < len(names) else str(place)
