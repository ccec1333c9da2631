"""Make two messy tables: customers, some of them fraudsters, and the transactions between them.

Run: python examples/fraud/make_data.py data/fraud [--customers 100000] [--transactions 1000000]

Writes customers.csv and transactions.csv, and new/ with both tables again a month later: more
customers, whose fraud nobody has found yet, and the columns in another order; new/found_later.csv
holds what was found out about them. Tables are as people have them: ids with leading zeros, missing
ages and incomes, text for categories, yes and no, dates, duplicate transactions, and transactions
with accounts that are in no table.

One customer in a hundred is a fraudster. What a customer says of himself gives that away only a
little. Fraudsters work in rings: they pay each other, and mules in between, by transfer.

Shapes: N customers, M transactions, R rings.
"""

import argparse
import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Days = NDArray[np.datetime64]

COUNTRIES = np.array(["DE", "FR", "NL", "PL", "ES", "IT", "SE", "PT", "AT", "CZ", "RO", "GR"])
SEGMENTS = np.array(["retail", "student", "business", "private banking"])
CHANNELS = np.array(["card", "transfer", "cash", "standing order"])
RING_SIZE = 12
FRAUD_SHARE = 0.01
NEW_SHARE = 0.05
"""Of the customers: those who join in the last month."""
UNKNOWN_SHARE = 0.002
DUPLICATE_SHARE = 0.005
FIRST_DAY, LAST_DAY = np.datetime64("2023-01-01"), np.datetime64("2026-06-30")


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """All customers and transactions, old and new; customers are numbered in order of joining."""

    is_fraud_N: NDArray[np.bool_]
    customers: dict[str, list[str]]
    transactions: dict[str, list[str]]
    num_old: int
    """Customers before the last month."""
    is_old_M: NDArray[np.bool_]
    """Transactions between those."""


def make_world(num_customers: int, num_transactions: int, seed: int) -> World:
    """Return customers and transactions, drawn from a seed."""
    rng = np.random.default_rng(seed)
    is_fraud_N = rng.random(num_customers) < FRAUD_SHARE
    num_old = int(num_customers * (1 - NEW_SHARE))
    source_M, target_M, is_ring_M = _pairs(rng, is_fraud_N, num_transactions)
    days_N = rng.random(num_customers) * (LAST_DAY - FIRST_DAY).astype(int)
    joined_N = np.sort(FIRST_DAY + days_N.astype(int))
    return World(
        is_fraud_N=is_fraud_N,
        customers=_customers(rng, is_fraud_N, joined_N),
        transactions=_transactions(rng, source_M, target_M, is_ring_M, joined_N),
        num_old=num_old,
        is_old_M=(source_M < num_old) & (target_M < num_old),
    )


