"""How an epoch is cut up, how neighbours are reached, and what may be lost: one frozen value."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from siafu.errors import ConfigError, did_you_mean
from siafu.nn.precision import BYTES, Precision

Exactness = Literal["exact", "rounded", "unbiased", "bounded"]

_WIRES = (32, 16, 8, 4, 2, 1, 0, "bf16", "fp8", "adaptive", "random")

_SLACK = 1e-9
"""A share k / n of n stages is k of them, whatever division leaves over."""
EVERY_PEER = 1 << 30
"""More stages than there are ranks: one for each peer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """Independent choices; the published systems are presets, other points are free."""

    unit: Literal["graph", "macrobatch", "interval"] = "graph"
    """What is worked on together: the whole graph, the samples of some minibatches, or an interval
    of a rank's nodes. A step is one of the whole graph, or of a minibatch on each rank."""
    macrobatch: int | Literal["auto"] = 1
    """Steps whose samples are drawn and fetched in one go; `auto` goes by memory and reuse."""
    stages: int | Literal["auto"] = 1
    """Groups of peers whose rows are fetched one after another: 1 fetches all at once, as many as
    there are ranks one peer at a time; `auto` takes the fewest that a memory budget allows."""
    recompute: bool | float = False
    """Fetch rows again in backward where the gradient needs them, instead of keeping them. Between
    0 and 1: those of this share of the stages, rounded up."""
    offload: int = 0
    """Bytes of rows kept for backward that wait in the host's memory, those of the first layers; a
    memory budget may choose it."""
    input_cache: bool = False
    """Aggregate the constant input of the first layer once."""
    prune: bool = False
    """Leave out what does not influence labelled nodes, layer by layer."""
    by_columns: bool = False
    """Each rank works on all nodes and a slice of their columns, instead of on its nodes and the
    rows they read: what travels does not depend on how the graph is cut."""

    wire: Literal[32, 16, 8, 4, 2, 1, 0, "bf16", "fp8", "adaptive", "random"] = 32
    """Bits of an entry on its way between ranks while training; 32 sends floats unchanged. Below,
    rows are rounded up or down at random, right on average, and gradients of weights too: at 8
    bits, with 16, `bf16` and `fp8` at 16.
    `bf16` and `fp8` are the nearest floats of 16 and 8 bits, fp8 with a scale for each row.
    `adaptive` gives rows that matter more bits than others, `random` any rows, for comparison.
    With `changes` there are 1 and 0 too: the nearer of two values, and the row that was there,
    renewed at 8 bits every `wire_period` epochs."""
    changes: bool = False
    """Both ends keep rows as they were last read, and what is rounded is the change since then."""
    kept_bits: Literal[32, 16] = 32
    """Bits of an entry of the rows that both ends keep for `changes`; 16: the nearest bfloat16."""
    boundary: float = 1.0
    """Share of the rows between ranks that travel in an epoch, drawn by lot and scaled up; others
    are 0. Only for sums, means and relations."""
    wire_bits: float = 4
    """Mean bits of an entry where widths differ."""
    wire_period: int = 50
    """Epochs between assignments of widths; rows begin at 8 bits, and the first comes early."""
    overlap: bool = True
    """Work on owned rows while others travel; False waits, for comparison."""
    precision: Precision = "float32"
    """What rows are computed and travel in. `bf16`: rows and products rounded to bfloat16, sums,
    weights, optimiser and loss in float32."""

    once_per_host: bool = True
    """A row that several ranks of a host need crosses the network once, and so does its gradient;
    False sends it to each rank, for comparison."""

    intervals: int = 8
    """Slices of a rank's nodes that are on their way through an epoch at once."""
    staleness: int = 0
    """Epochs that an interval may be ahead of the slowest, and that rows it reads may be old. Of
    the whole graph 1: rows and gradients of others are those of the epoch before."""
    smoothing: float = 0.0
    """Share of what was read before in rows and gradients that are an epoch old."""
    gather: Literal["wait", "latest"] = "wait"
    """Wait for rows as new as `staleness` says, or read what is there: one epoch older at most."""
    pool: Literal["none", "process", "ray", "aws-lambda", "simulated"] = "none"
    """Who does the tensor work of intervals; none: this rank, beside its graph work."""
    pool_bits: Literal[32, 16, 8, 4] = 32
    """Bits of an entry on its way to and from the pool, rounded as on the wire."""

    def __post_init__(self) -> None:
        self._check_wire()
        self._check_changes()
        self._check_boundary()
        self._check_staleness()
        self._check_columns()
        self._check_intervals()
        self._check_macrobatch()
        self._check_precision()
        if not 0 <= self.recompute <= 1:
            raise ConfigError(
                "The share of stages whose rows are fetched again can't be used.",
                seen=f"recompute={self.recompute}",
                fix="use true (all), false (none), or a number from 0 to 1",
            )
        if self.stages != "auto" and (not isinstance(self.stages, int) or self.stages < 1):
            raise ConfigError(
                "The number of stages can't be used.",
                seen=f"stages={self.stages}",
                fix="use 1 (all halo rows at once) to the number of ranks, or auto",
            )

    def _check_columns(self) -> None:
        why = {
            "unit": (self.unit != "graph", "the whole graph is worked on at once"),
            "stages": (self.stages != 1, "no rows of peers are fetched"),
            "recompute": (self.recompute > 0, "no rows of peers are kept or fetched again"),
            "wire": (self.wire != 32, "rows are not rounded on their way to columns"),
            "staleness": (self.staleness > 0, "no rows of peers are kept for another epoch"),
            "no-overlap": (not self.overlap, "nothing is worked on while columns travel"),
            "no-once-per-host": (not self.once_per_host, "ranks of a host need other columns"),
        }
        asked = [(name, words) for name, (is_asked, words) in why.items() if is_asked]
        if self.by_columns and asked:
            name, words = asked[0]
            seen = f"unit={self.unit}" if name == "unit" else f"--{name}"
            raise ConfigError(
                f"By columns, {words}.",
                seen=f"{seen} with --by-columns",
                fix=f"leave {'--by-columns' if name == 'unit' else seen} out",
            )

    def _check_macrobatch(self) -> None:
        if self.macrobatch != "auto" and (
            not isinstance(self.macrobatch, int) or self.macrobatch < 1
        ):
            raise ConfigError(
                "The size of macrobatches can't be used.",
                seen=f"macrobatch={self.macrobatch}",
                fix="use a number of minibatches from 1, or auto",
            )
        if self.unit == "graph" and self.macrobatch != 1:
            raise ConfigError(
                "Macrobatches are made of minibatches, and here a step is the whole graph.",
                seen=f"--macrobatch {self.macrobatch}",
                fix="add --strategy batchgnn, or leave --macrobatch out",
            )
        others = {"stages": self.stages != 1, "recompute": self.recompute > 0, "prune": self.prune}
        others["wire"] = self.wire != 32
        asked = [name for name, is_asked in others.items() if is_asked]
        if self.unit == "macrobatch" and asked:
            raise ConfigError(
                "Minibatches hold every row they compute with, so no rows travel between layers.",
                seen=f"--{asked[0]} with --strategy batchgnn",
                fix=f"leave --{asked[0]} out; for narrower input rows use --feature-bits 8"
                if asked[0] == "wire"
                else f"leave --{asked[0]} out",
            )

    def _check_intervals(self) -> None:
        if self.pool_bits not in (32, 16, 8, 4):
            raise ConfigError(
                "Unknown width of rows for the pool.",
                seen=f"pool_bits={self.pool_bits}",
                fix="use 32, 16, 8 or 4",
            )
        others = {"stages": self.stages != 1, "recompute": self.recompute > 0, "prune": self.prune}
        others["wire"] = self.wire != 32
        asked = [name for name, is_asked in others.items() if is_asked]
        if self.unit == "interval" and asked:
            fix = "; for narrower rows to the pool use --pool-bits" if asked[0] == "wire" else ""
            raise ConfigError(
                "Intervals reach rows of others in a way of their own.",
                seen=f"--{asked[0]} with --strategy dorylus",
                fix=f"leave --{asked[0]} out{fix}",
            )

    def _check_wire(self) -> None:
        if self.wire not in _WIRES:
            raise ConfigError(
                "Unknown wire width.",
                seen=f"wire={self.wire}",
                fix=f"use one of {', '.join(map(str, _WIRES))}",
            )
        least = 0.5 if self.changes else 2
        if not least <= self.wire_bits <= 8:
            given = "0, 1, 2, 4 or 8 bits" if self.changes else "2, 4 or 8 bits"
            raise ConfigError(
                "The mean width of rows can't be had.",
                seen=f"wire_bits={self.wire_bits}; rows are given {given}",
                fix=f"use {least} to 8" + ("" if self.changes else ", or from 0.5 with --changes"),
            )
        if self.wire_period < 3:
            raise ConfigError(
                "Widths can't be assigned so often: they are used from two epochs later on.",
                seen=f"wire_period={self.wire_period}",
                fix="use 3 epochs or more",
            )

    def _check_changes(self) -> None:
        if self.wire in (0, 1) and not self.changes:
            raise ConfigError(
                "So few bits can't hold a row, only what changes of it.",
                seen=f"--wire {self.wire} without --changes",
                fix="add --changes, or use --wire 2 or more",
            )
        if self.kept_bits not in (32, 16) or (self.kept_bits == 16 and not self.changes):
            problem = "Rows that both ends keep for --changes have 32 or 16 bits."
            seen = f"kept_bits={self.kept_bits}, changes={self.changes}"
            raise ConfigError(problem, seen=seen, fix="add --changes with --kept-bits 16 or 32")
        if self.changes and self.wire in ("bf16", "fp8"):
            raise ConfigError(
                "Changes are rounded between two scales, not to floats.",
                seen=f"--changes with --wire {self.wire}",
                fix=f"use --wire {16 if self.wire == 'bf16' else 8}, or leave --changes out",
            )
        if self.changes and self.wire == 32:
            raise ConfigError(
                "Rows that travel whole need no changes.",
                seen="--changes with --wire 32",
                fix="add --wire 4 (or 8, 2, 1, 0, adaptive), or leave --changes out",
            )

    def _check_boundary(self) -> None:
        if not 0 < self.boundary <= 1:
            raise ConfigError(
                "The share of rows that travel can't be used.",
                seen=f"--boundary {self.boundary:g}",
                fix="use a share above 0, to 1",
            )
        beside = {
            f"--wire {self.wire}": isinstance(self.wire, str) or self.wire in (0, 1),
            "--changes": self.changes,
            f"--staleness {self.staleness}": self.staleness > 0,
            "--by-columns": self.by_columns,
            f"--precision {self.precision}": self.precision == "bf16",
            f"unit={self.unit}": self.unit != "graph",
        }
        asked = [words for words, is_asked in beside.items() if is_asked]
        if self.boundary < 1 and asked:
            raise ConfigError(
                "Rows drawn by lot are whole ones of this epoch, or rounded alike.",
                seen=f"--boundary {self.boundary:g} with {asked[0]}",
                fix="leave --boundary out, or add it to --strategy halo or sar, --wire 2 to 32",
            )

    def _check_precision(self) -> None:
        twice = {
            "--wire": self.wire != 32,
            "--pool-bits": self.pool_bits != 32,
            "--staleness": self.staleness > 0 and self.unit == "graph",
        }
        asked = [flag for flag, is_asked in twice.items() if is_asked]
        if self.precision == "bf16" and asked:
            raise ConfigError(
                "Rows of bfloat16 travel as they are, and are not rounded or kept a second time.",
                seen=f"--precision bf16 with {asked[0]}",
                fix=f"leave --precision out, or {asked[0]}",
            )

    def _check_staleness(self) -> None:
        if self.smoothing and (self.staleness != 1 or self.changes or self.unit != "graph"):
            raise ConfigError(
                "Only whole rows that are an epoch old are smoothed.",
                seen=f"--smoothing {self.smoothing:g}"
                + (" with --changes" if self.changes else f" with --staleness {self.staleness}"),
                fix="add --staleness 1 to --strategy halo or sar, without --changes",
            )
        if self.unit != "graph" or not self.staleness:
            return
        if self.staleness > 1 or self.wire == 0:
            raise ConfigError(
                "Rows of the whole graph are an epoch old at most.",
                seen=f"--staleness {self.staleness}" + ("" if self.wire else " with --wire 0"),
                fix="use --staleness 1; with --wire 0 rows are as old as --wire-period",
            )

    @property
    def exactness(self) -> Exactness:
        """Whether a step equals one process, up to the nearest float of fewer bits (`rounded`), on
        average, or is off."""
        if self.staleness or self.gather == "latest":
            return "bounded"
        few = self.wire in (0, 1) or (self.assigns_widths and self.wire_bits < 2)
        if few or self.kept_bits == 16:
            return "bounded"
        if self.wire in ("bf16", "fp8"):
            return "rounded"
        if self.wire != 32 or self.pool_bits != 32 or self.boundary < 1:
            return "unbiased"
        return "rounded" if self.precision == "bf16" else "exact"

    def exactness_on(self, ranks: int) -> Exactness:
        """The same on so many ranks: one alone sends no rows that could be rounded or late."""
        if ranks > 1 or self.unit != "graph":
            return self.exactness
        return "rounded" if self.precision == "bf16" else "exact"

    @property
    def item_bytes(self) -> int:
        """Of an entry of a row, in memory and on its way where it is not rounded."""
        return BYTES[self.precision]

    @property
    def weight_bytes(self) -> int:
        """Of an entry of a weight, its gradient, or a sum."""
        return max(BYTES["float32"], self.item_bytes)

    @property
    def gradient_bits(self) -> int:
        """Of an entry of the weights' gradients between ranks, where rows are rounded."""
        return 16 if self.wire in (16, "bf16", "fp8") else 8

    @property
    def assigns_widths(self) -> bool:
        """True where rows have widths of their own."""
        return self.wire in ("adaptive", "random")

    @property
    def codes_rows(self) -> bool:
        """True where not all rows travel as they are."""
        return self.wire != 32 or self.keeps_rows or self.boundary < 1

    @property
    def keeps_rows(self) -> bool:
        """True where ranks keep rows of others from epoch to epoch."""
        return self.unit == "graph" and (self.changes or self.staleness > 0)

    def stages_of(self, ranks: int) -> int:
        """Return the number of stages as it counts: one for each rank at most."""
        assert self.stages != "auto", "the plan settles that"
        return min(self.stages, ranks)

    def kept_stages(self, stages: int) -> int:
        """Return of how many of these stages, the last ones, rows stay for backward."""
        return stages - math.ceil(self.recompute * stages - _SLACK)

    def choices(self, ranks: int) -> dict[str, int | float | str]:
        """Return the choices by name, as a run reports them."""
        told = {} if self.precision == "float32" else {"precision": self.precision}
        return self._choices_of_unit(ranks) | told

    def _choices_of_unit(self, ranks: int) -> dict[str, int | float | str]:
        if self.unit != "graph":
            of_pipelines = ("intervals", "staleness", "gather", "pool", "pool_bits", "overlap")
            is_piped = self.unit == "interval"
            names = of_pipelines if is_piped else ("macrobatch", "input_cache")
            return {name: getattr(self, name) for name in ("unit", *names)}
        if self.by_columns:
            caches = {"input_cache": self.input_cache, "prune": self.prune}
            away = {"offload": self.offload} if self.offload else {}
            return {"by_columns": True, **caches, **away}
        mean = {"wire_bits": self.wire_bits, "wire_period": self.wire_period}
        return {
            "stages": self.stages_of(ranks),
            "recompute": self.recompute,
            "input_cache": self.input_cache,
            "prune": self.prune,
            "wire": self.wire,
            **(mean if self.assigns_widths else {}),
            **({"wire_period": self.wire_period} if self.wire == 0 else {}),
            **({"changes": True} if self.changes else {}),
            **({"kept_bits": self.kept_bits} if self.kept_bits != 32 else {}),
            **({"boundary": self.boundary} if self.boundary < 1 else {}),
            **({"staleness": self.staleness} if self.staleness else {}),
            **({"smoothing": self.smoothing} if self.smoothing else {}),
            **({"offload": self.offload} if self.offload else {}),
            "overlap": self.overlap,
            **({} if self.once_per_host else {"once_per_host": False}),
        }

    def with_choices(self, **choices: Any) -> "Strategy":
        """Return the same strategy with those choices that are not None."""
        return replace(self, **{key: value for key, value in choices.items() if value is not None})


PRESETS: dict[str, Strategy] = {
    "halo": Strategy(),
    "sar": Strategy(stages=EVERY_PEER, recompute=True),
    "adaqp": Strategy(wire="adaptive"),
    "columns": Strategy(by_columns=True),
    "batchgnn": Strategy(unit="macrobatch", macrobatch="auto"),
    "dorylus": Strategy(unit="interval", pool="process"),
}


AUTO = "auto"
"""Stands for the exact preset that is predicted to be the fastest, until the data is known."""


def find_strategy(name: str) -> Strategy:
    """Return the preset of that name."""
    if name == AUTO:
        return PRESETS["halo"]
    if name not in PRESETS:
        known = [*PRESETS, AUTO]
        raise ConfigError(
            "Unknown strategy.",
            seen=f"{name}{did_you_mean(name, known)}",
            fix=f"use one of: {', '.join(sorted(known))}",
        )
    return PRESETS[name]
