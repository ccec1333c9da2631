"""Every error a user can act on, in one form: the problem, what was seen, how to fix it."""

import difflib
from collections.abc import Iterable, Sequence


class SiafuError(Exception):
    """Base of every error raised on purpose; the command line prints it without a traceback."""

    def __init__(self, problem: str, *, seen: str, fix: str) -> None:
        super().__init__(f"{problem}\n  seen: {seen}\n  fix:  {fix}")
        self.problem, self.seen, self.fix = problem, seen, fix


class DataError(SiafuError):
    """Input files or graph contents that cannot be used."""


class StoreError(SiafuError):
    """A folder on disk that is missing, damaged, unwritable or of another kind."""


class ConfigError(SiafuError):
    """A setting that is unknown, out of range or contradicts another."""


class ModelError(SiafuError):
    """A user's own model whose code raised something."""


class PlanError(SiafuError):
    """A combination of strategy, parts, ranks or model that makes no sense."""


class BudgetError(PlanError):
    """A run needs more memory than it may take."""


class PartitionError(SiafuError):
    """A graph that could not be split as asked."""


class CommError(SiafuError):
    """Ranks that could not reach each other in time, or that disagreed."""


class RankError(SiafuError):
    """A rank that failed or was killed."""

    def __init__(
        self,
        problem: str,
        *,
        seen: str,
        fix: str,
        began_as: str = "",
        is_lost: bool = False,
        lost: Sequence[int] = (),
    ) -> None:
        super().__init__(problem, seen=seen, fix=fix)
        self.began_as = began_as
        """The kind of error that the rank itself met, where it was one of siafu's."""
        self.is_lost = is_lost
        """Whether a process was lost; else its work failed, and would again."""
        self.lost = tuple(lost)
        """The ranks whose processes were, as far as it is known."""


class TaskError(SiafuError):
    """A tensor task that a worker refused, or a message to one that can't be read."""


class PoolError(SiafuError):
    """A pool of workers that can't be had, or that keeps failing."""


class NoRoomError(PoolError):
    """A cluster that holds fewer ranks than are asked for."""

    def __init__(self, problem: str, *, seen: str, fix: str, room: int) -> None:
        super().__init__(problem, seen=seen, fix=fix)
        self.room = room


class Stopped(Exception):  # noqa: N818 - no error: what was asked for
    """Training that ended between two epochs since a rank was told to."""

    def __init__(self, epochs: int) -> None:
        super().__init__(f"stopped after epoch {epochs}")
        self.epochs = epochs


class Terminated(BaseException):
    """The end that SIGTERM asks for: as KeyboardInterrupt, with another exit code."""

    rank_was_told = True
    """False on a rank that stopped with others, of which one was told."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean ...?)` for a near miss, else nothing."""
    lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), lowered, n=1)
    meant = lowered[close[0]] if close else word
    return "" if meant == word else f" (did you mean {meant!r}?)"