def _pairs(
    rng: np.random.Generator, is_fraud_N: NDArray[np.bool_], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return who pays whom: mostly by popularity, within rings for a part of what fraudsters do."""
    num = len(is_fraud_N)
    source_M = rng.integers(0, num, count)
    # Shops and landlords get most of the payments.
    target_M = (num * rng.random(count) ** 3).astype(np.int64)
    shuffled_N = rng.permutation(num)
    target_M = shuffled_N[target_M]
    fraudsters = rng.permutation(np.flatnonzero(is_fraud_N))
    mules = rng.choice(np.flatnonzero(~is_fraud_N), max(1, len(fraudsters) // 4), replace=False)
    ring_of = np.arange(len(fraudsters)) // RING_SIZE
    num_rings = int(ring_of.max(initial=0)) + 1
    is_ring_M = is_fraud_N[source_M] & (rng.random(count) < 0.5)
    rings_M = np.zeros(num, np.int64)
    rings_M[fraudsters] = ring_of
    for row in np.flatnonzero(is_ring_M):
        ring = rings_M[source_M[row]]
        others = fraudsters[ring * RING_SIZE : (ring + 1) * RING_SIZE]
        helpers = mules[ring % num_rings :: num_rings]
        target_M[row] = rng.choice(helpers if len(helpers) and rng.random() < 0.3 else others)
    return source_M, target_M, is_ring_M


def _customers(
    rng: np.random.Generator, is_fraud_N: NDArray[np.bool_], joined_N: Days
) -> dict[str, list[str]]:
    """Return the columns of the customers' table as text."""
    num = len(is_fraud_N)
    age_N = np.clip(rng.normal(46 - 12 * is_fraud_N, 15), 18, 95).round()
    income_N = np.exp(rng.normal(10.3 - 0.4 * is_fraud_N, 0.6)).round(2)
    country_N = COUNTRIES[np.minimum(rng.geometric(0.3, num) - 1, len(COUNTRIES) - 1)]
    segment_N = SEGMENTS[np.minimum(rng.geometric(0.55, num) - 1, len(SEGMENTS) - 1)]
    verified_N = np.where(rng.random(num) < 0.93 - 0.4 * is_fraud_N, "yes", "no")
    columns = {
        "customer": [f"{number:07d}" for number in range(num)],
        "age": _with_gaps(rng, [f"{age:.0f}" for age in age_N], 0.06),
        "income": _with_gaps(rng, [f"{income:.2f}" for income in income_N], 0.12),
        "country": _with_gaps(rng, country_N.tolist(), 0.02),
        "segment": segment_N.tolist(),
        "verified": verified_N.tolist(),
        "joined": [str(day) for day in joined_N],
    }
    # Of one in five nobody ever looked whether they are.
    label = np.where(is_fraud_N, "1", "0").tolist()
    return columns | {"is_fraud": _with_gaps(rng, label, 0.2)}


def _with_gaps(rng: np.random.Generator, values: list[str], share: float) -> list[str]:
    is_gap = rng.random(len(values)) < share
    return ["" if gap else value for value, gap in zip(values, is_gap.tolist(), strict=True)]


def _transactions(
    rng: np.random.Generator,
    source_M: NDArray[np.int64],
    target_M: NDArray[np.int64],
    is_ring_M: NDArray[np.bool_],
    joined_N: Days,
) -> dict[str, list[str]]:
    """Return the columns of the transactions' table as text; both sides had joined by then."""
    count = len(source_M)
    amount_M = np.exp(rng.normal(3.6 + 0.3 * is_ring_M, 1.1)).round(2)
    first_M = np.maximum(joined_N[source_M], joined_N[target_M])
    day_M = first_M + (rng.random(count) * (LAST_DAY - first_M).astype(int)).astype(int)
    channel_M = CHANNELS[np.minimum(rng.geometric(0.5, count) - 1, len(CHANNELS) - 1)]
    channel_M = np.where(is_ring_M & (rng.random(count) < 0.3), "transfer", channel_M)
    to = [f"{number:07d}" for number in target_M]
    for row in np.flatnonzero(rng.random(count) < UNKNOWN_SHARE):
        to[row] = f"X{row:06d}"  # an account at another bank
    return {
        "from": [f"{number:07d}" for number in source_M],
        "to": to,
        "amount": [f"{amount:.2f}" for amount in amount_M],
        "channel": _with_gaps(rng, channel_M.tolist(), 0.01),
        "date": [str(day) for day in day_M],
    }


def write_world(world: World, folder: Path, seed: int) -> None:
    """Write the tables as they are now, and in `new` those of a month later."""
    rng = np.random.default_rng(seed + 1)
    count, old_rows = len(world.is_old_M), np.flatnonzero(world.is_old_M)
    again = rng.choice(old_rows, int(DUPLICATE_SHARE * len(old_rows)), replace=False)
    old = {name: values[: world.num_old] for name, values in world.customers.items()}
    write_table(folder / "customers.csv", old)
    write_table(
        folder / "transactions.csv", _rows(world.transactions, np.concatenate([old_rows, again]))
    )
    new = {name: world.customers[name] for name in sorted(world.customers) if name != "is_fraud"}
    write_table(folder / "new" / "customers.csv", new)
    reverse = dict(reversed(world.transactions.items()))
    write_table(folder / "new" / "transactions.csv", _rows(reverse, np.arange(count)))
    later = range(world.num_old, len(world.is_fraud_N))
    found = {
        "customer": [world.customers["customer"][row] for row in later],
        "is_fraud": [str(int(world.is_fraud_N[row])) for row in later],
    }
    write_table(folder / "new" / "found_later.csv", found)


def _rows(columns: dict[str, list[str]], rows: NDArray[np.int64]) -> dict[str, list[str]]:
    return {name: [values[row] for row in rows.tolist()] for name, values in columns.items()}


def write_table(path: Path, columns: dict[str, list[str]]) -> None:
    """Write columns of text as a CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def main() -> None:
    """Write the tables that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--customers", type=int, default=100_000)
    parser.add_argument("--transactions", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    told = parser.parse_args()
    write_world(make_world(told.customers, told.transactions, told.seed), told.folder, told.seed)


if __name__ == "__main__":
    main()
