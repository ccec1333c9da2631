"""A shard on another device than it was opened on."""

from dataclasses import replace

import torch
from torch import Tensor

from siafu.comm import HaloPlan
from siafu.ops import CSR
from siafu.shard.shard import Shard


def moved_shard(shard: Shard, device: torch.device) -> Shard:
    """Return the shard with all its tensors on a device; it may not be one that stays on disk."""
    assert not shard.is_mapped, "a shard on disk stays there"
    plan = shard.plan

    def there(column: Tensor | None) -> Tensor | None:
        return None if column is None else column.to(device)

    return replace(
        shard,
        csr=shard.csr.to(device),
        plan=HaloPlan.build(
            plan.send_rows.to(device),
            list(plan.send_counts),
            list(plan.recv_counts),
            shard.num_owned,
        ),
        row_ids=shard.row_ids.to(device),
        x=shard.x.to(device) if isinstance(shard.x, CSR) else there(shard.x),
        y=there(shard.y),
        masks={name: rows.to(device) for name, rows in shard.masks.items()},
        edge_attr=there(shard.edge_attr),
        edge_type=there(shard.edge_type),
        edge_y=there(shard.edge_y),
        edge_split=there(shard.edge_split),
        _halo_ids=[],
    )
