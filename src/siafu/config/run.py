"""The settings of a run: each is a key of the config file, a flag and a Python argument alike."""

import difflib
import re
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from siafu.config.dynamic import DYNAMIC_DEFAULTS
from siafu.errors import ConfigError

MODEL_DEFAULTS: dict[str, dict[str, Any]] = {
    "gcn": {"hidden": 64, "lr": 0.01, "dropout": 0.5, "weight_decay": 5e-4},
    "sage": {"hidden": 64, "lr": 0.01, "dropout": 0.5, "weight_decay": 5e-4},
    "sage-max": {"hidden": 64, "lr": 0.01, "dropout": 0.5, "weight_decay": 5e-4},
    "gin": {"hidden": 64, "lr": 0.005, "dropout": 0.5, "weight_decay": 5e-4, "norm": "batch"},
    "gat": {"hidden": 64, "lr": 0.005, "dropout": 0.6, "weight_decay": 5e-4},
    "gatv2": {"hidden": 64, "lr": 0.005, "dropout": 0.6, "weight_decay": 5e-4},
    "transformer": {"hidden": 64, "lr": 0.005, "dropout": 0.5, "weight_decay": 5e-4},
    "rgcn": {"hidden": 64, "lr": 0.01, "dropout": 0.5, "weight_decay": 5e-4},
    "typed-gat": {"hidden": 64, "lr": 0.005, "dropout": 0.5, "weight_decay": 5e-4},
}
OWN_MODEL_DEFAULTS: dict[str, Any] = {
    "hidden": 64,
    "lr": 0.01,
    "dropout": 0.5,
    "weight_decay": 5e-4,
}
_QUOTE = "'"


