"""Prices of machines, functions and transfer, from a dated file that a user can edit."""

import datetime
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siafu.errors import ConfigError, did_you_mean
from siafu.options import readable

PACKAGED = Path(__file__).with_name("prices.toml")
CURRENCY = "USD"

Table = dict[str, Any]
_TOP = ("date", "currency", "region", "remark")
_TABLES = {
    "instances_billing": ("step_seconds",),
    "lambda": (
        "dollars_per_gb_second",
        "dollars_per_million_requests",
        "memory_mb",
        "step_seconds",
    ),
    "transfer": ("route", "routes"),
}
_ROUTE = ("dollars_per_gb_out", "dollars_per_gb_in")


@dataclass(frozen=True, slots=True)
class InstancePrice:
    """What one machine costs, and where that figure is from."""

    name: str
    dollars_per_hour: float
    source: str = "your file"


@dataclass(frozen=True, slots=True)
class LambdaPrice:
    """What invocations of a function cost."""

    dollars_per_gb_second: float
    dollars_per_million_requests: float
    memory_mb: float
    """Memory of a worker that is not told otherwise."""
    step_seconds: float
    """Each invocation is billed a multiple of this."""


@dataclass(frozen=True, slots=True)
class Route:
    """What a GB costs between a rank's machine and its pool."""

    name: str
    dollars_per_gb_out: float
    dollars_per_gb_in: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices:
    """All that a bill is made with; `read_prices` makes one."""

    date: datetime.date
    region: str
    remark: str
    path: Path
    """The file asked for: the user's, or the packaged one."""
    instances: dict[str, InstancePrice]
    instance_step_seconds: float
    lambda_price: LambdaPrice
    route: Route

    def instance(self, name: str) -> InstancePrice:
        """Return the price of a machine; raise ConfigError for one that no file names."""
        if name not in self.instances:
            known = sorted(self.instances)
            raise ConfigError(
                "The instance has no price.",
                seen=f"{name}{did_you_mean(name, known)}",
                fix=f"add it to [instances] of a prices file, or use one of: {', '.join(known)}",
            )
        return self.instances[name]


def read_prices(path: Path | str | None = None) -> Prices:
    """Return the packaged prices, with the entries of the user's file on top where there is one."""
    own = PACKAGED if path is None else Path(path)
    packaged = _read(PACKAGED)
    mine = {} if path is None else _read(own)
    merged = {**packaged, **{key: mine[key] for key in _TOP if key in mine}}
    if mine and "remark" not in mine:
        merged["remark"] = f"{own.name} on top of: {packaged['remark']}"
    # A machine's entry is replaced whole: a new price must not keep the old one's source.
    merged["instances"] = {**packaged["instances"], **mine.get("instances", {})}
    for name in ("instances_billing", "lambda", "transfer"):
        merged[name] = {**packaged[name], **mine.get(name, {})}
    merged["transfer"]["routes"] = {
        **packaged["transfer"]["routes"],
        **mine.get("transfer", {}).get("routes", {}),
    }
    return Prices(
        date=merged["date"],
        region=merged["region"],
        remark=merged["remark"],
        path=own,
        instances={n: InstancePrice(n, **entry) for n, entry in merged["instances"].items()},
        instance_step_seconds=merged["instances_billing"]["step_seconds"],
        lambda_price=LambdaPrice(**merged["lambda"]),
        route=_route(merged["transfer"], own),
    )


def _route(transfer: Table, path: Path) -> Route:
    name, routes = transfer["route"], transfer["routes"]
    if name not in routes:
        raise ConfigError(
            "The route of transfers has no price.",
            seen=f"transfer.route = {name!r} in {path}{did_you_mean(name, list(routes))}",
            fix=f"add it to [transfer.routes], or use one of: {', '.join(sorted(routes))}",
        )
    return Route(name, **routes[name])


