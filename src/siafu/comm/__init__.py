"""Moving rows between ranks, differentiably, counted, with deadlines.

The only user of torch.distributed.
"""

from siafu.comm.coding import FORMATS, UNCHANGED, Coding, Format, Lot
from siafu.comm.columns import Turn, share_rows, to_columns, to_rows
from siafu.comm.crew import RankCrew
from siafu.comm.dealing import Dealing
from siafu.comm.devices import choose_device, sharers
from siafu.comm.doing import Deed, Doing, read_deed
from siafu.comm.everywhere import rows_of_all
from siafu.comm.gradients import reduce_gradients
from siafu.comm.halo import (
    Codings,
    HaloPlan,
    PendingRows,
    add_returned,
    counts_by_peer,
    exchange_halo,
    fetch_kept,
    start_coded,
    start_exchange,
    start_fetch,
    start_return,
    sum_over_ranks,
)
from siafu.comm.kept import ROWS_AT_ONCE, Keeping, KeptRows
from siafu.comm.mailbox import Mail, Mailbox
from siafu.comm.meter import Meter
from siafu.comm.ordered import sum_in_order
from siafu.comm.overdue import told_by_first
from siafu.comm.parcels import bring_files, give_files
from siafu.comm.redistribute import (
    BACKWARD,
    FORWARD,
    MakeCodings,
    Redistribution,
    even_counts,
    gather_steps,
    start_receive,
    start_send,
    to_nodes,
    to_steps,
)
from siafu.comm.requests import Inquiry, ask, tell
from siafu.comm.sharing import StageRows, stage_plans
from siafu.comm.world import (
    DEFAULT_DEADLINE_SECONDS,
    HOST_VARIABLE,
    SOCKET_VARIABLE,
    STORE_VARIABLE,
    World,
)

__all__ = [
    "BACKWARD",
    "DEFAULT_DEADLINE_SECONDS",
    "FORMATS",
    "FORWARD",
    "HOST_VARIABLE",
    "ROWS_AT_ONCE",
    "SOCKET_VARIABLE",
    "STORE_VARIABLE",
    "UNCHANGED",
    "Coding",
    "Codings",
    "Dealing",
    "Deed",
    "Doing",
    "Format",
    "HaloPlan",
    "Inquiry",
    "Keeping",
    "KeptRows",
    "Lot",
    "Mail",
    "Mailbox",
    "MakeCodings",
    "Meter",
    "PendingRows",
    "RankCrew",
    "Redistribution",
    "StageRows",
    "Turn",
    "World",
    "add_returned",
    "ask",
    "bring_files",
    "choose_device",
    "counts_by_peer",
    "even_counts",
    "exchange_halo",
    "fetch_kept",
    "gather_steps",
    "give_files",
    "read_deed",
    "reduce_gradients",
    "rows_of_all",
    "share_rows",
    "sharers",
    "stage_plans",
    "start_coded",
    "start_exchange",
    "start_fetch",
    "start_receive",
    "start_return",
    "start_send",
    "sum_in_order",
    "sum_over_ranks",
    "tell",
    "to_columns",
    "to_nodes",
    "to_rows",
    "to_steps",
    "told_by_first",
]
