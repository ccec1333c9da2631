"""Which columns of a table are features, what they hold, and why others are not."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from siafu.ingest.tables.columns import index_columns
from siafu.ingest.tables.features import FeatureReader, csv_types
from siafu.ingest.tables.files import MOST_NAMES, Table
from siafu.ingest.tables.kinds import MOST_CATEGORIES, Decided, Sample
from siafu.ingest.tables.problems import Problems
from siafu.record import shortened

Kinds = tuple[tuple[str, str, str], ...]
"""Name, kind, and what comes first in dates or is no gap among categories, of each feature."""


@dataclass(frozen=True, slots=True)
class Features:
    """The columns that are read as features, and the others."""

    readers: tuple[FeatureReader, ...]
    unused: dict[str, Decided]
    """The other columns that are used for nothing else, each with the reason."""
    copies: tuple[str, ...] = ()
    """Columns that tell the target, which nobody asked for."""
    splits: dict[str, str] = field(default_factory=dict)
    """Columns that look like a split, with its words."""

    @property
    def names(self) -> list[str]:
        """The columns that are read."""
        return [reader.name for reader in self.readers]

    @property
    def categories(self) -> list[FeatureReader]:
        """The readers of categories, which are learnt before rows are written."""
        return [reader for reader in self.readers if reader.kind == "category"]

    def notes(self, flag: str = "--features", *, may_split: bool = True) -> list[str]:
        """Return what is told of columns that are left out; `flag` asks for them."""
        notes = []
        if self.copies:
            who = shortened(list(self.copies), MOST_NAMES)
            notes.append(f"Warning: left out, since they tell the target: {who} ({flag} asks).")
        for name, words in self.splits.items():
            takes = f"--split-column {name} takes it as one, " if may_split else ""
            notes.append(
                f"Warning: column {name!r} looks like a split ({words}) and is no feature: "
                f"{takes}{flag} as a feature."
            )
        return notes

    def only_numbers(self) -> "Features":
        """Return the features without those that have to be prepared before they are of use."""
        others = {
            reader.name: Decided(reader.name, reader.kind, "only numbers are used over time")
            for reader in self.readers
            if reader.kind in ("category", "date")
        }
        kept = tuple(reader for reader in self.readers if reader.name not in others)
        return replace(self, readers=kept, unused=self.unused | others)

    def typed(self, table: Table, *, as_text: bool = False) -> Table:
        """Return the table with the types of CSV columns set, where guessing could go wrong."""
        found = {field.name: field.type for field in table.schema()}
        types = csv_types(self.readers, found)
        if as_text:
            types = dict.fromkeys(types, pa.large_string())
        return replace(table, types=dict(table.types) | types)


def choose_features(
    table: Table,
    problems: Problems,
    *,
    taken: Sequence[str],
    asked: Sequence[str] | None,
    left_out: Sequence[str] = (),
    known: Kinds | None = None,
    targets: Sequence[str] = (),
) -> Features:
    """Return which columns are features: those asked for, or all that look like some."""
    schema, everywhere = table.schema(), table.common_names()
    if known is not None:
        return _as_known(table, taken, known)
    free = [name for name in schema.names if name not in taken]
    if asked is None:
        free = [name for name in free if name in everywhere]
    index = index_columns(schema, free)
    passed = {*index, *left_out}
    looked_at = list(asked) if asked is not None else [n for n in free if n not in passed]
    sample = Sample(table, list(dict.fromkeys([*looked_at, *targets])))
    decided = sample.decide(looked_at)
    if asked is not None:
        return _as_asked(decided, free, problems)
    copies: dict[str, str] = {}
    for target in targets:
        copies |= sample.copies(target, [one for one in decided if not one.why_not])
    splits = sample.splits([one for one in decided if not one.why_not])
    why_not = dict.fromkeys(splits, "looks like a split") | copies
    decided = [replace(one, why_not=why_not.get(one.name, one.why_not)) for one in decided]
    unused = {one.name: one for one in decided if one.why_not}
    unused |= {name: Decided(name, "index", "the index of a pandas table") for name in index}
    unused |= {name: Decided(name, "", "left out as asked") for name in left_out}
    missing = [name for name in schema.names if name not in {*everywhere, *taken}]
    unused |= {name: Decided(name, "", "is not in every file") for name in missing}
    readers = tuple(FeatureReader(one) for one in decided if not one.why_not)
    return Features(readers, unused, tuple(copies), splits)


def _as_asked(decided: list[Decided], free: Sequence[str], problems: Problems) -> Features:
    readers = []
    for one in decided:
        if one.kind == "text":
            one = replace(one, kind="category")
        if not one.can_be_feature:
            problems.add(
                "A column can't be a feature.",
                seen=f"column {one.name!r}: {one.why_not}",
                fix=f"leave it out; features are numbers, yes and no, dates, lists of numbers, or "
                f"up to {MOST_CATEGORIES:,} different texts",
            )
            continue
        readers.append(FeatureReader(replace(one, why_not="")))
    names = [reader.name for reader in readers]
    rest = [name for name in free if name not in names]
    why = "not asked for" if decided else "nothing reads it"
    return Features(tuple(readers), {name: Decided(name, "", why) for name in rest})


def _as_known(table: Table, taken: Sequence[str], known: Kinds) -> Features:
    """Return the features that a trained run knows, as far as the table has them."""
    kind_of = {name.partition("[")[0]: (kind, first) for name, kind, first in known}
    kind_of |= {name: (kind, first) for name, kind, first in known}
    names = table.schema().names
    used = [name for name in names if name in kind_of]
    decided = Sample(table, used).decide(used)
    readers = []
    for one in decided:
        kind, first = kind_of[one.name]
        readers.append(FeatureReader(replace(one, kind=kind, first=first, why_not="")))
    rest = [name for name in names if name not in used and name not in taken]
    unused = {name: Decided(name, "", "the run does not know it") for name in rest}
    return Features(tuple(readers), unused)
