"""Which columns of a node table and an edge table mean what."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from siafu.errors import ConfigError
from siafu.memory import Budget


@dataclass(frozen=True, kw_only=True, slots=True)
class TableOptions:
    """How to read a node table and an edge table."""

    node_id: str | None = None
    """Column of the node table that holds the ids.

    None takes `id`, or the column that by its name or its values is the id.
    """

    src: str | None = None
    """Column of the edge table with the id an edge starts at; None takes `src`, `from` or alike."""

    dst: str | None = None
    """Column of the edge table with the id an edge ends at; None takes `dst`, `to` or alike."""

    label: str | tuple[str, ...] | None = None
    """Column to predict: classes of text or whole numbers, or numbers; several columns of 0 and 1
    when a node may have several labels, or of numbers.

    None takes `label` or `y` where there is one. A list column holds the labels of each node, a
    fixed-size list column one 0 or 1 a class.
    """

    target: Literal["class", "number"] | None = None
    """What targets of whole numbers are; None takes few different ones as classes."""

    needs_labels: bool = True
    """False where columns to predict may be missing: the data is for inference."""

    split: str | None = None
    """Column with train, val and test; None takes `split`, or boolean columns of those names."""

    features: tuple[str, ...] | None = None
    """Feature columns of any kind.

    None takes all that are not used otherwise and do not look like an id, an index, free text or
    the target.
    """

    left_out: tuple[str, ...] = ()
    """Columns of the node table that are no features, whatever they look like."""

    node_kinds: tuple[tuple[str, str, str], ...] | None = None
    """Name, kind and what comes first in dates of each feature, where a trained run knows them; the
    data decides nothing."""

    edge_weight: str | None = None
    """Column with one weight per edge; None takes `weight` without gaps and numbers below 0."""

    edge_attr: tuple[str, ...] | None = None
    """Columns with features of an edge; None takes all that are not used otherwise."""

    edge_left_out: tuple[str, ...] = ()
    """As `left_out`, of edges."""

    edge_kinds: tuple[tuple[str, str, str], ...] | None = None
    """As `node_kinds`, of edges."""

    edge_label: str | tuple[str, ...] | None = None
    """Column of the edge table to predict: classes or numbers."""

    edge_type: str | None = None
    """Column with the type of an edge, text or whole numbers, numbered in sorted order.

    None takes `edge_type`, `type` or `relation` where there is one of text or whole numbers.
    """

    undirected: bool = False
    """Add the reverse of each edge where one of its type is missing, with the data of that edge."""

    id_type: Literal["integer", "text"] | None = None
    """Type of the ids; None takes the column's own. Text keeps leading zeros of CSV ids."""

    drop_unknown: bool | None = None
    """Whether edges with ids that the node table does not have, and rows without an id, are
    dropped; None drops up to one in a hundred."""

    nodes: Path | None = None
    """The node table where it is not found beside the edges."""

    bucket_edges: int = 1 << 23
    """Edges sorted at once in memory."""

    piece_edges: int = field(default=1 << 18, repr=False)
    """Edges of a piece that is read at once, of which sixteen are on their way."""

    budget: Budget | None = field(default=None, repr=False)
    """What reading may take: fewer edges are sorted and read at once where it is little."""

    @property
    def of_memory(self) -> tuple[str, ...]:
        """The settings that change how much is held, and nothing that is made."""
        return ("bucket_edges", "piece_edges", "budget")

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
        self._refuse_told("label", self.label, "features", self.features)
        self._refuse_told("edge_label", self.edge_label, "edge_attr", self.edge_attr)

    def _refuse_told(
        self,
        target: str,
        labels: str | tuple[str, ...] | None,
        group: str,
        features: tuple[str, ...] | None,
    ) -> None:
        """Raise where what is to be predicted is also what it is predicted from."""
        names = (labels,) if isinstance(labels, str) else labels or ()
        if both := [name for name in names if name in (features or ())]:
            shown = ", ".join(map(repr, both))
            raise ConfigError(
                "A column to predict is among the features: the model would be told the answer.",
                seen=f"{shown} in both {target} and {group}",
                fix=f"leave {shown} out of {group} (--{group.replace('_', '-')})",
            )
