"""The numbers of a graph that was cut, and of the model that settings make for it."""

from siafu.config import RunConfig
from siafu.engine import make_spec
from siafu.nn import CARDS, ModelSpec
from siafu.partitioning import Parts
from siafu.plan import CutStatistics, GraphStatistics


def statistics_of_parts(parts: Parts, rank: int | None = None) -> GraphStatistics:
    """Return the numbers of a graph with its cut, of which a rank's part may stand for all."""
    facts, quality = parts.facts["graph"], parts.quality
    train = sum(quality.training) / max(1, sum(quality.nodes))
    cut = CutStatistics.of(quality)
    if rank is not None:
        own = {
            "rows": quality.nodes[rank],
            "edges": quality.edges[rank],
            "largest_halo": quality.halo_rows[rank],
        }
        cut = cut.model_copy(update=own)
    part = parts.part(0)
    stored = None
    if "x_index" in part:
        entries = part.entry("x_index").shape[0]
        stored = 8 + 8 * entries / max(1, quality.nodes[0])
    attr = part.entry("edge_attr").shape[1] if "edge_attr" in part else 0
    return GraphStatistics(
        name=facts["name"],
        nodes=facts["num_nodes"],
        edges=facts["num_edges"],
        features=max(1, facts["num_features"]),
        classes=max(1, facts.get("num_targets") or facts["num_classes"]),
        train_share=train,
        edge_types=facts.get("num_edge_types", 0),
        edge_features=attr,
        is_weighted="edge_weight" in part,
        stored_feature_bytes=stored,
        cuts=(cut,),
        method=parts.facts["method"],
    )


def spec_of(config: RunConfig, statistics: GraphStatistics) -> ModelSpec:
    """Return the model that the settings make for such a graph."""
    resolved = config.resolved()
    return make_spec(
        resolved,
        in_width=statistics.features,
        out_width=statistics.classes,
        edge_width=statistics.edge_features if resolved.edge_features else 0,
        num_types=statistics.edge_types or (3 if CARDS[config.model].needs_types else 0),
    )
