"""`siafu cache`: what the stores and downloads kept for later runs take, and removing them."""

from typing import Annotated

import typer

from siafu.cli.show import print_json, print_table, size
from siafu.ingest import cache_folder, empty_cache, list_cache


def cache(
    empty: Annotated[bool, typer.Option("--empty", help="remove all of it")] = False,
    json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """Show what is kept for later runs, stores of tables and downloads; --empty removes it."""
    held, total = (empty_cache() if empty else list_cache()), "removed" if empty else "in all"
    taken = sum(kept.num_bytes for kept in held)
    if json:
        kept_bytes = {str(kept.path): kept.num_bytes for kept in held}
        facts = {"folder": str(cache_folder()), "kept": kept_bytes}
        print_json({**facts, "bytes": taken, "is_removed": empty})
        return
    rows = {kept.path.name: size(kept.num_bytes) for kept in held}
    print_table(str(cache_folder()), rows | {total: size(taken)})
