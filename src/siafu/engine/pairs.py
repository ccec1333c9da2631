"""Judging pairs of vertices whose rows may lie on other ranks.

Shapes: n vertices of this rank, E pairs, D embedding width, O answers.
"""

from torch import Tensor, nn

from siafu.nn import PairHead
from siafu.shard import VertexShare


def judge(
    head: nn.Module, share: VertexShare, rows_nD: Tensor, source_E: Tensor, target_E: Tensor
) -> Tensor:
    """Return out_EO of pairs whose sources are this rank's; all ranks of a snapshot call it.

    Targets are mapped where their rows are, so that no row travels wider than the head needs.
    """
    assert isinstance(head, PairHead)
    source_EH = head.source(rows_nD).index_select(0, share.rows(source_E))
    return head.joined(source_EH + share.fetch(head.target(rows_nD), target_E))
