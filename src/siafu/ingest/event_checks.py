"""Options of events that the data at hand leaves without a meaning."""

from siafu.errors import DataError
from siafu.ingest.events import EventOptions, Events
from siafu.ingest.windows import EACH, Span, has_unit

_ROLES = ("src", "dst", "time", "weight", "label")


def check_options(
    events: Events, window: Span | None, options: EventOptions, *, roles: tuple[str, ...]
) -> None:
    """Raise where an option would be passed over in silence; `roles` are those that were read."""
    named = [role for role in _ROLES if getattr(options, role) is not None and role not in roles]
    if named:
        raise DataError(
            "The columns of this kind of data have names of their own.",
            seen=f"{named[0]}={getattr(options, named[0])} of {events.name}",
            fix=f"leave {named[0]} out of --columns",
        )
    if options.time_unit != "s" and (events.dates or window is None or not has_unit(window)):
        raise DataError(
            "The unit of times is for windows as 14d of times that are numbers.",
            seen=f"time_unit={options.time_unit} with "
            + ("dates" if events.dates else f"a window of {window}"),
            fix="leave --time-unit out, or give a --window such as 14d",
        )
    if options.partial_window == "drop" and (events.num_steps is not None or window == EACH):
        raise DataError(
            "No window is ever begun and not filled here.",
            seen=f"partial_window=drop of {events.name}",
            fix="leave --partial-window out, or give a --window such as 14d",
        )
