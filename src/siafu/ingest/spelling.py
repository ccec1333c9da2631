"""Did-you-mean for names a user typed."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `did you mean 'x'? ` for the nearest known name, or nothing when none is near."""
    lowered = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return f"did you mean {lowered[near[0]]!r}? " if near else ""
