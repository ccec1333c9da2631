"""Reading a parts folder, whose facts and arrays are checked when it is opened.

N nodes of the whole graph, P parts; of one part n owned rows, R halo rows, E edges.
"""

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from siafu.errors import StoreError
from siafu.graph import (
    Array,
    Column,
    Count,
    Facts,
    Folder,
    GraphFacts,
    Ids,
    check_columns,
    check_nodes,
    counts_of,
    edge_columns,
    id_columns,
    load_ids,
    node_columns,
    open_folder,
    read_facts,
    verify_columns,
)
from siafu.graph.columns import INTEGERS, OFFSETS
from siafu.graph.manifest import MANIFEST
from siafu.partitioning.quality import NODES_KEY, Quality

_MOST_PARTS = 1 << 20
_Parts = Annotated[int, Field(ge=1, le=_MOST_PARTS)]


class _WholeGraph(GraphFacts):
    fingerprint: str


class _Quality(Facts):
    cut_edges: Count
    nodes: list[Count] = Field(alias=NODES_KEY)
    edges: list[Count]
    training: list[Count]
    halo_rows: list[Count]


class _PartsFacts(Facts):
    num_parts: _Parts
    method: str
    graph: _WholeGraph
    quality: _Quality

    @model_validator(mode="after")
    def _agree(self) -> Self:
        quality = self.quality
        for counts in (quality.nodes, quality.edges, quality.training, quality.halo_rows):
            if len(counts) != self.num_parts:
                raise ValueError(f"quality has {len(counts)} counts for {self.num_parts} parts")
        return self


class _PartFacts(GraphFacts):
    """What the manifest of one part says."""

    part: Count
    num_parts: _Parts
    num_owned: Count
    num_halo: Count
    num_local_edges: Count
    graph_fingerprint: str

    @model_validator(mode="after")
    def _counted(self) -> Self:
        if self.num_owned + self.num_halo > self.num_nodes:
            seen = f"{self.num_owned} owned and {self.num_halo} halo rows of {self.num_nodes} nodes"
            raise ValueError(seen)
        return self


class Parts:
    """An opened parts folder; each part is a folder of its own."""

    def __init__(self, folder: Folder) -> None:
        self.folder, self.path = folder, folder.path
        known = read_facts(folder, _PartsFacts)
        self.facts: dict[str, Any] = folder.facts
        self.num_parts = known.num_parts
        self.graph_fingerprint = known.graph.fingerprint
        self._graph = known.graph
        self.quality = Quality.from_facts(folder.facts["quality"])
        nodes = known.graph.num_nodes
        owner = Column((nodes,), INTEGERS, span=(0, known.num_parts - 1), is_needed=True)
        self._columns = {"part_of": owner, **id_columns(folder, nodes)}
        check_columns(folder, self._columns)

    @property
    def part_of(self) -> Array:
        """The part that owns each store row, memory-mapped."""
        return self.folder.load("part_of")

    @property
    def is_here(self) -> bool:
        """Whether this machine has the files of all parts, not of its own ranks alone."""
        folders = (self.part(number) for number in range(self.num_parts))
        return all((f.path / f"{name}.npy").exists() for f in folders for name in f.entries)

    @property
    def ids(self) -> Ids:
        """The user's id of each store row, checked."""
        verify_columns(self.folder, self._columns, *(self._columns.keys() - {"part_of"}))
        check_nodes(self.folder)
        return load_ids(self.folder)

    def part(self, part: int) -> Folder:
        """Return one part, refusing one that belongs to another graph or partition."""
        folder = self.folder.child(f"part{part}", "part")
        known = read_facts(folder, _PartFacts)
        found = (known.graph_fingerprint, known.num_parts, known.part)
        if found != (self.graph_fingerprint, self.num_parts, part):
            raise StoreError(
                "A parts folder of another graph is mixed in here.",
                seen=f"{folder.path}: part {found[2]} of {found[1]}, graph {found[0][:12]}...; "
                f"its folder: {self.num_parts} parts, graph {self.graph_fingerprint[:12]}...",
                fix="run `siafu partition` again; parts can't be copied between folders",
            )
        self._check_agreement(folder, known)
        return folder

    def _check_agreement(self, folder: Folder, known: _PartFacts) -> None:
        """Raise unless a part tells of the graph and of itself what the whole folder tells."""
        part, whole = known.part, self.quality
        for name in GraphFacts.model_fields:
            if getattr(known, name) != getattr(self._graph, name):
                seen = f"fact {name} is {getattr(known, name)!r}, of all parts "
                raise folder.damaged(MANIFEST, f"{seen}{getattr(self._graph, name)!r}")
        sizes = (known.num_owned, known.num_local_edges, known.num_halo)
        if sizes != (told := (whole.nodes[part], whole.edges[part], whole.halo_rows[part])):
            seen = f"{sizes} rows, edges and halo rows, {told} in the quality of the cut"
            raise folder.damaged(MANIFEST, seen)

    def open_part(self, part: int, *, verify: bool = True) -> Folder:
        """Return one part whose arrays fit its facts and those of the others.

        `verify` reads all of it once, and the owner of each node; without it checksums and the
        numbers that rows are found by are trusted.
        """
        folder = self.part(part)
        known = read_facts(folder, _PartFacts)
        expected = _part_columns(folder, known)
        check_columns(folder, expected)
        sent = folder.entry("send_rows").shape[0]
        counts_of(folder, "halo_counts", self.num_parts, known.num_halo)
        sends = counts_of(folder, "send_counts", self.num_parts, sent).tolist()
        if verify:
            verify_columns(folder, expected)
            check_nodes(folder)
            verify_columns(self.folder, self._columns, "part_of")
            self._check_sends(folder, part, sends)
        return folder

    def _check_sends(self, folder: Folder, part: int, sends: list[int]) -> None:
        """Raise unless every other part expects as many rows as this one sends it."""
        for other, sent in enumerate(sends):
            halo = self.part(other).load("halo_counts")
            if len(halo) != self.num_parts or halo[part] != sent:
                seen = f"{sent} rows for part {other}, which expects {halo[part : part + 1]}"
                raise folder.damaged("send_counts.npy", seen)

    def verify(self) -> None:
        """Read all of the folder and raise unless every checksum and number is right."""
        verify_columns(self.folder, self._columns)
        check_nodes(self.folder)
        for part in range(self.num_parts):
            self.open_part(part)


def _part_columns(folder: Folder, facts: _PartFacts) -> dict[str, Column]:
    """Return what must hold of the arrays of a part."""
    rows = facts.num_owned
    sources, nodes = rows + facts.num_halo, facts.num_nodes
    return {
        **node_columns(folder, facts, rows),
        **edge_columns(facts, rows, facts.num_local_edges, sources),
        "rows": Column((rows,), OFFSETS, span=(0, nodes - 1), is_needed=True),
        "halo": Column((facts.num_halo,), OFFSETS, span=(0, nodes - 1)),
        "halo_counts": Column((facts.num_parts,), OFFSETS, is_needed=True),
        "send_counts": Column((facts.num_parts,), OFFSETS, is_needed=True),
        "send_rows": Column((None,), OFFSETS, span=(0, rows - 1), is_needed=True),
    }


def open_parts(path: Path | str) -> Parts:
    """Return the parts folder at `path` after checking that its parts are of one graph."""
    parts = Parts(open_folder(path, "parts"))
    for part in range(parts.num_parts):
        parts.part(part)
    return parts
