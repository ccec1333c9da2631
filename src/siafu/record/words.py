"""Words of the lines that users read."""


def counted(count: int, noun: str) -> str:
    """Return `1 rank`, `2 ranks`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def shortened(words: list[str], most: int = 8) -> str:
    """Return the first words, comma between, and how many more there are."""
    rest = [f"and {len(words) - most:,} more"] if len(words) > most else []
    return ", ".join([*words[:most], *rest])
