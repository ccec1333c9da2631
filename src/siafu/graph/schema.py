"""What the columns of a graph's tables are called, hold, and become.

A store of tables keeps `x` and `edge_attr` as they came: NaN for a gap, the number of a category,
0 and 1, days since 1970. The schema beside them tells what each column is and what is to be done
with it; cutting learns the rest from training rows (`partitioning.fitting`) and prepares the
columns by it (`partitioning.preparing`). All values here are immutable, and a plain mapping in a
manifest and in YAML.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from siafu.errors import ConfigError
from siafu.graph.manifest import first_fault

Kind = Literal["number", "boolean", "category", "date"]
Scale = Literal["standard", "robust", "none"]
Group = Literal["nodes", "edges"]
MOST_LEVELS = 32
"""Categories of a column that have a column of their own, unless its schema says otherwise."""
_Count = Annotated[int, Field(ge=0)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Value(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Learnt(_Value):
    """What training rows tell about a column."""

    rows: _Count
    """Training rows that were looked at."""
    gaps: _Count = 0
    """Those of them without a value; a flag is written beside the column where there are some."""
    fill: _Finite | str = 0.0
    """What stands in for a gap, before scaling; a category, where one was asked for."""
    centre: _Finite = 0.0
    spread: _Finite = 1.0
    levels: tuple[str, ...] = ()
    """Categories with a column of their own."""
    rare: tuple[str, ...] = ()
    """Categories of training rows that share the column `other`."""
    left_out: str = ""
    """Why the column is not used, where it is not."""
    is_kept: bool = False
    """Whether it is constant and used all the same, as ones: there is no other."""


class FeatureColumn(_Value):
    """A column of a table that is held in `x` or `edge_attr`, and what is to be done with it."""

    name: str
    kind: Kind = "number"
    """What it is used as."""
    use: bool = True
    fill: Literal["median", "mean"] | _Finite | str | None = None
    """What stands in for a gap; None is the median, and of categories none of them."""
    scale: Scale | None = None
    """None leaves it to the run's `--scale`."""
    most_levels: Annotated[int, Field(ge=1)] = MOST_LEVELS
    """Categories that get a column of their own; the rarest beyond share the column `other`."""
    categories: tuple[str, ...] = ()
    """What the numbers that are held stand for, in order; empty where they are the values."""
    first: Literal["day", "month"] | None = None
    """What comes first in dates such as 31/12/2024, where the table has them."""
    gaps: _Count = 0
    """Rows of the table without a value."""
    table_kind: Kind | None = None
    """What the table holds, where the column is used as something else."""
    learnt: Learnt | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        numbers = self.kind != "category"
        if numbers and isinstance(self.fill, str) and self.fill not in ("median", "mean"):
            raise ValueError(f"fill is {self.fill!r}, not median, mean or a number")
        if len(set(self.categories)) < len(self.categories):
            raise ValueError("a category stands there twice")
        return self

    @property
    def held(self) -> Kind:
        """What the table holds."""
        return self.table_kind or self.kind

    @property
    def is_written(self) -> bool:
        """Whether the values of a fitted column are used."""
        return self.use and self.learnt is not None and not self.learnt.left_out

    @property
    def is_flagged(self) -> bool:
        """Whether a fitted column has another beside it that tells gaps."""
        return self.use and self.learnt is not None and 0 < self.learnt.gaps < self.learnt.rows

    def prepared_names(self) -> list[str]:
        """Return the columns that a fitted one becomes."""
        names: list[str] = []
        if self.is_written and self.kind == "category":
            assert self.learnt is not None
            names = [f"{self.name}={level}" for level in self.learnt.levels]
            names += [f"{self.name} is other"] if self.learnt.rare else []
        elif self.is_written:
            names = [self.name]
        return names + ([f"{self.name} is missing"] if self.is_flagged else [])


class TargetColumn(_Value):
    """A column that is to be predicted."""

    name: str
    kind: Literal["class", "labels", "number"]
    """One class, any number of them, or a number."""
    classes: tuple[str | int, ...] = ()
    counts: tuple[int, ...] = ()
    """Rows of each class."""
    gaps: _Count = 0


