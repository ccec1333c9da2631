"""How many in-edges are drawn at each hop, from the settings."""

from siafu.errors import ConfigError


def read_fanout(text: str | None, layers: int) -> tuple[int, ...]:
    """Return the in-edges drawn at each hop."""
    if text is None:
        return (15, 10, *[5] * layers)[:layers]
    try:
        fanouts = tuple(int(piece) for piece in text.split(","))
    except ValueError:
        fanouts = ()
    if len(fanouts) != layers or any(fanout < -1 or fanout == 0 for fanout in fanouts):
        raise ConfigError(
            "The fan-out can't be used.",
            seen=f"--fanout {text} with {layers} layers",
            fix="give a number for each layer, as "
            f"--fanout {','.join(['15', '10', *['5'] * layers][:layers])}; -1 takes all in-edges",
        )
    return fanouts
