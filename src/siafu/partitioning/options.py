"""What can be told of cutting a graph."""

from typing import ClassVar, Literal

from siafu.options import Options, Scope, setting

Method = Literal["auto", "metis", "streaming", "contiguous", "hash"]
"""How nodes are given to parts; `auto` is METIS where it fits."""
NODES_CUT = Scope(
    lambda kind: not kind.over_time or kind.config.node_parts > 1,
    "on a dynamic graph whose nodes are not cut into groups",
    "add --node-parts 2",
)


class CutOptions(Options):
    """How a graph is cut that is not cut yet."""

    panel: ClassVar[str] = "Partitioning"

    partition: Method = setting("auto", "how to cut the graph when it is not yet", NODES_CUT)
