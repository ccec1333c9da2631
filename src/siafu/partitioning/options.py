"""What can be told of cutting a graph."""

import warnings
from typing import ClassVar, Literal

from siafu.graph.schema import Scale
from siafu.options import STATIC, Options, Scope, setting

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


with warnings.catch_warnings():
    # A method of pydantic's of this name is deprecated, and of no use to settings.
    warnings.simplefilter("ignore", UserWarning)

    class ColumnOptions(Options):
        """How the columns of tables are prepared when a graph is cut."""

        panel: ClassVar[str] = "Columns of tables"

        scale: Scale = setting(
            "standard", "how numbers and dates are scaled: by training nodes, or not", STATIC
        )
        schema: str | None = setting(  # type: ignore[assignment]
            None,
            "YAML file that says otherwise of some columns (see siafu inspect STORE --schema), or "
            "what would be in it, in braces",
            STATIC,
        )
