"""Reading a parts folder."""

from pathlib import Path
from typing import Any

from siafu.errors import StoreError
from siafu.graph import Array, Folder, Ids, load_ids, open_folder
from siafu.partition.quality import Quality


class Parts:
    """An opened parts folder; each part is a folder of its own."""

    def __init__(self, folder: Folder) -> None:
        self.folder, self.path = folder, folder.path
        self.facts: dict[str, Any] = folder.facts
        self.num_parts = int(folder.facts["num_parts"])
        self.graph_fingerprint = str(folder.facts["graph"]["fingerprint"])
        self.quality = Quality.from_facts(folder.facts["quality"])

    @property
    def part_of(self) -> Array:
        """The part that owns each store row, memory-mapped."""
        return self.folder.load("part_of")

    @property
    def ids(self) -> Ids:
        """The user's id of each store row."""
        return load_ids(self.folder)

    def part(self, part: int) -> Folder:
        """Return one part, refusing one that belongs to another graph or partition."""
        folder = self.folder.child(f"part{part}", "part")
        found = (folder.facts["graph_fingerprint"], folder.facts["num_parts"], folder.facts["part"])
        if found != (self.graph_fingerprint, self.num_parts, part):
            raise StoreError(
                "A parts folder of another graph is mixed in here.",
                seen=f"{folder.path}: part {found[2]} of {found[1]}, graph {found[0][:12]}...; "
                f"its folder: {self.num_parts} parts, graph {self.graph_fingerprint[:12]}...",
                fix="run `siafu partition` again; parts can't be copied between folders",
            )
        return folder


def open_parts(path: Path | str) -> Parts:
    """Return the parts folder at `path` after checking that its parts are of one graph."""
    parts = Parts(open_folder(path, "parts"))
    for part in range(parts.num_parts):
        parts.part(part)
    return parts