class Schema(_Value):
    """The columns of a graph's tables."""

    nodes: tuple[FeatureColumn, ...] = ()
    """Those of `x`, in its order."""
    edges: tuple[FeatureColumn, ...] = ()
    """Those of `edge_attr`, in its order."""
    targets: tuple[TargetColumn, ...] = ()
    edge_targets: tuple[TargetColumn, ...] = ()
    unused: Mapping[str, str] = Field(default_factory=dict)
    """Columns of the nodes that are not held, and why."""
    edge_unused: Mapping[str, str] = Field(default_factory=dict)
    """Those of the edges."""
    ids: Mapping[str, str] = Field(default_factory=dict)
    """The columns of ids, by the setting that names them: node_id, src, dst."""
    undirected: bool = False
    """Whether reverse edges were added when the tables were read."""
    weighted: bool = False
    """Whether the edges that a run was trained on had weights."""
    weight_mean: Annotated[_Finite, Field(gt=0)] = 1.0
    """Mean weight of training edges, by which weights are divided: units make no difference."""
    weights_kept: str = ""
    """Why they are not divided, where they can't be."""

    @property
    def is_fitted(self) -> bool:
        """Whether all that has to be learnt of the columns is."""
        return all(column.learnt is not None for column in (*self.nodes, *self.edges))

    def unused_of(self, group: Group) -> Mapping[str, str]:
        """Return the columns of one table that are not held, and why."""
        return self.unused if group == "nodes" else self.edge_unused

    def check_names(self, features: Sequence[str], edge_attrs: Sequence[str]) -> None:
        """Raise a ValueError unless these are the names of the columns as they are held now."""
        for what, columns, names in (
            ("features", self.nodes, features),
            ("edge features", self.edges, edge_attrs),
        ):
            known = [column.name for column in columns]
            if self.is_fitted:
                known = [name for column in columns for name in column.prepared_names()]
            if known != list(names):
                raise ValueError(f"the schema has other {what} than the names of columns")

    def to_dict(self) -> dict[str, Any]:
        """Return the plain mapping of a manifest or a YAML file; what is as usual is left out."""
        said = self.model_dump(mode="json", exclude_defaults=True)
        for group in _GROUPS:
            if group in said:
                columns = {column.pop("name"): _kind_first(column) for column in said[group]}
                said[group] = _lists_together(columns)
        return said

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> "Schema":
        """Return what `to_dict` gave; a ValueError tells what is wrong with another mapping."""
        return cls.model_validate({**said, **_named_groups(said)})

    def to_yaml(self) -> str:
        """Return the schema as people read and edit it."""
        import yaml  # noqa: PLC0415 - not everybody writes such files

        # Lists, and what holds no other, on one line.
        form: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 100}
        return str(yaml.safe_dump(self.to_dict(), default_flow_style=None, **form))

    def overridden(self, said: Mapping[str, Any], where: str) -> "Schema":
        """Return the schema with what a file says of some columns; `emb` stands for all `emb[i]`.

        The names of categories stay: they are what the numbers in the store mean.
        """
        unknown = [key for key in said if key not in Schema.model_fields]
        if unknown:
            raise ConfigError(
                "The schema has lines that are not understood.",
                seen=f"{unknown[0]!r} in {where}",
                fix="name columns below `nodes:` and `edges:`",
            )
        changed: dict[str, Any] = {}
        groups: tuple[Group, ...] = ("nodes", "edges")
        for group in groups:
            columns = getattr(self, group)
            lines = said.get(group) or {}
            self._check_held(lines, group, where)
            asked = _asked(lines, [column.name for column in columns], where)
            changed[group] = tuple(
                _overridden(column, asked.get(column.name, {}), where) for column in columns
            )
        return self.model_copy(update=changed)

    def _check_held(self, lines: Any, group: Group, where: str) -> None:
        """Raise where lines are about a column that the tables have and the store does not."""
        held = {column.name for column in getattr(self, group)}
        flag = "--features" if group == "nodes" else "--edge-attr"
        unused = self.unused_of(group)
        for key in lines if isinstance(lines, Mapping) else ():
            name = str(key)
            if name in held or name not in unused:
                continue
            raise ConfigError(
                "The schema says how to use a column that is not used.",
                seen=f"{name!r} in {where}; the tables have it: {unused[name]}",
                fix=f"name all columns to use, this one too, with {flag}, where the tables are "
                "read; or leave the lines out",
            )


