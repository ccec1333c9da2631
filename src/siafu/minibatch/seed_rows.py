"""Vertices to start minibatches from, as users name them: rows, a mask, or ids of their own."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from siafu.errors import ConfigError, DataError
from siafu.shard import Shard


@dataclass(frozen=True, eq=False)
class SeedRows:
    """This rank's seeds, each once."""

    rows: Tensor
    """int64: owned rows, rising."""
    places: Tensor
    """int64: where each was first named."""

    @classmethod
    def build(cls, named: Tensor, places: Tensor) -> "SeedRows":
        """Return the seeds of rows named at these places, the places rising."""
        order = named.argsort(stable=True)
        named, places = named[order], places[order]
        is_first = torch.ones(len(named), dtype=torch.bool)
        is_first[1:] = named[1:] != named[:-1]
        return cls(named[is_first], places[is_first])

    def places_of(self, rows: Tensor) -> Tensor:
        """Return where each of these seeds was named."""
        return self.places[torch.searchsorted(self.rows, rows)]


def seeds_by_row(shard: Shard, named: Tensor | None) -> SeedRows:
    """Return seeds given as a mask of the owned rows or by row; all rows without either."""
    if named is None:
        every = torch.arange(shard.num_owned)
        return SeedRows(every, every)
    named = torch.as_tensor(named)
    if named.dtype == torch.bool:
        if named.shape != (shard.num_owned,):
            raise DataError(
                "The mask of input vertices does not fit the shard.",
                seen=f"{tuple(named.shape)} entries for {shard.num_owned} owned rows",
                fix="give one entry for each owned row, or row numbers as shard.train",
            )
        named = named.nonzero().squeeze(1)
    if named.dim() != 1 or named.is_floating_point():
        raise DataError(
            "Input vertices can't be read.",
            seen=f"{named.dtype}, shape {tuple(named.shape)}",
            fix="give row numbers [B], a mask of the owned rows, or input_ids=...",
        )
    named = named.long()
    bad = named[(named < 0) | (named >= shard.num_owned)]
    if len(bad):
        raise DataError(
            "An input vertex does not exist.",
            seen=f"row {int(bad[0])} of rank {shard.world.rank}, which owns {shard.num_owned}",
            fix="give rows of this rank's shard, or ids of the data as input_ids=...",
        )
    return SeedRows.build(named, torch.arange(len(named)))


def seeds_by_id(shard: Shard, ids: Sequence[int | str], rows: Tensor | None) -> SeedRows:
    """Return this rank's seeds of those that all ranks name alike, by the user's ids."""
    if rows is not None:
        raise ConfigError(
            "Input vertices are named twice.",
            seen="input_nodes and input_ids",
            fix="give one of them",
        )
    known = shard.ids.to_arrow()
    named = list(ids)
    try:
        wanted = pa.array(named).cast(known.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise DataError(
            "Input ids are not of the kind that the data has.",
            seen=f"{named[:3]}, where ids are {known.type}",
            fix="give ids as they are in the data",
        ) from error
    shard.world.check_agreement("input ids", repr(wanted.to_pylist()))
    found = pc.index_in(wanted, value_set=known).fill_null(-1)
    row = torch.from_numpy(found.to_numpy().astype("int64"))
    is_here = row >= 0
    owners = shard.world.sum_in_place(is_here.long().to(shard.world.device), "control").cpu()
    missing = (owners == 0).nonzero().squeeze(1).tolist()
    if missing:
        raise DataError(
            f"{len(missing)} of the input ids are not in the graph.",
            seen=", ".join(repr(named[place]) for place in missing[:5]),
            fix="give ids as they are in the data",
        )
    return SeedRows.build(row[is_here], is_here.nonzero().squeeze(1))
