"""Bundles that outlive a task, each in shared memory once, freed when nobody needs it."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from siafu.elastic.shared_block import Block, write_block
from siafu.elastic.task import Bundle


@dataclass(slots=True)
class _Entry:
    uses: int = 0
    """Attempts that wait or run and name it."""
    is_forgotten: bool = False
    block: Block | None = None
    writing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_free(self) -> bool:
        return self.is_forgotten and self.uses == 0


class KeptBlocks:
    """Blocks by bundle key. One descriptor stays open for each, to hand to workers that come later.

    A forgotten bundle goes when the last attempt that names it is answered: the second attempt at a
    task may still wait when the first has long been used.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def hold(self, bundles: Iterable[Bundle]) -> None:
        """Keep the bundles for one more attempt."""
        with self._lock:
            for bundle in _outliving(bundles):
                self._entries.setdefault(bundle.key, _Entry()).uses += 1

    def block(self, bundle: Bundle) -> Block:
        """Return the block of a held bundle; the first that asks has it written."""
        with self._lock:
            entry = self._entries[bundle.key]
        with entry.writing:
            if entry.block is None:
                entry.block = write_block(bundle.tensors)
            return entry.block

    def release(self, bundles: Iterable[Bundle]) -> list[str]:
        """End what `hold` began, and return the keys that are now free."""
        with self._lock:
            keys = [bundle.key for bundle in _outliving(bundles)]
            for key in keys:
                self._entries[key].uses -= 1
            return [key for key in keys if self._free(key)]

    def forget(self, key: str) -> bool:
        """Let go of a bundle as soon as nobody needs it; True where that is now."""
        with self._lock:
            if key not in self._entries:
                return False
            self._entries[key].is_forgotten = True
            return self._free(key)

    def close(self) -> None:
        """Free all."""
        with self._lock:
            for key, entry in list(self._entries.items()):
                entry.uses, entry.is_forgotten = 0, True
                self._free(key)

    def _free(self, key: str) -> bool:
        if not self._entries[key].is_free:
            return False
        block = self._entries.pop(key).block
        if block is not None:
            block.close()
        return True


def _outliving(bundles: Iterable[Bundle]) -> Iterable[Bundle]:
    return (bundle for bundle in bundles if bundle.lifetime != "once")
