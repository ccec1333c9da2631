"""What a shard has to have for what is asked of it."""

from siafu.errors import DataError
from siafu.shard.shard import Shard


def require(shard: Shard, *names: str) -> None:
    """Raise unless the shard has what training needs of these: x, y, train."""
    missing: dict[str, tuple[bool, dict[str, str]]] = {
        "x": (
            shard.x is None,
            {
                "problem": "The graph has no node features.",
                "fix": "give the node table a column of numbers, text, yes and no or dates (an "
                ".npz file or PyG data: x); where nothing is known, a column of ones will do",
            },
        ),
        "y": (
            shard.y is None,
            {
                "problem": "The graph has no labels.",
                "fix": "add --task edge: edges have targets"
                if shard.edge_y is not None
                else "name the column of the node table to learn: --label COLUMN (an .npz file or "
                "PyG data: y)",
            },
        ),
        "train": (
            shard.mask_totals["train"] == 0,
            {
                "problem": "The graph has no training nodes.",
                "fix": "label some, or draw masks anew from the labels: --split 0.6,0.2",
            },
        ),
    }
    for name in names:
        absent, words = missing[name]
        if absent:
            raise DataError(
                words["problem"],
                seen=f"{shard.name}: {shard.num_nodes} nodes, masks {shard.mask_totals}",
                fix=words["fix"],
            )
