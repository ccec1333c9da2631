"""The settings of a run: the sum of what its parts can be told."""

import json
import re
from pathlib import Path
from typing import Any, Literal, Self, get_args

import yaml
from pydantic import ValidationError, ValidationInfo, field_validator, model_validator

from siafu.config.training import LinkOptions, RecordOptions, ScoringOptions, TrainingOptions
from siafu.elastic.options import PoolOptions
from siafu.errors import ConfigError, did_you_mean
from siafu.files import write_text_atomically
from siafu.ingest.options import DataOptions, SnapshotOptions, TableColumns
from siafu.minibatch.options import SamplingOptions
from siafu.nn.options import OWN_ARGUMENTS, DynamicModelOptions, ModelOptions, default_settings
from siafu.options import Meaning, Options, RunKind, Scope, joined, read_bytes, read_config
from siafu.partitioning.options import ColumnOptions, CutOptions
from siafu.pipeline.options import PipelineOptions
from siafu.strategy import Strategy, find_strategy
from siafu.strategy.options import StrategyOptions, TimeOptions
from siafu.strategy.strategy import PRESETS

_QUOTE = "'"
RENAMED = {"vertex_parts": "node_parts"}
"""Settings by the names they had, which are refused with the new one."""
SEVERAL = (
    *("label", "features", "edge_attr", "edge_label"),
    *("split", "metric", "class_weights", "fanout", "sink"),
)
"""Settings that Python, and a file, may give as a list."""