def schema_from_facts(said: Any) -> Any:
    """Return the schema of a manifest, of whatever stands there."""
    return Schema.from_dict(said) if isinstance(said, Mapping) else said


_ENTRY = re.compile(r"(.+)\[(\d{1,9})\]")
_ENTRIES = re.compile(r"(.+)\[(\d{1,9})\.\.(\d{1,9})\]")
_MOST_ENTRIES = 1 << 20
_GROUPS = ("nodes", "edges", "targets", "edge_targets")


def _kind_first(column: dict[str, Any]) -> dict[str, Any]:
    """Return what is said of a column with its kind, the usual one too."""
    return {"kind": column.pop("kind", "number"), **column}


def _lists_together(columns: dict[str, Any]) -> dict[str, Any]:
    """Return the columns with alike entries of a list under one name: `emb[0..767]`."""
    together: dict[str, Any] = {}
    for (base, what), entries in groupby(
        columns.items(), lambda item: (_list_of(item[0]), item[1])
    ):
        names = [name for name, _ in entries]
        if base and len(names) > 1 and names == [f"{base}[{k}]" for k in _places(names)]:
            places = _places(names)
            names = [f"{base}[{places[0]}..{places[-1]}]"]
        together |= dict.fromkeys(names, what)
    return together


def _list_of(name: str) -> str:
    entry = _ENTRY.fullmatch(name)
    return entry[1] if entry else ""


def _places(names: list[str]) -> range:
    first = _ENTRY.fullmatch(names[0])
    assert first is not None, "_list_of comes first"
    return range(int(first[2]), int(first[2]) + len(names))


def _each(name: str) -> list[str]:
    """Return the columns that one name of `_lists_together` stands for."""
    several = _ENTRIES.fullmatch(name)
    if not several or int(several[3]) - int(several[2]) > _MOST_ENTRIES:
        return [name]
    return [f"{several[1]}[{k}]" for k in range(int(several[2]), int(several[3]) + 1)]


def _named_groups(said: Mapping[str, Any]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for group in _GROUPS:
        columns = said.get(group) or {}
        if not isinstance(columns, Mapping) or not all(
            what is None or isinstance(what, Mapping) for what in columns.values()
        ):
            raise ValueError(f"{group}: no lines as `column: ...`")
        named[group] = tuple(
            {**(what or {}), "name": name}
            for key, what in columns.items()
            for name in _each(str(key))
        )
    return named


def _asked(said: Any, names: list[str], where: str) -> dict[str, dict[str, Any]]:
    """Return what is said of each column, under its full name."""
    asked: dict[str, dict[str, Any]] = {}
    for key, what in said.items() if isinstance(said, Mapping) else [(str(said), {})]:
        meant = {*_each(str(key))}
        found = [name for name in names if name in meant or name.startswith(f"{key}[")]
        if not found or not isinstance(what, Mapping):
            raise ConfigError(
                "The schema names a column that the data has not."
                if not found
                else "The schema says nothing of a column.",
                seen=f"{key!r} in {where}",
                fix=f"name some of {', '.join(map(repr, names[:12]))}, each with lines below it",
            )
        asked |= {name: dict(what) for name in found}
    return asked


def _overridden(column: FeatureColumn, said: Mapping[str, Any], where: str) -> FeatureColumn:
    kept = {"name", "first", "categories", "gaps", "learnt"}
    try:
        new = FeatureColumn.model_validate({**column.model_dump(), **said})
    except ValidationError as error:
        raise ConfigError(
            "The schema can't be used.",
            seen=f"column {column.name!r} in {where}: {first_fault(error)}",
            fix="use kind, use, fill, scale, most_levels as `siafu inspect STORE --schema` prints "
            "them",
        ) from error
    update = {name: getattr(column, name) for name in kept}
    held = None if new.kind == column.held else column.held
    return new.model_copy(update=update | {"table_kind": held})
