"""Which columns of a node table and an edge table mean what."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from siafu.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class TableOptions:
    """How to read a node table and an edge table."""

    node_id: str = "id"
    """Column of the node table that holds the ids."""

    src: str = "src"
    """Column of the edge table with the id an edge starts at."""

    dst: str = "dst"
    """Column of the edge table with the id an edge ends at."""

    label: str | tuple[str, ...] | None = None
    """Label column; several columns of 0 and 1 when a node may have several labels.

    None takes `label` or `y` where there is one. A list column holds the labels of each node, a
    fixed-size list column one 0 or 1 a class.
    """

    split: str | None = None
    """Column with train, val and test; None takes `split`, or boolean columns of those names."""

    features: tuple[str, ...] | None = None
    """Feature columns, numbers or lists of them; None takes all that are not used otherwise."""

    edge_weight: str | None = None
    """Column with one weight per edge."""

    edge_attr: tuple[str, ...] = ()
    """Columns with further numbers of an edge."""

    edge_type: str | None = None
    """Column with the type of an edge, text or whole numbers, numbered in sorted order.

    None takes `edge_type`, `type` or `relation` where there is one of text or whole numbers.
    """

    undirected: bool = False
    """Add the reverse of each edge where one of its type is missing, with the data of that edge."""

    id_type: Literal["integer", "text"] | None = None
    """Type of the ids; None takes the column's own. Text keeps leading zeros of CSV ids."""

    nodes: Path | None = None
    """The node table where it is not found beside the edges."""

    bucket_edges: int = 1 << 23
    """Edges sorted at once in memory."""

    def __post_init__(self) -> None:
        if self.bucket_edges < 1:
            raise ConfigError(
                "A bucket needs room for an edge.",
                seen=f"bucket_edges={self.bucket_edges}",
                fix="use 1 or more",
            )
        if self.id_type not in (None, "integer", "text"):
            raise ConfigError(
                "Unknown type of ids.",
                seen=f"id_type={self.id_type!r}",
                fix="use 'integer' or 'text', or leave it out",
            )

    def edge_columns(self) -> list[str]:
        """Return the columns of the edge table that are read."""
        weight = [] if self.edge_weight is None else [self.edge_weight]
        kind = [] if self.edge_type is None else [self.edge_type]
        return [self.src, self.dst, *weight, *self.edge_attr, *kind]

    def edge_flags(self) -> dict[str, str]:
        """Return the flag of `siafu ingest` that names each column of the edge table."""
        flags = dict.fromkeys(self.edge_attr, "--edge-attr")
        if self.edge_weight is not None:
            flags[self.edge_weight] = "--edge-weight"
        if self.edge_type is not None:
            flags[self.edge_type] = "--edge-type"
        return {self.src: "--src", self.dst: "--dst"} | flags