def _read(path: Path) -> Table:
    """Return the checked content of one file, which may hold only some entries."""
    with readable(f"{path}", "The prices can't be read.", f"write TOML as in {PACKAGED}"):
        content = tomllib.loads(path.read_text())
    _Check(path).file(content)
    return content


@dataclass(frozen=True, slots=True)
class _Check:
    """Raises ConfigError, naming key and file, for whatever is wrong in a file of prices."""

    path: Path

    def file(self, content: Table) -> None:
        """Check the whole content; numbers may be missing, the date may not."""
        self._known(content, "", (*_TOP, "instances", *_TABLES))
        self._date(content)
        for key in ("currency", "region", "remark"):
            self._text(content, key, key)
        if content.get("currency", CURRENCY) != CURRENCY:
            raise self._wrong("currency", content["currency"], f"convert, and use {CURRENCY!r}")
        for name, entry in self._table(content, "instances", "instances").items():
            self._instance(f'instances."{name}"', entry)
        for name in ("instances_billing", "lambda"):
            table = self._table(content, name, name)
            self._known(table, f"{name}.", _TABLES[name])
            for key in table:
                above = key in ("memory_mb", "step_seconds")
                self._number(table, key, f"{name}.{key}", above_zero=above)
        self._transfer(self._table(content, "transfer", "transfer"))

    def _date(self, content: Table) -> None:
        date = content.get("date")
        # A datetime is a date to Python, but has no place here.
        if not isinstance(date, datetime.date) or isinstance(date, datetime.datetime):
            seen = content.get("date", "nothing")
            raise self._wrong("date", seen, "say of what day the prices are: date = 2026-01-31")

    def _instance(self, key: str, entry: Any) -> None:
        if not isinstance(entry, dict):
            raise self._wrong(key, entry, "write { dollars_per_hour = 0.17 }")
        self._known(entry, f"{key}.", ("dollars_per_hour", "source"))
        self._number(entry, "dollars_per_hour", f"{key}.dollars_per_hour")
        self._text(entry, "source", f"{key}.source")

    def _transfer(self, transfer: Table) -> None:
        self._known(transfer, "transfer.", _TABLES["transfer"])
        self._text(transfer, "route", "transfer.route")
        for name, route in self._table(transfer, "routes", "transfer.routes").items():
            key = f'transfer.routes."{name}"'
            if not isinstance(route, dict):
                fix = "write { dollars_per_gb_out = 0.01, dollars_per_gb_in = 0.01 }"
                raise self._wrong(key, route, fix)
            self._known(route, f"{key}.", _ROUTE)
            for each in _ROUTE:
                self._number(route, each, f"{key}.{each}")

    def _known(self, table: Table, prefix: str, known: tuple[str, ...]) -> None:
        for key in table:
            if key not in known:
                raise ConfigError(
                    "Unknown key in the prices.",
                    seen=f"{prefix}{key} in {self.path}{did_you_mean(key, list(known))}",
                    fix=f"use one of: {', '.join(known)}",
                )

    def _table(self, content: Table, key: str, full_key: str) -> Table:
        table = content.get(key, {})
        if not isinstance(table, dict):
            raise self._wrong(full_key, table, f"begin a table with a line [{full_key}]")
        return table

    def _text(self, table: Table, key: str, full_key: str) -> None:
        if not isinstance(table.get(key, ""), str):
            raise self._wrong(full_key, table[key], "write text in quotes")

    def _number(self, table: Table, key: str, full_key: str, *, above_zero: bool = False) -> None:
        value = table.get(key, "nothing")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value < 0 or (above_zero and value == 0):
            least = "above 0" if above_zero else "of 0 or more"
            raise self._wrong(full_key, value, f"give a number {least}")

    def _wrong(self, key: str, seen: Any, fix: str) -> ConfigError:
        return ConfigError(
            "A price can't be used.", seen=f"{key} = {seen!r} in {self.path}", fix=fix
        )
