"""The rows one layer reads and writes on a rank: all owned ones, or those that are needed.

A layer near the labels needs few rows, the layer before it those and their in-neighbours, and so on
(message-flow graphs). Which they are is found once, from the labelled rows backwards, on all ranks.

Shapes: N owned rows read, M rows written, R halo rows read, C = N + R columns, E edges.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from siafu.comm import HaloPlan, World, counts_by_peer, exchange_halo, start_return
from siafu.comm.once import ComputedOnce
from siafu.nn.normalisation import added_loop, owned_degree
from siafu.ops import CSR
from siafu.shard import Shard


@dataclass(frozen=True, eq=False)
class View:
    """What one layer sees of a shard."""

    csr: CSR
    """M x C: all in-edges of the rows that are written."""
    plan: HaloPlan
    world: World
    in_ids: Tensor
    """int64 [N]: numbers in the whole graph of the rows that are read."""
    out_ids: Tensor
    """int64 [M]: the same of the rows that are written."""
    degree_N: Tensor
    """float64: weighted in-degrees with GCN's loop, of the rows that are read."""
    loop_M: Tensor
    """float64: 1 where GCN adds a loop to a row that is written."""
    read_rows_N: Tensor | None = None
    """int64: where each row that is read stands in the shard; None: all of them, in order."""
    own_rows_M: Tensor | None = None
    """int64: where each row that is written stands among those read; None: they are the same."""
    edges_E: Tensor | None = None
    """int64: the number of each edge in the shard; None: all of them, in order."""

    @property
    def num_read(self) -> int:
        """N."""
        return len(self.in_ids)

    @ComputedOnce
    def column_ids(self) -> Tensor:
        """int64 [C]: number in the whole graph of each column; fetched once."""
        return torch.cat([self.in_ids, exchange_halo(self.in_ids, self.plan, self.world)])


def whole_view(shard: Shard) -> View:
    """Return a view of all rows."""
    degree_N, loop_N = owned_degree(shard.csr), added_loop(shard.csr)
    ids = shard.row_ids
    return View(shard.csr, shard.plan, shard.world, ids, ids, degree_N, loop_N)


def message_flow(shard: Shard, labelled: Tensor, layers: int) -> list[View]:
    """Return a view for each layer, such that the last writes the labelled rows, in their order.

    Every rank calls this together.
    """
    whole = whole_view(shard)
    views: list[View] = []
    written = labelled
    for _ in range(layers):
        view, written = _view_before(shard, whole, written)
        views.append(view)
    return views[::-1]


def _view_before(shard: Shard, whole: View, written_M: Tensor) -> tuple[View, Tensor]:
    """Return the view of a layer that writes these rows, and the owned rows it reads."""
    csr, edges_E = shard.csr.select_rows(written_M)
    used_C = torch.zeros(shard.csr.num_cols, dtype=torch.bool, device=csr.device)
    used_C[csr.index.long()] = True
    used_C[written_M] = True
    halo_R = used_C[shard.num_owned :]
    asked_S = start_return(halo_R.to(torch.uint8)[:, None], shard.plan, shard.world, "control")
    needed_S = asked_S.wait(shard.world, "finding which rows a layer needs").squeeze(1) > 0
    used_C[shard.plan.send_rows[needed_S]] = True
    read_N = used_C[: shard.num_owned].nonzero().squeeze(1)
    place_C = used_C.cumsum(0) - 1
    plan = HaloPlan.build(
        place_C[shard.plan.send_rows[needed_S]],
        counts_by_peer(needed_S, shard.plan.send_counts),
        counts_by_peer(halo_R, shard.plan.recv_counts),
        len(read_N),
    )
    index = place_C[csr.index.long()].to(csr.index.dtype)
    view = View(
        CSR(csr.indptr, index, int(used_C.sum()), csr.weight),
        plan,
        shard.world,
        shard.row_ids[read_N],
        shard.row_ids[written_M],
        whole.degree_N[read_N],
        whole.loop_M[written_M],
        read_N,
        place_C[written_M],
        edges_E,
    )
    return view, read_N
