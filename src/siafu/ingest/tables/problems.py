"""All that is wrong with a set of tables, told at once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from siafu.errors import DataError

FEW = 0.01
"""Share of a table's rows that may be passed over, which is told; more are a mistake."""
_MOST = 12


@dataclass(slots=True)
class Problems:
    """Gathers errors, to be raised together."""

    found: list[DataError] = field(default_factory=list)

    def add(self, problem: str, *, seen: str, fix: str) -> None:
        """Note what is wrong, and go on."""
        self.found.append(DataError(problem, seen=seen, fix=fix))

    def raise_any(self) -> None:
        """Raise the one problem there is, or one error that lists them all."""
        if len(self.found) == 1:
            raise self.found[0]
        if self.found:
            raise _together(self.found)

    def to_facts(self) -> list[list[str]]:
        """Return the problems as a manifest holds them."""
        return [[one.problem, one.seen, one.fix] for one in self.found]

    def take_up(self, facts: Iterable[Sequence[str]]) -> None:
        """Know the problems that an earlier process met."""
        for problem, seen, fix in facts:
            self.add(problem, seen=seen, fix=fix)


def _together(found: list[DataError]) -> DataError:
    shown = found[:_MOST]
    more = f"\n        and {len(found) - _MOST} more" if len(found) > _MOST else ""
    lines = [
        f"\n     {number}. {one.problem} {one.seen}" for number, one in enumerate(shown, start=1)
    ]
    fixes = [f"\n     {number}. {one.fix}" for number, one in enumerate(shown, start=1)]
    return DataError(
        f"The tables have {len(found)} problems.", seen="".join(lines) + more, fix="".join(fixes)
    )
