"""What work costs on a machine: measured once (`calibration.py`) and kept, or from a file.

Costs are seconds per element, at one thread and at all; how many ranks share the machine decides
what each gets of it.
"""

import datetime
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from siafu.errors import ConfigError
from siafu.files import cache_folder, read_json, write_text_atomically
from siafu.nn.precision import BYTES, Precision
from siafu.plan.memory import PROCESS_BYTES

NEAR_BYTES, FAR_BYTES = 1 << 20, 128 << 20
"""Rows that gathers read from: those that a cache holds, and those that none does."""
_MOST_DAYS = 90
_TOGETHER = 0.5
"""Of the cost with all threads: what so many ranks reach at best, which wake no threads."""
_VERSION = 3

_Cost = float


class Link(BaseModel):
    """What lies between two ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    bytes_per_second: float = Field(gt=0)
    """That a rank sends while it receives as much."""
    latency_seconds: float = Field(ge=0)
    """Of a small message."""
    is_shared: bool = False
    """Ranks of one machine, which copy with the cores they compute on."""


class Rates(BaseModel):
    """Seconds per element of each kind of work, with so many threads."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    threads: int = Field(ge=1)
    near: dict[int, _Cost]
    """Per edge and column of a sum, by columns, from rows that a cache holds."""
    far: dict[int, _Cost]
    """The same from rows that none holds."""
    product: dict[int, _Cost]
    """Per multiplication of a product, by columns of the square weight."""
    element: _Cost
    """Of a pass over a tensor, such as a sum of two."""
    draw: _Cost
    """Of dropout."""
    select: _Cost
    """Per entry of rows picked by number."""
    attend: tuple[_Cost, _Cost]
    """Per edge and column of attention, forward and backward."""
    maximum: _Cost
    """Per edge and column."""
    code: _Cost
    """Per entry that is rounded, sent and decoded."""
    sample: _Cost
    """Per edge drawn."""
    whole: float = Field(1.0, gt=0)
    """What a real step takes over the sum of its parts: threads that wake and wait for others."""

    def times(self, factor: float, *, attend: float) -> "Rates":
        """Return costs of rows so many times as wide."""
        by_width = {
            name: {width: factor * cost for width, cost in getattr(self, name).items()}
            for name in ("near", "far", "product")
        }
        alike = {
            name: factor * getattr(self, name) for name in ("element", "draw", "select", "maximum")
        }
        there, back = self.attend
        both = {"attend": (attend * there, attend * back)}
        return self.model_copy(update=by_width | alike | both)


class Machine(BaseModel):
    """What a machine's work costs."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    version: int = _VERSION
    name: str
    date: datetime.date
    torch: str
    device: str = "cpu"
    cores: int = Field(ge=1)
    rates: tuple[Rates, ...] = Field(min_length=1)
    """By threads, fewest first; of a GPU one."""
    layer_seconds: float = Field(ge=0)
    """Of a layer of a few rows, forward and backward: what no row or edge accounts for."""
    attend_layer_seconds: float = Field(ge=0)
    """The same of attention."""
    step_seconds: float = Field(ge=0)
    """Of a step beside its layers: loss, optimiser, bookkeeping."""
    link: Link
    """Between ranks of this machine."""
    process_bytes: int = Field(PROCESS_BYTES, ge=0)
    """Of a process that has loaded all that a rank needs."""

    def shared(self, ranks: int, threads: int = 0) -> "Share":
        """Return what each of so many ranks on one machine has of it."""
        each = threads or max(1, self.cores // ranks)
        return Share(machine=self, busy=min(self.cores, each * ranks), ranks=ranks, threads=each)

    def in_precision(self, precision: Precision) -> "Machine":
        """Return the costs of numbers of another width than float32, which were measured.

        Work takes as long as its bytes; attention half of that, whose softmax stays float32. Cores
        widen bfloat16 rows before they sum them, and gain nothing there.
        """
        times = BYTES[precision] / BYTES["float32"]
        if times == 1 or (times < 1 and self.is_cpu):
            return self
        rates = tuple(one.times(times, attend=max(times, (1 + times) / 2)) for one in self.rates)
        return self.model_copy(update={"rates": rates})

    @property
    def is_cpu(self) -> bool:
        """Whether it computes on cores."""
        return self.device == "cpu"


class Share(BaseModel):
    """A rank's share of a machine."""

    model_config = ConfigDict(frozen=True)

    machine: Machine
    busy: int
    """Threads of all ranks together, no more than there are cores."""
    ranks: int
    threads: int
    """Of this rank."""

    def limited(self, threads: int) -> "Share":
        """Return the share of a rank that uses no more threads than that."""
        each = max(1, min(self.threads, threads))
        busy = min(self.machine.cores, each * self.ranks)
        return self.model_copy(update={"threads": each, "busy": busy})

    def gather(self, width: int, table_bytes: float) -> float:
        """Return the seconds per edge and column of a sum over rows of a table of that size."""
        place = math.log(max(1.0, table_bytes) / NEAR_BYTES) / math.log(FAR_BYTES / NEAR_BYTES)
        place = min(1.0, max(0.0, place))
        near = self._cost(lambda rates: at_width(rates.near, width))
        far = self._cost(lambda rates: at_width(rates.far, width))
        return math.exp((1 - place) * math.log(near) + place * math.log(far))

    def product(self, width: int) -> float:
        """Return the seconds per multiplication, where the narrower side has that many columns."""
        return self._cost(lambda rates: at_width(rates.product, width))

    def of(self, name: str) -> float:
        """Return the seconds per element of another kind of work."""
        return self._cost(lambda rates: getattr(rates, name))

    def attend(self, backward: bool) -> float:
        """Return the seconds per edge and column of attention."""
        return self._cost(lambda rates: rates.attend[backward])

    @property
    def whole(self) -> float:
        """What a real step takes over the sum of its parts."""
        return at_threads(
            {rates.threads: rates.whole for rates in self.machine.rates}, self.threads
        )

    def _cost(self, read: Callable[[Rates], float]) -> float:
        """Return a cost for this rank; all ranks together are no faster than all threads of one."""
        rates = self.machine.rates
        mine = at_threads({one.threads: float(read(one)) for one in rates}, self.threads)
        if not self.machine.is_cpu:
            return mine * self.ranks
        least = _TOGETHER * float(read(rates[-1])) * rates[-1].threads / self.machine.cores
        return max(mine, self.ranks * least)


