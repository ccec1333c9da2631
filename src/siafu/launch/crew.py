"""Who makes a folder of data: this process, or all ranks that torchrun started."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from siafu.comm import RankCrew, World
from siafu.errors import CommError, Terminated
from siafu.graph import ALONE, Crew, Help


@contextmanager
def crew_of_ranks(asked: str, helps: Callable[[Crew], Mapping[str, Help]]) -> Iterator[Crew | None]:
    """Yield the crew that this process leads; None on ranks beside the first, which have helped.

    `asked` is the command, which has to be the same everywhere; `helps` is what is done of it.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    try:
        with World.join(device="cpu", backend="gloo") as world, RankCrew(world) as crew:
            world.check_agreement("command", asked)
            if crew.rank:
                crew.serve(helps(crew))
            yield None if crew.rank else crew
    except Terminated as error:
        raise CommError(
            "This rank was told to end before the folder was whole.",
            seen="SIGTERM; torchrun sends it where another rank has ended, and tells which",
            fix="see what that rank said, then run the same command again: it goes on where it was",
        ) from error