class RunConfig(BaseModel):
    """What a training run is asked to do."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    data: str = Field(
        description="built-in name, .npz, Parquet or CSV folder, store, or parts folder"
    )
    model: str = Field(
        "gcn",
        description=f"{', '.join(MODEL_DEFAULTS)}; over time {', '.join(DYNAMIC_DEFAULTS)}; "
        "or your own: FILE.py:Class",
    )
    ranks: int = Field(1, ge=1, description="processes, one a part")
    strategy: str = Field(
        "halo", description="how an epoch is cut up: halo, sar, adaqp, batchgnn or dorylus"
    )
    stages: str | None = Field(
        None, description="groups of peers fetched one after another: 1 to the ranks, or auto"
    )
    memory: str | None = Field(
        None, description="memory a rank may use while training, as 4GB; sets stages to auto"
    )
    recompute: bool | None = Field(
        None, description="fetch rows again in backward instead of keeping them"
    )
    input_cache: bool = Field(False, description="aggregate the constant first-layer input once")
    prune: bool = Field(
        False, description="train on what influences labelled vertices only, layer by layer"
    )
    wire: str | None = Field(
        None, description="bits of an entry between ranks: 32, 16, 8, 4, 2, adaptive or random"
    )
    wire_bits: float | None = Field(
        None, description="mean bits of an entry, 2 to 8, for adaptive (default: 4)"
    )
    wire_period: int | None = Field(
        None, description="epochs between assignments of widths, for adaptive (default: 50)"
    )
    overlap: bool | None = Field(
        None, description="work on owned rows while others travel (default: true)"
    )
    macrobatch: str | None = Field(
        None, description="steps sampled and fetched in one go, or auto (batchgnn's default)"
    )
    intervals: int | None = Field(
        None, ge=1, description="slices of a rank's vertices in a pipeline (dorylus; default: 8)"
    )
    staleness: int | None = Field(
        None, ge=0, description="epochs that rows and weights may lag in a pipeline (default: 0)"
    )
    gather: Literal["wait", "latest"] | None = Field(
        None,
        description="in a pipeline, wait for rows as new as --staleness says (default), or read "
        "what is there, one epoch older at most",
    )
    exact_from: float | None = Field(
        None, ge=0, le=1, description="validation score from which nothing lags any more"
    )
    pool: Literal["none", "process", "ray", "aws-lambda", "simulated"] | None = Field(
        None, description="who does a pipeline's tensor work (default: process)"
    )
    pool_workers: str | None = Field(
        None, description="workers of each rank's pool, or auto (the default)"
    )
    pool_bits: int | None = Field(
        None, description="bits of an entry on its way to and from the pool: 32, 16, 8, 4"
    )
    cloud: str | None = Field(
        None,
        description="the simulated pool's delays and failures: aws-lambda (default), a latency as "
        "20ms, or a YAML file",
    )
    lambda_function: str | None = Field(
        None, description="name of the function in AWS Lambda (packaging/lambda)"
    )
    lambda_endpoint: str | None = Field(
        None, description="URL of a Lambda service other than AWS's own"
    )
    pool_address: str | None = Field(
        None,
        description="where functions reach ranks: tcp://auto:7000 (each machine's own address), "
        "an interface as tcp://eth0:7000, or an address of the one machine that all ranks are on; "
        "rank r listens at the port + r (default: loopback alone)",
    )
    prices: str | None = Field(None, description="a price file on top of siafu's own (TOML)")
    instance: str | None = Field(
        None, description="the instance type a rank is billed as (default: c5.xlarge)"
    )
    trace: bool = Field(False, description="write trace.json, for Perfetto or chrome://tracing")
    fanout: str | None = Field(
        None,
        description="in-edges drawn of a vertex at each hop, as 15,10,5; -1: all; without "
        "--layers there are as many as numbers",
    )
    task: Literal["node", "link", "edge", "signal"] | None = Field(
        None,
        description="what is learnt: node or link, over time edge or signal too (default: node; "
        "over time what the data has, else link)",
    )
    negatives: str | None = Field(
        None,
        description="for each edge, uniform:K drawn ones (default: uniform:1, over time 20), or "
        "in-batch",
    )
    eval_negatives: str = Field(
        "100", description="drawn ones that an edge is ranked among; over time also all"
    )
    exclude_targets: bool = Field(
        True, description="no messages over the edges of a minibatch while it is trained on"
    )
    batch_size: int = Field(1000, ge=1, description="training vertices or edges of a minibatch")
    seed_order: Literal["local", "global"] = Field(
        "local", description="minibatches of a rank's own vertices, or alike for any ranks"
    )
    step_minibatches: int | None = Field(
        None, ge=1, description="minibatches of a step with seed_order global (default: ranks)"
    )
    sample_replace: bool = Field(False, description="an edge may be drawn more than once")
    sample_weighted: bool = Field(False, description="draw edges in proportion to their weights")
    hot_rows: str | None = Field(
        None, description="memory for rows of other ranks kept across macrobatches, as 200MB"
    )
    feature_bits: int = Field(
        32, description="bits of an input feature as minibatches fetch it: 32, or 8, rounded once"
    )
    inference: Literal["full", "none"] = Field(
        "full", description="score and predict all vertices with all neighbours, or nothing"
    )
    epochs: int = Field(200, ge=1, description="the most epochs to train")
    seed: int = Field(
        0, ge=0, lt=2**63, description="seed of weights, dropout, splits and partition"
    )
    hidden: int | None = Field(
        None, ge=1, le=10**6, description="hidden width (default: the model's)"
    )
    layers: int = Field(2, ge=1, le=1000, description="graph layers")
    heads: int = Field(
        8, ge=1, le=10**6, description="attention heads (gat, gatv2, transformer, typed-gat)"
    )
    edge_features: bool = Field(False, description="let attention use the edges' features")
    lr: float | None = Field(None, gt=0, description="learning rate (default: the model's)")
    dropout: float | None = Field(None, ge=0, lt=1, description="dropout (default: the model's)")
    input_dropout: float | None = Field(
        None, ge=0, lt=1, description="dropout of the input features (default: as --dropout)"
    )
    weight_decay: float | None = Field(None, ge=0, description="L2 penalty (default: the model's)")
    norm: Literal["none", "batch", "layer"] | None = Field(
        None, description="none, batch (exact over ranks) or layer (default: the model's)"
    )
    residual: bool = Field(False, description="add a layer's input to its output")
    jk: Literal["none", "cat", "max"] = Field("none", description="jumping knowledge")
    metric: Literal["accuracy", "roc-auc"] = Field(
        "accuracy", description="accuracy (micro-F1 on multi-label data) or roc-auc (two classes)"
    )
    keep: Literal["score", "loss"] = Field(
        "score", description="keep the weights of the best validation score, or lowest loss"
    )
    normalize_features: bool = Field(False, description="scale each feature row to sum to 1")
    patience: int = Field(0, ge=0, description="stop after so many epochs without gain; 0: never")
    eval_every: int | None = Field(
        None,
        ge=1,
        description="epochs between evaluations (default: 1; 10 with --staleness, since a pipeline "
        "is emptied for it, and where rows are rounded, since evaluation sends them whole)",
    )
    checkpoint_every: int = Field(50, ge=0, description="epochs between checkpoints; 0: none")
    undirected: bool = Field(False, description="add missing reverse edges")
    split: str | None = Field(
        None,
        description="draw masks: 0.6,0.2 fractions or 20,30 a class (default: the data's); "
        "shares of edges with --task link (default: 0.8,0.1)",
    )
    partition: Literal["auto", "metis", "streaming", "contiguous", "hash"] = Field(
        "auto", description="how to cut the graph when it is not yet"
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto, cpu or cuda")
    threads: int = Field(0, ge=0, le=4096, description="threads a rank; 0 shares the cores")
    deadline: float = Field(
        300.0, gt=0, le=10**7, description="seconds any wait between ranks may last"
    )
    launcher: Literal["local", "ray"] = Field(
        "local", description="start ranks on this machine, or on the nodes of a Ray cluster"
    )
    ray_address: str = Field(
        "auto", description="the Ray cluster: auto, HOST:PORT, or local for one started here"
    )
    out: str | None = Field(None, description="run folder (default: runs/NAME-MODEL-NUMBER)")
    window: str | None = Field(
        None, description="events of one snapshot: 14d, 12h, a number, 500e events, or each"
    )
    columns: str | None = Field(
        None,
        description="of events: the columns that are src, dst, time, weight or label, where they "
        "have other names: src=from,time=when",
    )
    time_unit: Literal["s", "ms", "us", "ns"] = Field(
        "s", description="what times that are numbers count, for windows as 14d"
    )
    partial_window: Literal["keep", "drop"] = Field(
        "keep", description="whether a last window that the data only begins to fill counts"
    )
    edge_life: int = Field(1, ge=1, description="snapshots that an edge stays alive for")
    time_block: int = Field(
        0, ge=0, description="snapshots worked on at once, to save memory; 0: all of them"
    )
    vertex_parts: int = Field(
        1,
        ge=1,
        description="groups of vertices that share every snapshot of a dynamic graph out among "
        "them, each on ranks / groups ranks; for snapshots larger than a rank",
    )
    time_exchange: Literal["auto", "all-to-all", "banded", "wavefront"] = Field(
        "auto", description="how ranks reach each other's snapshots"
    )
    bandwidth: int = Field(20, ge=1, description="snapshots that tm-gcn averages over")
    aggregate: Literal["in", "out"] | None = Field(
        None,
        description="over time a vertex sums over those whose edges come in, or those its own go "
        "out to (default: out for tm-gcn, else in)",
    )
    head: Literal["linear", "mlp"] | None = Field(
        None,
        description="over time, pairs are judged by a linear map of both ends' embeddings, or with "
        "a hidden layer (default: linear for the edge classes of tm-gcn, else mlp)",
    )
    lags: int = Field(4, ge=1, description="past values of a signal that are features")
    class_weights: str | None = Field(
        None, description="of edge classes: balanced (default), none, or numbers as 0.9,0.1"
    )

    @field_validator("*", mode="before")
    @classmethod
    def _plain_text(cls, value: Any) -> Any:
        if isinstance(value, str) and not value.isprintable() and re.search(r"[\0\n\r]", value):
            raise ValueError("It has a zero byte or a line break in it")
        return value

    @field_validator("wire", mode="before")
    @classmethod
    def _number_as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int) else value

    @field_validator("feature_bits")
    @classmethod
    def _known_bits(cls, value: int) -> int:
        if value not in (8, 32):
            raise ConfigError(
                "Unknown width of features.", seen=f"feature_bits={value}", fix="use 8 or 32"
            )
        return value

    @field_validator("model")
    @classmethod
    def _known_model(cls, value: str) -> str:
        known = [*MODEL_DEFAULTS, *DYNAMIC_DEFAULTS]
        if value not in known and ":" not in value:
            raise ConfigError(
                "Unknown model.",
                seen=f"{value}{did_you_mean(value, known)}",
                fix=f"use one of: {', '.join(known)}; or FILE.py:Class for your own",
            )
        place, _, name = value.rpartition(":")
        is_place = place.endswith(".py") or all(map(str.isidentifier, place.split(".")))
        if value not in known and not (is_place and name.isidentifier()):
            raise ConfigError(
                "A model of your own is named by where it is, and by its class.",
                seen=f"model={value}",
                fix="give FILE.py:Class, or package.module:Class",
            )
        return value

    @model_validator(mode="before")
    @classmethod
    def _pipelines_on_cpus(cls, values: Any) -> Any:
        # Graph work on CPUs, tensor work in pools: a GPU that happens to be there is not used.
        if isinstance(values, dict) and values.get("strategy") == "dorylus":
            asked = values.get("device") or "auto"
            return {**values, "device": "cpu" if asked == "auto" else asked}
        return values

    @model_validator(mode="after")
    def _scores_where_they_are_used(self) -> Self:
        if self.inference == "none" and (self.patience or self.keep == "loss"):
            raise ConfigError(
                "Nothing is scored, so nothing can be chosen by score.",
                seen=f"--inference none with --patience {self.patience} --keep {self.keep}",
                fix="leave --inference none out, or the others",
            )
        return self

    def resolved(self) -> Self:
        """Return the same settings with the model's defaults filled in."""
        known = MODEL_DEFAULTS | DYNAMIC_DEFAULTS
        is_dear = bool(self.staleness) or self._rounds_rows()
        defaults = {"norm": "none", "eval_every": 10 if is_dear else 1}
        defaults |= known.get(self.model, OWN_MODEL_DEFAULTS)
        if self.task == "edge":
            defaults["class_weights"] = "balanced"
        unset = {key: value for key, value in defaults.items() if getattr(self, key) is None}
        if self.fanout is not None and "layers" not in self.model_fields_set:
            unset["layers"] = len(self.fanout.split(","))
        return self.model_copy(update=unset)

    def _rounds_rows(self) -> bool:
        """True where rows are rounded between ranks while training."""
        is_asked = self.strategy == "adaqp" if self.wire is None else self.wire != "32"
        return is_asked and self.ranks > 1


def did_you_mean(word: str, known: list[str]) -> str:
    """Return ` (did you mean ...?)` for a near miss, else nothing."""
    lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), lowered, n=1)
    return f" (did you mean {lowered[close[0]]!r}?)" if close else ""


def make_config(**settings: Any) -> RunConfig:
    """Return the checked settings; a mistake is a ConfigError that names the key."""
    try:
        return RunConfig(**settings)
    except ValidationError as error:
        raise _explained(error) from None


def _explained(error: ValidationError) -> ConfigError:
    """Return one error for all mistakes; unknown settings come first."""
    known, mistakes = list(RunConfig.model_fields), error.errors()
    keys = [".".join(str(part) for part in one["loc"]) for one in mistakes]
    unknown = [
        key for key, one in zip(keys, mistakes, strict=True) if one["type"] == "extra_forbidden"
    ]
    if unknown:
        guesses = [did_you_mean(key, known) for key in unknown]
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