def at_threads(costs: Mapping[int, float], threads: int) -> float:
    """Return a cost between those that were measured, on logarithmic axes."""
    known = sorted(costs)
    threads = min(max(threads, known[0]), known[-1])
    high = next(one for one in known if one >= threads)
    if high == known[0]:
        return costs[high]
    low = known[known.index(high) - 1]
    share = math.log(threads / low) / math.log(high / low)
    return math.exp((1 - share) * math.log(costs[low]) + share * math.log(costs[high]))


def at_width(costs: Mapping[int, float], width: int) -> float:
    """Return the cost at a width, between those that were measured on logarithmic axes."""
    known = sorted(costs)
    width = max(1, width)
    if width <= known[0]:
        # A row takes as long as the narrowest measured: what it costs is to find it.
        return costs[known[0]] * known[0] / width
    if width >= known[-1]:
        return costs[known[-1]]
    high = next(one for one in known if one >= width)
    low = known[known.index(high) - 1]
    share = math.log(width / low) / math.log(high / low)
    return math.exp((1 - share) * math.log(costs[low]) + share * math.log(costs[high]))


def machine_file(device: str) -> Path:
    """Return where the costs of this machine are kept, by torch, threads and device."""
    cores = len(os.sched_getaffinity(0))
    key = f"{torch.__version__}-{cores}-{device}".replace("/", "_").replace(" ", "_")
    return cache_folder() / "machine" / f"{key}.json"


def read_machine(path: Path) -> Machine:
    """Return the costs that a file holds."""
    try:
        return Machine(**read_json(path))
    except (OSError, ValueError, TypeError) as error:
        seen = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            seen = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise ConfigError(
            "The costs of a machine can't be read.",
            seen=f"{path}: {seen}",
            fix="give a file that `siafu plan --calibrate` wrote, or leave --machine out",
        ) from error


def kept_machine(device: str, today: datetime.date) -> Machine | None:
    """Return the costs that were measured here, unless that was long ago."""
    path = machine_file(device)
    if not path.exists():
        return None
    try:
        found = read_machine(path)
    except ConfigError:  # of an earlier version, or damaged: it is measured anew
        return None
    is_old = (today - found.date).days > _MOST_DAYS
    return None if is_old or found.version != _VERSION else found


def keep_machine(machine: Machine) -> Path:
    """Write the costs of this machine where later plans look for them, and return the place."""
    path = machine_file(machine.device)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(path, machine.model_dump_json(indent=1))
    return path


TYPICAL = Machine(
    name="a server",
    date=datetime.date(2026, 11, 16),
    torch="2.11",
    cores=16,
    rates=(
        Rates(
            threads=1,
            near={16: 3.4e-10, 64: 7.6e-11, 256: 6.7e-11},
            far={16: 4.3e-10, 64: 1.8e-10, 256: 2.6e-10},
            product={16: 2e-11, 64: 1.3e-11, 256: 1.2e-11},
            element=4.4e-10,
            draw=1.4e-9,
            select=3.5e-10,
            attend=(1.1e-9, 3.3e-9),
            maximum=3.5e-10,
            code=1.5e-9,
            sample=1.3e-8,
            whole=1.5,
        ),
    ),
    layer_seconds=4.4e-4,
    attend_layer_seconds=2e-3,
    step_seconds=2e-3,
    link=Link(bytes_per_second=1.7e9, latency_seconds=8e-5, is_shared=True),
)
"""One core of a Xeon server: for comparisons where nothing was measured yet."""
