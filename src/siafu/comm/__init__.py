"""Moving rows between ranks, differentiably, counted, with deadlines.

The only user of torch.distributed.
"""

from siafu.comm.coding import Coding
from siafu.comm.halo import (
    Codings,
    HaloPlan,
    PendingRows,
    add_returned,
    exchange_halo,
    reduce_gradients,
    start_exchange,
    start_fetch,
    start_return,
    sum_over_ranks,
)
from siafu.comm.meter import Meter
from siafu.comm.world import DEFAULT_DEADLINE_SECONDS, STORE_VARIABLE, World, choose_device

__all__ = [
    "DEFAULT_DEADLINE_SECONDS",
    "STORE_VARIABLE",
    "Coding",
    "Codings",
    "HaloPlan",
    "Meter",
    "PendingRows",
    "World",
    "add_returned",
    "choose_device",
    "exchange_halo",
    "reduce_gradients",
    "start_exchange",
    "start_fetch",
    "start_return",
    "sum_over_ranks",
]
