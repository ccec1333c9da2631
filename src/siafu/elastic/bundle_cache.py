"""Bundles that a warm worker keeps between tasks, within so many bytes."""

from collections import OrderedDict

from siafu.elastic.task import Bundle, Tensors

MOST_KEY_BYTES = 32 << 10
"""Of the keys named in one message: half of a header."""


class BundleCache:
    """The bundles used last. Keys are those of one run: equal keys of two runs are two bundles."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self.num_bytes = most_bytes, 0
        self._bundles: OrderedDict[tuple[str, str], Bundle] = OrderedDict()

    def keys(self, run: str, most: int) -> tuple[str, ...]:
        """Return keys of a run's bundles, those used last first, as many as fit into a message."""
        keys: list[str] = []
        room = MOST_KEY_BYTES
        for owner, key in reversed(self._bundles):
            if owner != run:
                continue
            room -= len(key.encode()) + 4
            if room < 0 or len(keys) == most:
                break
            keys.append(key)
        return tuple(keys)

    def get(self, run: str, key: str) -> Tensors | None:
        """Return a bundle's tensors, or None if it is not here."""
        bundle = self._bundles.get((run, key))
        if bundle is None:
            return None
        self._bundles.move_to_end((run, key))
        return bundle.tensors

    def put(self, run: str, bundle: Bundle) -> None:
        """Keep a bundle, unless it is for one task alone; let go of those used longest ago."""
        if bundle.lifetime == "once" or bundle.num_bytes > self._most_bytes:
            return
        self.drop(run, bundle.key)
        self._bundles[run, bundle.key] = bundle
        self.num_bytes += bundle.num_bytes
        while self.num_bytes > self._most_bytes:
            self.drop(*next(iter(self._bundles)))

    def drop(self, run: str, key: str) -> None:
        """Let go of a bundle, if it is here."""
        bundle = self._bundles.pop((run, key), None)
        if bundle is not None:
            self.num_bytes -= bundle.num_bytes
