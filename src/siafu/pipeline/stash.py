"""Versions of the weights: an interval's backward uses those that its forward used.

A version is what one optimiser step made; version 0 is before the first. It is kept while intervals
use it or while it is the newest.
"""

from collections.abc import Callable

from torch import Tensor, nn

from siafu.elastic import Bundle


class Stash:
    """The versions in use, counted, as bundles for tasks: one for each part of the model."""

    def __init__(
        self,
        module: nn.Module,
        parts: list[tuple[str, ...]],
        prefix: str,
        forget: Callable[[str], None],
        *,
        most: int,
    ) -> None:
        """`parts` names the weights that each part uses; `forget` is told keys let go of."""
        self._module, self._parts, self._prefix, self._forget = module, parts, prefix, forget
        self._most = most
        self._bundles: dict[int, list[Bundle]] = {}
        self._uses: dict[int, int] = {}
        self.newest = -1

    @property
    def versions(self) -> list[int]:
        """Versions that are kept."""
        return sorted(self._bundles)

    def publish(self, version: int) -> None:
        """Take the module's present weights as a new version."""
        before, self.newest = self.newest, version
        held: dict[str, Tensor] = {
            name: p.detach().clone() for name, p in self._module.named_parameters()
        }
        self._bundles[version] = [
            Bundle(
                f"{self._prefix}/w/{version}/{number}",
                {f"w.{name}": held[name] for name in names},
                "version",
            )
            for number, names in enumerate(self._parts)
        ]
        self._uses[version] = 0
        self._drop_unused(before)
        assert len(self._bundles) <= self._most, f"{self.versions} are kept of {self._most}"

    def take(self) -> int:
        """Return the newest version, kept until it is released as often as it was taken."""
        self._uses[self.newest] += 1
        return self.newest

    def bundle(self, version: int, part: int) -> Bundle:
        """Return the weights of one part at a version that is taken."""
        return self._bundles[version][part]

    def release(self, version: int) -> None:
        """Let go of one use."""
        self._uses[version] -= 1
        self._drop_unused(version)

    def _drop_unused(self, version: int) -> None:
        if version == self.newest or self._uses.get(version, 1):
            return
        del self._uses[version]
        for bundle in self._bundles.pop(version):
            self._forget(bundle.key)