class RunConfig(
    LinkOptions,
    SnapshotOptions,
    TimeOptions,
    DynamicModelOptions,
    PoolOptions,
    PipelineOptions,
    SamplingOptions,
    RecordOptions,
    ScoringOptions,
    StrategyOptions,
    TrainingOptions,
    ModelOptions,
    CutOptions,
    ColumnOptions,
    TableColumns,
    DataOptions,
):
    """What a training run is asked to do. Where a part of it is read is where its options are."""

    @field_validator(*SEVERAL, mode="before")
    @classmethod
    def _joined(cls, value: Any) -> Any:
        return joined(value)

    @field_validator("schema", mode="before")
    @classmethod
    def _as_text_of_file(cls, value: Any) -> Any:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value

    @field_validator("*", mode="before")
    @classmethod
    def _plain_text(cls, value: Any, info: ValidationInfo) -> Any:
        value = str(value) if isinstance(value, Path) else value
        if isinstance(value, int | float) and not isinstance(value, bool):
            taken = cls.model_fields[info.field_name or ""].annotation
            # Whole numbers and words alike (stages=2, stages="auto") are text on a command line.
            is_text = str in get_args(taken) and not {int, float} & set(get_args(taken))
            value = f"{value:g}" if is_text and isinstance(value, float) else value
            value = str(value) if is_text else value
        if isinstance(value, str) and not value.isprintable() and re.search(r"[\0\n\r]", value):
            raise ValueError("It has a zero byte or a line break in it")
        return value

    @model_validator(mode="before")
    @classmethod
    def _pipelines_on_cpus(cls, values: Any) -> Any:
        # Graph work on CPUs, tensor work in pools: a GPU that happens to be there is not used.
        named = PRESETS.get(values.get("strategy", "")) if isinstance(values, dict) else None
        if named is not None and named.unit == "interval":
            asked = values.get("device") or "auto"
            return {**values, "device": "cpu" if asked == "auto" else asked}
        return values

    @model_validator(mode="after")
    def _scores_where_they_are_used(self) -> Self:
        if not self.is_scored and (self.patience or self.keep == "loss"):
            raise ConfigError(
                "Nothing is scored, so nothing can be chosen by score.",
                seen=f"--inference none with --patience {self.patience} --keep {self.keep}",
                fix="leave --inference none out, or the others",
            )
        if self.evaluate == "train" and (
            self.patience or self.keep == "loss" or self.inference == "none"
        ):
            raise ConfigError(
                "Validation nodes are scored at the end alone, with all others.",
                seen=f"--evaluate train with --patience {self.patience} --keep {self.keep} "
                f"--inference {self.inference}",
                fix="use --evaluate sampled, or leave the others out",
            )
        return self

    @property
    def memory_bytes(self) -> int | None:
        """What a rank may hold on its device; None where that is not limited."""
        return None if self.memory is None else read_bytes(self.memory)

    @property
    def chosen(self) -> Strategy:
        """The strategy that is named, with the choices that were made on top of it."""
        _ = self.memory_bytes  # refused where it can't be read
        named = find_strategy(self.strategy)
        if self.memory is None and self.stages == "auto":
            raise ConfigError(
                "The number of stages can't be chosen.",
                seen="--stages auto without a memory budget",
                fix="add --memory 4GB, or set --stages to a number from 1 to the ranks",
            )
        stages = _count("stages", self.stages, "1 to the number of ranks, or auto")
        fetches_rows = named.unit == "graph" and not (self.by_columns or named.by_columns)
        if stages is None and self.memory is not None and fetches_rows:
            stages = "auto"
        macrobatch = _count("macrobatch", self.macrobatch, "1 or more minibatches, or auto")
        wire = int(self.wire) if self.wire is not None and self.wire.isdigit() else self.wire
        plain = set(Strategy.__dataclass_fields__) - {"unit", "stages", "macrobatch", "wire"}
        choices = {name: getattr(self, name) for name in plain}
        choices["offload"] = None if self.offload is None else self._offload_bytes()
        strategy = named.with_choices(stages=stages, macrobatch=macrobatch, wire=wire, **choices)
        if strategy.unit == "interval" and self.device == "cuda":
            raise ConfigError(
                "A pipeline's graph work is done on CPUs.",
                seen="--device cuda with --strategy dorylus",
                fix="use --device cpu, or another strategy on the GPU",
            )
        return strategy

    def _offload_bytes(self) -> int:
        if not (size := read_bytes(str(self.offload), "offload")):
            raise ConfigError(
                "No rows are to wait in the host's memory.",
                seen="--offload 0",
                fix="leave --offload out: rows leave a GPU only where it has no room for them",
            )
        return size

    def kind(self, *, over_time: bool, task: str | None) -> RunKind:
        """Return what such a run is; `task` None: only the data tells."""
        strategy = self.chosen
        return RunKind(
            config=self.resolved(),
            over_time=over_time,
            unit=strategy.unit,
            pool=strategy.pool if strategy.unit == "interval" else "",
            assigns_widths=strategy.assigns_widths,
            lags=strategy.exactness == "bounded",
            task=task,
        )

    def resolved(self) -> "ResolvedConfig":
        """Return the same settings with every default filled in."""
        is_dear = self._lags() or self._rounds_rows()
        defaults: dict[str, object] = {"norm": "none", "eval_every": 10 if is_dear else 1}
        defaults |= default_settings(self.model)
        unset = {key: value for key, value in defaults.items() if getattr(self, key) is None}
        if self.fanout is not None and "layers" not in self.model_fields_set:
            unset["layers"] = len(self.fanout.split(","))
        # Checked once: what cards and the lines above add needs no second check.
        asked = set(self.model_fields_set)
        return ResolvedConfig.model_construct(asked, **{**dict(self), **unset})

    def _lags(self) -> bool:
        """True where rows are read late: in a pipeline, or those of other ranks."""
        is_piped = find_strategy(self.strategy).unit == "interval"
        return bool(self.staleness) and (self.ranks > 1 or is_piped)

    def _rounds_rows(self) -> bool:
        """True where rows are rounded between ranks while training."""
        named = PRESETS.get(self.strategy)
        by_name = named is not None and named.wire != 32
        is_asked = by_name if self.wire is None else self.wire != "32"
        return (is_asked or (self.boundary or 1) < 1) and self.ranks > 1


