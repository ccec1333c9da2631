"""Which rank of a host receives a row that several of them need, found once for all stages.

A row is shared by the ranks that read it in the same stage. One of them has it first hand, from its
owner, which one by the row's number, so that all have about as many; it gives it to the others.
Rows whose owner is on the host itself come from there.

Shapes: R halo rows, S rows sent, K rows that a stage reads, A halo rows of other hosts, G different
ones on this host, F rows had first hand, V second hand.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from siafu.comm.halo import HaloPlan, Sharing, counts_by_peer, start_exchange, start_return
from siafu.comm.world import World


@dataclass(frozen=True, slots=True, eq=False)
class StageRows:
    """Which halo rows a stage reads, and which of the rows sent it sends, by peer."""

    read_K: Tensor
    """int64: where they stand among the R."""
    reads: Sequence[int]
    sent: Tensor
    """int64: where they stand among the S."""
    sends: Sequence[int]


def stage_plans(
    plan: HaloPlan, stages: Sequence[StageRows], world: World, ids_R: Tensor | None = None
) -> list[HaloPlan]:
    """Return the plan of each stage; every rank calls this together.

    With `ids_R`, numbers of the halo rows in the whole graph, ranks of a host share what they read.
    """
    shared = None if ids_R is None else _find(plan, stages, world, ids_R)
    if shared is None:
        return [
            HaloPlan.build(
                plan.send_rows[one.sent], list(one.sends), list(one.reads), plan.num_owned
            )
            for one in stages
        ]
    return [shared.plan_of(number, one, plan) for number, one in enumerate(stages)]


@dataclass(frozen=True, slots=True, eq=False)
class _Hand:
    """Rows that go between this rank and one beside it, sorted by stage."""

    rows: Tensor
    """int64: where they stand among the R."""
    bounds: list[int]
    """Where those of each stage begin and end."""

    def of(self, stage: int) -> Tensor:
        return self.rows[self.bounds[stage] : self.bounds[stage + 1]]


@dataclass(frozen=True, slots=True, eq=False)
class _Shared:
    """Who of this host has which row first hand."""

    is_first_R: Tensor
    needed_S: Tensor
    """Which of the rows sent are read first hand."""
    gives: dict[int, _Hand]
    takes: dict[int, _Hand]
    num_ranks: int

    def plan_of(self, stage: int, rows: StageRows, plan: HaloPlan) -> HaloPlan:
        """Return the plan of a stage."""
        needed, is_first_K = self.needed_S[rows.sent], self.is_first_R[rows.read_K]
        from_owners = HaloPlan.build(
            plan.send_rows[rows.sent[needed]],
            counts_by_peer(needed, tuple(rows.sends)),
            counts_by_peer(is_first_K, tuple(rows.reads)),
            plan.num_owned,
        )
        place_R = torch.empty_like(self.is_first_R, dtype=torch.int64)
        place_R[rows.read_K] = torch.arange(len(rows.read_K), device=place_R.device)
        first_F = is_first_K.nonzero().squeeze(1)
        place_K = is_first_K.cumsum(0) - 1
        gives = self._by_rank(self.gives, stage)
        takes = self._by_rank(self.takes, stage)
        within = HaloPlan.build(
            place_K[place_R[torch.cat(gives)]],
            [len(given) for given in gives],
            [len(taken) for taken in takes],
            len(first_F),
        )
        return replace(from_owners, sharing=Sharing(first_F, place_R[torch.cat(takes)], within))

    def _by_rank(self, hands: dict[int, _Hand], stage: int) -> list[Tensor]:
        nothing = torch.empty(0, dtype=torch.int64, device=self.is_first_R.device)
        return [
            hands[rank].of(stage) if rank in hands else nothing for rank in range(self.num_ranks)
        ]


def _find(
    plan: HaloPlan, stages: Sequence[StageRows], world: World, ids_R: Tensor
) -> _Shared | None:
    """Return who has which row first hand; None where no host would read any row twice."""
    beside = world.beside()
    owner_R = _peer_of(plan.recv_counts, ids_R.device)
    is_away_R = torch.ones(len(ids_R), dtype=torch.bool, device=ids_R.device)
    for rank in (*beside, world.rank):
        is_away_R &= owner_R != rank
    # Rows are told apart by their number and the stage that reads them.
    key_R = ids_R.clone()
    last = int(ids_R.max()) if len(ids_R) else 0
    table = world.gather_numbers([float(last), float(is_away_R.sum())])
    span = 1 + int(max(row[0] for row in table))
    for number, one in enumerate(stages):
        key_R[one.read_K] += number * span
    key_A, order_A = torch.sort(key_R[is_away_R])
    away_A = is_away_R.nonzero().squeeze(1)[order_A]
    keys = _told(key_A, [int(row[1]) for row in table], beside, world)

    host = sorted([*beside, world.rank])
    key_G, receiver_G = _receivers({rank: keys[rank] for rank in host}, span)

    def had_by(rank: int, keys_of: Tensor) -> Tensor:
        return receiver_G[torch.searchsorted(key_G, keys_of)] == rank

    first_A = had_by(world.rank, key_A)
    is_first_R = ~is_away_R
    is_first_R[away_A[first_A]] = True
    saved = sum(row[0] for row in world.gather_numbers([float((~first_A).sum())]))
    if not saved:
        return None
    asked = start_return(is_first_R.to(torch.uint8)[:, None], plan, world, "control")
    needed_S = asked.wait(world, "finding which rows a host needs").squeeze(1) > 0

    bounds = torch.arange(len(stages) + 1, device=key_A.device) * span

    def hand(key: Tensor, rows: Tensor) -> _Hand:
        return _Hand(rows, torch.searchsorted(key, bounds).tolist())

    gives, takes = {}, {}
    for rank in beside:
        given = keys[rank][had_by(world.rank, keys[rank])]
        gives[rank] = hand(given, away_A[torch.searchsorted(key_A, given)])
        taken_A = had_by(rank, key_A)
        takes[rank] = hand(key_A[taken_A], away_A[taken_A])
    return _Shared(is_first_R, needed_S, gives, takes, world.size)


def _peer_of(counts: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the rank that each row belongs to."""
    ranks = torch.arange(len(counts), device=device)
    return ranks.repeat_interleave(torch.tensor(counts, device=device))


def _told(
    key_A: Tensor, counts: list[int], beside: tuple[int, ...], world: World
) -> dict[int, Tensor]:
    """Return the keys of this rank and of those beside it."""
    sent = tuple(len(key_A) if rank in beside else 0 for rank in range(world.size))
    read = tuple(counts[rank] if rank in beside else 0 for rank in range(world.size))
    keys = torch.cat([key_A[:0], *(key_A for _ in beside)])
    pending = start_exchange(keys, sent, read, world, "control")
    found = pending.wait(world, "finding which rows a host shares").split(list(read))
    return {world.rank: key_A, **{rank: found[rank] for rank in beside}}


def _receivers(keys: dict[int, Tensor], span: int) -> tuple[Tensor, Tensor]:
    """Return the different keys of a host, sorted, and the rank that has each first hand."""
    every = torch.cat(list(keys.values()))
    sizes = torch.tensor([len(one) for one in keys.values()], device=every.device)
    rank = torch.tensor(list(keys), device=every.device).repeat_interleave(sizes)
    every, order = torch.sort(every, stable=True)
    key_G, count_G = every.unique_consecutive(return_counts=True)
    start_G = count_G.cumsum(0) - count_G
    return key_G, rank[order][start_G + key_G % span % count_G]
