"""What is said of a table's columns: a line each, aligned, at most a screen."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from siafu.graph import TargetColumn
from siafu.ingest.tables.choosing import Features

_MOST_LINES = 24
_MOST_WORDS = 60
_EDGES = "Columns of the edges"
_IF_ASKED = "with --edge-features, or own model"
_IF_TAKEN = "if forward takes edge_attr"


@dataclass(frozen=True, slots=True)
class Line:
    """One column of a table, as it is told."""

    name: str
    kind: str
    used_as: str
    gaps: str = ""
    why: str = ""


def feature_lines(features: Features) -> list[Line]:
    """Return a line for each feature, and for each column that is not used."""
    lines = []
    for reader in features.readers:
        kind = reader.kind if len(reader.names()) == 1 else f"{reader.width} numbers"
        count = len(reader.categories.met())
        why = f"{count:,} different" if reader.kind == "category" else ""
        lines.append(Line(reader.name, kind, "feature", f"{int(reader.gaps_W.max()):,}", why))
    for one in features.unused.values():
        lines.append(Line(one.name or "(no name)", one.kind, "not used", why=one.why_not))
    return lines


def edge_feature_lines(features: Features) -> list[Line]:
    """Return the same of an edge table, whose features few models read."""
    return [
        replace(
            line,
            used_as="edge feature",
            why="; ".join([_IF_ASKED, *([line.why] if line.why else [])]),
        )
        if line.used_as == "feature"
        else line
        for line in feature_lines(features)
    ]


def told_where_edges_are_read(note: str) -> str:
    """Return what is told of tables to who reads the features of edges anyway."""
    if not note.startswith(_EDGES):
        return note
    lines = note.replace(f"  {_IF_ASKED}; ", "  ").replace(f"  {_IF_ASKED}", "").splitlines()
    return "\n".join(line.rstrip() for line in lines)


def told_where_own_model_may(note: str) -> str:
    """Return what is told of tables to who trains a model of his own, whose code tells."""
    return note.replace(_IF_ASKED, _IF_TAKEN)


def told_where_they_can_not_be(note: str, model: str) -> str:
    """Return what is told of tables to who trains a model that reads no features of edges."""
    return note.replace(_IF_ASKED, f"with --model {model} {_IF_ASKED.removeprefix('with ')}")


def told_edges(shown: str, lines: Sequence[Line]) -> str:
    """Return the table of the columns of edges."""
    return told_table(f"{_EDGES} ({shown}):", lines)


def target_lines(columns: Sequence[TargetColumn]) -> list[Line]:
    """Return a line for each column to predict."""
    return [Line(one.name, one.kind, "target", f"{one.gaps:,}", _classes(one)) for one in columns]


def _classes(one: TargetColumn) -> str:
    if one.kind == "number":
        return "to be told as a number"
    counts = one.counts or ("",) * len(one.classes)
    shown = [
        f"{name}: {count:,}" if isinstance(count, int) else str(name)
        for name, count in zip(one.classes[:4], counts, strict=False)
    ]
    more = f", and {len(one.classes) - 4:,} more" if len(one.classes) > 4 else ""
    return f"{', '.join(shown)}{more}"


def told_table(title: str, lines: Sequence[Line]) -> str:
    """Return the lines as a table; of features too many for a screen only the first."""
    shown, hidden = list(lines), 0
    while len(shown) > _MOST_LINES:
        last = next((one for one in reversed(shown) if one.used_as.endswith("feature")), shown[-1])
        shown.remove(last)
        hidden += 1
    rows = [("column", "kind", "used as", "gaps", "")]
    rows += [
        (_cut(one.name, 24), one.kind, one.used_as, one.gaps, _cut(one.why, _MOST_WORDS))
        for one in shown
    ]
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    text = [
        f"  {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:<{widths[2]}}  "
        f"{row[3]:>{widths[3]}}  {row[4]}".rstrip()
        for row in rows
    ]
    if hidden:
        text.append(f"  and {hidden:,} more")
    return "\n".join([title, *text])


def told_before(notes: Sequence[str], store: str) -> list[str]:
    """Return what is told of tables that were read before: where their columns are, in a line."""
    rest = [note for note in notes if not _is_table(note)]
    if len(rest) == len(notes):
        return rest
    return [*rest, f"Their columns are as they were told then: siafu inspect {store} shows them."]


def _is_table(note: str) -> bool:
    return note.partition("\n")[2].startswith("  column ")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