class ResolvedConfig(RunConfig):
    """What a run is asked to do with every default filled in: what ranks are given.

    Made by `resolved` alone, from settings that were checked.
    """

    hidden: int
    lr: float
    dropout: float
    weight_decay: float
    norm: Literal["none", "batch", "layer"]
    eval_every: int


OWNERS: tuple[type[Options], ...] = tuple(
    base
    for base in reversed(RunConfig.__mro__)
    if issubclass(base, Options) and base not in (Options, RunConfig)
)
"""The option classes, those that people use first in front."""


def settings_of(owner: type[Options]) -> list[str]:
    """Return the settings that a class adds to those it inherits."""
    return [name for name in owner.__annotations__ if name in RunConfig.model_fields]


def owner_of(name: str) -> type[Options]:
    """Return the class that a setting belongs to."""
    return next(owner for owner in OWNERS if name in settings_of(owner))


def scopes_of(name: str) -> tuple[Scope, ...]:
    """Return what all must cover a run for a setting to have a meaning there."""
    return _meaning(name).scopes


def usual_settings() -> list[str]:
    """Return the settings that help shows first, in that order."""
    places = {name: _meaning(name).usual for name in RunConfig.model_fields}
    return sorted((name for name, place in places.items() if place), key=places.__getitem__)


def _meaning(name: str) -> Meaning:
    found = RunConfig.model_fields[name].metadata
    return next(one for one in found if isinstance(one, Meaning))


def is_asked(config: RunConfig, name: str) -> bool:
    """Return whether a setting differs from what it would be unsaid.

    By value, not by model_fields_set: the config.yaml of a run holds every default too.
    """
    value, default = getattr(config, name), RunConfig.model_fields[name].default
    if value == default:
        return False
    unsaid = RunConfig.model_construct(
        config.model_fields_set - {name}, **{**dict(config), name: default}
    )
    return bool(value != getattr(unsaid.resolved(), name))


def check_scopes(kind: RunKind, given: RunConfig) -> None:
    """Raise where a setting that was asked for has no meaning for such a run."""
    asked = [name for name in RunConfig.model_fields if is_asked(given, name)]
    for scope in dict.fromkeys(scope for name in asked for scope in scopes_of(name)):
        names = [name for name in asked if scope in scopes_of(name)]
        if not scope.covers(kind):
            raise _meaningless(kind, given, names, scope)


_OF_EVENTS = {
    "src": "src",
    "dst": "dst",
    "edge_weight": "weight",
    "label": "label",
    "edge_label": "label",
}
"""Columns of tables of edges, and what `--columns` calls them in events."""


def _meaningless(kind: RunKind, given: RunConfig, names: list[str], scope: Scope) -> ConfigError:
    flags = [flag_of(name) for name in names]
    shown = [shown_flag(name, getattr(given, name)) for name in names]
    leave = f"leave {', '.join(flags)} out (in a file of settings too)"
    columns = [f"{_OF_EVENTS[name]}={getattr(given, name)}" for name in names if name in _OF_EVENTS]
    if kind.over_time and columns:
        leave = f"name columns of events by --columns {','.join(columns)}, or {leave}"
    return ConfigError(
        f"{', '.join(flags)} {'has' if len(flags) == 1 else 'have'} no meaning {scope.elsewhere}.",
        seen=f"{' '.join(shown)} with {_described(kind)}",
        fix=leave if scope.remedy is None else f"{scope.remedy}, or {leave}",
    )


def flag_of(name: str) -> str:
    """Return the flag of a setting."""
    return f"--{name.replace('_', '-')}"


def shown_flag(name: str, value: Any) -> str:
    """Return a flag as it is typed."""
    flag = flag_of(name)
    if isinstance(value, bool):
        return flag if value else flag.replace("--", "--no-", 1)
    return f"{flag} {value}"


