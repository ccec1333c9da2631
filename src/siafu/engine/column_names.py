"""The columns a model was trained on, by name, beside those it is asked about."""

import re
from collections.abc import Sequence

from siafu.errors import StoreError

_SHOWN = 5
_ENTRY = re.compile(r"\[\d+\]$")
"""How an entry of a column of lists is called: name[0]."""


def check_names(seen: Sequence[str], known: Sequence[str], what: str, where: str) -> None:
    """Raise where columns have other names, or another order, than is `known` with the weights.

    Where either side has no names (arrays, or folders of an older version) nothing is compared.
    """
    if not seen or not known or list(seen) == list(known):
        return
    there, wanted = set(seen), set(known)
    missing = [name for name in known if name not in there]
    extra = [name for name in seen if name not in wanted]
    flag = "--features" if what == "features" else "--edge-attr"
    order = f"siafu ingest TABLES new.store {flag} {_columns(known)}"
    if missing or extra:
        told = [f"{_some(missing)} missing"] if missing else []
        told += [f"{_some(extra)} not known to the model"] if extra else []
        fix = "give the data the columns the run was trained on"
        if not missing:
            fix = f"take the model's columns alone: {order}"
    else:
        place = next(k for k, name in enumerate(known) if name != seen[k])
        told = [f"column {place} is {seen[place]!r}, the model's is {known[place]!r}"]
        fix = f"take the columns in the model's order: {order}"
    raise StoreError(
        f"The {what} are not those the model was trained on.",
        seen=f"in {where}: {'; '.join(told)}",
        fix=fix,
    )


def _columns(names: Sequence[str]) -> str:
    """Return the names as a flag takes them; the entries of a list are one column there."""
    return ",".join(dict.fromkeys(_ENTRY.sub("", name) for name in names))


def _some(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(map(repr, names[:_SHOWN])) + (f" and {rest} more" if rest > 0 else "")
