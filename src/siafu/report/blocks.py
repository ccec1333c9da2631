"""Pieces of a page: sections, tables, what is folded away."""

from collections.abc import Iterable, Sequence
from html import escape


def section(title: str, body: str) -> str:
    """Return a section with a head; nothing without a body."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def figures(found: Iterable[tuple[str, str]]) -> str:
    """Return figures side by side, each with its name; those without a body are left out."""
    body = "".join(
        f"<figure><h3>{escape(name)}</h3>{plot}</figure>" for name, plot in found if plot
    )
    return f'<div class="grid2">{body}</div>' if body else ""


def as_details(body: str, name: str = "As a table") -> str:
    """Return what is shown when its name is clicked on."""
    return f"<details><summary>{escape(name)}</summary>{body}</details>" if body else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose first column names the rows."""
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    start = f"<thead><tr>{top}</tr></thead>" if top else ""
    return f'<div class="scroll"><table>{start}<tbody>{body}</tbody></table></div>'