def _described(kind: RunKind) -> str:
    told = [f"--model {kind.config.model}"]
    told += [] if kind.over_time else [f"--strategy {kind.config.strategy}"]
    told += [f"--pool {kind.pool}"] if kind.unit == "interval" else []
    told += [f"--task {kind.task}"] if kind.task else []
    return " ".join(told)


def _count(name: str, text: str | None, fix: str) -> int | str | None:
    """Return a number, or `auto`, as settings have it."""
    if text is None or text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        what = {"stages": "number of stages", "macrobatch": "size of macrobatches"}[name]
        raise ConfigError(
            f"The {what} can't be read.", seen=f"{name}={text}", fix=f"use {fix}"
        ) from None


def make_config(**settings: Any) -> RunConfig:
    """Return the checked settings; a mistake is a ConfigError that names the key."""
    try:
        return RunConfig(**settings)
    except ValidationError as error:
        raise _explained(error) from None


def make_columns(**settings: Any) -> RunConfig:
    """Return settings of which only columns of tables may be given; a mistake is a ConfigError."""
    known = [*settings_of(TableColumns), *settings_of(ColumnOptions)]
    unknown = [name for name in settings if name not in known]
    if unknown:
        raise ConfigError(
            "This says nothing about columns of tables.",
            seen=", ".join(f"{name}{did_you_mean(name, known)}" for name in unknown),
            fix=f"use {', '.join(known)}",
        )
    return make_config(data="tables", **settings)


def _explained(error: ValidationError) -> ConfigError:
    """Return one error for all mistakes; unknown settings come first."""
    known, mistakes = list(RunConfig.model_fields), error.errors()
    keys = [".".join(str(part) for part in one["loc"]) for one in mistakes]
    unknown = [
        key for key, one in zip(keys, mistakes, strict=True) if one["type"] == "extra_forbidden"
    ]
    if unknown:
        guesses = [
            f" (now {_QUOTE}{RENAMED[key]}{_QUOTE})" if key in RENAMED else did_you_mean(key, known)
            for key in unknown
        ]
        pairs = zip(unknown, guesses, strict=True)
        return ConfigError(
            "Unknown setting." if len(unknown) == 1 else "Unknown settings.",
            seen=", ".join(f"{key}{guess}" for key, guess in pairs),
            fix=f"write {', '.join(guess.split(_QUOTE)[1] for guess in guesses)}"
            if all(guesses)
            else f"known settings: {', '.join(known)}",
        )
    key, first = keys[0], mistakes[0]
    if first["type"] == "missing":
        return ConfigError(f"The setting {key!r} is missing.", seen="nothing", fix=f"give {key}")
    return ConfigError(
        f"The setting {key!r} can't be used."
        if len(keys) == 1
        else f"The settings {', '.join(map(repr, keys))} can't be used.",
        seen=", ".join(
            f"{name}={str(one['input'])[:80]!r}"
            if isinstance(one["input"], str)
            else f"{name}={str(one['input'])[:80]}"
            for name, one in zip(keys, mistakes, strict=True)
        ),
        fix="; ".join(
            f"{one['msg']} ({RunConfig.model_fields[name.partition('.')[0]].description})"
            for name, one in zip(keys, mistakes, strict=True)
        ),
    )


def write_config(config: RunConfig, path: Path) -> None:
    """Write the settings, at once, as YAML that `read_config` takes back.

    Of what a class of the user's own may have defaults for, only what was asked.
    """
    unsaid = set(OWN_ARGUMENTS) - config.model_fields_set if ":" in config.model else set()
    text = yaml.safe_dump(config.model_dump(exclude_none=True, exclude=unsaid), sort_keys=False)
    write_text_atomically(path, text)


def read_run_config(path: Path) -> dict[str, Any]:
    """Return the settings that a run noted, by the names they have now."""
    return {RENAMED.get(name, name): value for name, value in read_config(path).items()}
