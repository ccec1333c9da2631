"""Masks for graphs whose data has none, and sentences that say what was drawn."""

from siafu.graph import MASKS, Graph, draw_split

DEFAULT_SPLIT = "0.6,0.2"


def with_split(graph: Graph, split: str | None, seed: int) -> tuple[Graph, list[str]]:
    """Return the graph with masks, drawn where it has none or where a split is asked for."""
    has_masks = all(getattr(graph, name) is not None for name in MASKS)
    if has_masks and split is None:
        return graph, []
    if graph.y is None and split is None:
        return graph, ["No labels in the data, so no masks were drawn."]
    graph = draw_split(graph, split or DEFAULT_SPLIT, seed)
    why = f"Split {split} was asked for, so the masks in the data are not used"
    return graph, [f"{why if has_masks else 'No masks in the data'}: drew {_sizes(graph, seed)}"]


def _sizes(graph: Graph, seed: int) -> str:
    counts = [int(mask.sum()) for mask in (graph.train, graph.val, graph.test) if mask is not None]
    shares = "/".join(f"{100 * count / max(1, sum(counts)):.0f}" for count in counts)
    numbers = "/".join(f"{count:,}" for count in counts)
    return f"{shares} % ({numbers} vertices) from seed {seed}."
