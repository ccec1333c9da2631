"""What `--strategy auto` takes beside the best, over cases in which different strategies win.

    python -m benchmarks.chosen [--out chosen.jsonl] [--cases 0-5] [--epochs 5] [--calibrate]

Ranks of one machine, and hosts in network namespaces with slow links (`benchmarks.hosts`, root),
train an epoch of each strategy in turn, so that what else a machine does falls on all of them; no
time is told of losses that differ. With a budget, and for models of a user's own, every strategy
is a run of its own: what the budget refuses does not count. `auto` is given the same parts and,
between hosts, measures the link. A case is good where what it takes is within 10 % of the best.
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import siafu
from benchmarks.feature_parallel import badly_cut
from benchmarks.hosts import hosts
from benchmarks.measure import append_json, machine
from benchmarks.predicted import load_graph
from benchmarks.ranks import answer, run_module
from siafu.comm import World
from siafu.config import make_config
from siafu.engine import Trainer, begin
from siafu.errors import SiafuError
from siafu.graph import Graph
from siafu.launch.automatic import with_chosen_strategy
from siafu.launch.rank import prepare_process
from siafu.ops import warm_up, warm_up_wire
from siafu.partitioning.options import Method
from siafu.plan import Link, calibrate, keep_machine, measured_link
from siafu.shard import Shard, open_shard

EXACT = ("halo", "columns", "sar")
GOAL = 1.1
WARM_EPOCHS = 3
OWN_MODEL = """
import torch
from torch_geometric.nn import SAGEConv


class Net(torch.nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.first, self.last = SAGEConv(in_channels, 64), SAGEConv(64, out_channels)

    def forward(self, x, edge_index):
        return self.last(self.first(x, edge_index).relu(), edge_index)
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A graph, how it is cut, what is trained on it, and what lies between ranks."""

    graph: str
    model: str
    ranks: int
    mbit: float | None = None
    """Of the links of hosts; None: ranks of this machine."""
    method: Method = "metis"
    is_tight: bool = False
    """Whether the budget lies midway between what the leanest and the next choice need."""
    allow: str = "exact"
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def strategies(self) -> tuple[str, ...]:
        """What is compared: of one rank exact strategies are the same."""
        exact = EXACT[:1] if self.ranks == 1 else EXACT
        more = {"exact": (), "rounded": ("adaqp",), "sampled": ("batchgnn",)}[self.allow]
        return (*exact, *more)

    @property
    def is_by_runs(self) -> bool:
        """Whether each strategy is a run of its own."""
        return self.is_tight or self.model == "own"


WIDE = {"hidden": 256, "layers": 3}
CASES = (
    Case(graph="cora", model="gcn", ranks=1),
    Case(graph="ogbn_arxiv_struct", model="gcn", ranks=2),
    Case(graph="ogbn_arxiv_struct", model="gat", ranks=4),
    Case(graph="coauthor_physics", model="sage", ranks=3),
    Case(graph="communities:30000", model="gin", ranks=4),
    Case(graph="random:12000", model="sage", ranks=3, settings=WIDE),
    Case(graph="random:12000", model="gcn", ranks=2),
    Case(graph="planted:20000", model="own", ranks=2),
    Case(graph="random:30000", model="gat", ranks=4, method="hash", is_tight=True),
    Case(graph="random:30000", model="sage", ranks=4, method="hash", is_tight=True, settings=WIDE),
    Case(graph="ogbn_arxiv_struct", model="gat", ranks=3, is_tight=True),
    Case(graph="planted:300000", model="sage", ranks=2, is_tight=True, allow="sampled"),
    Case(graph="random:8000", model="sage", ranks=4, mbit=100),
    Case(graph="random:8000", model="gat", ranks=4, mbit=100),
    Case(graph="random:8000", model="gcn", ranks=3, mbit=100),
    Case(graph="communities:8000", model="sage", ranks=4, mbit=100),
    Case(graph="communities:8000", model="gat", ranks=2, mbit=100),
    Case(graph="random:8000", model="sage", ranks=2, mbit=1000, settings=WIDE),
    Case(graph="random:8000", model="sage", ranks=2, mbit=100, allow="rounded", settings=WIDE),
    Case(graph="communities:8000", model="gcn", ranks=3, mbit=50, allow="rounded"),
)


def made_graph(name: str) -> Graph:
    """Return the graph of a case."""
    kind, _, size = name.partition(":")
    if kind in ("random", "communities"):
        return badly_cut(int(size), 30, communities=kind == "communities")
    return load_graph(name)


def measure_rank(job: dict[str, Any]) -> None:
    """Time epochs of each strategy in turn on one rank, and write what it saw."""
    case = Case(**job["case"])
    threads = {"threads": 1} if case.ranks > 1 else {}
    prepare_process(make_config(data=job["parts"], **threads))
    with World.join(device="cpu") as world:
        shard = open_shard(job["parts"], world, verify=False)
        link = measured_link(world)
        row = {"found": _time(shard, case, job), "link": link and link.model_dump()}
        if "SIAFU_ANSWER" in os.environ:
            answer(row)
        print(json.dumps(row))


def _time(shard: Shard, case: Case, job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    trainings: dict[str, Trainer] = {}
    found: dict[str, dict[str, Any]] = {}
    for name in case.strategies:
        config = make_config(data=job["parts"], model=case.model, strategy=name, **case.settings)
        trainings[name] = begin(config.resolved(), shard)
        losses = [_step(trainings[name]) for _ in range(WARM_EPOCHS)]
        found[name] = {"losses": losses, "seconds": []}
    for _ in range(job["epochs"]):
        for name, training in trainings.items():
            start = time.perf_counter()
            _step(training)
            found[name]["seconds"].append(time.perf_counter() - start)
    return found


def _step(training: Trainer) -> float:
    loss = training.step()
    training.progress.epochs += 1
    return float(loss)


def in_turns(case: Case, parts: Path, epochs: int) -> tuple[dict[str, float], Link | None]:
    """Return the median epoch of each strategy, and the link that was measured."""
    job = {"case": asdict(case), "parts": str(parts), "epochs": epochs}
    if case.mbit is None:
        told = run_module("benchmarks.chosen", case.ranks, job, deadline_seconds=250)
    else:
        command = [sys.executable, "-m", "benchmarks.chosen", "--rank", json.dumps(job)]
        with hosts(case.ranks, mbit=case.mbit) as made:
            answers = made.run(command, deadline_seconds=250)
        failed = [one for one in answers if one.code != 0]
        if failed:
            raise RuntimeError(f"host {failed[0].host}: {failed[0].err[-2000:]}")
        told = [json.loads(one.out.splitlines()[-1]) for one in answers]
    first = told[0]["found"]
    for name in case.strategies:
        far = 1e-3 if name in EXACT else 0.1
        for got, want in zip(first[name]["losses"], first["halo"]["losses"], strict=True):
            if not math.isclose(got, want, rel_tol=far):
                raise RuntimeError(f"losses of {name} differ: {got} and {want}")
    link = told[0]["link"]
    seconds = {name: statistics.median(first[name]["seconds"]) for name in case.strategies}
    return seconds, None if link is None else Link(**link)


def tight_budget(case: Case, parts: Path, folder: Path) -> str:
    """Return a budget that the leanest choice is within and no other, as ranks tell their needs."""
    needs = []
    lean = "batchgnn" if case.allow == "sampled" else "sar"
    for name in dict.fromkeys((lean, *case.strategies)):
        stages: dict[str, Any] = {"stages": 1} if name == "halo" else {}
        try:
            siafu.fit(
                str(parts),
                model=case.model,
                strategy=name,
                memory="1MB",
                ranks=case.ranks,
                out=str(folder / f"need-{name}"),
                quiet=True,
                **stages,
                **case.settings,
            )
        except SiafuError as error:
            needs.append(float(error.seen.partition("a rank needs ")[2].split()[0]))
    least, above = needs[0], [need for need in needs[1:] if need > needs[0]]
    return f"{1000 * (least + min(above, default=1.1 * least)) / 2:.0f}MB"


def by_runs(
    case: Case, parts: Path, folder: Path, epochs: int, memory: str | None
) -> dict[str, float]:
    """Return the median epoch of each strategy that runs within the budget."""
    seconds = {}
    model = case.model
    if model == "own":
        (folder / "net.py").write_text(OWN_MODEL)
        model = f"{folder / 'net.py'}:Net"
    for name in (*case.strategies, "auto"):
        settings: dict[str, Any] = {"allow": case.allow} if name == "auto" else {}
        # Without a number of stages a budget finds one: halo is then what lies on the way to sar.
        settings |= {"stages": 1} if name == "halo" and memory is not None else {}
        try:
            run = siafu.fit(
                str(parts),
                model=model,
                strategy=name,
                memory=memory,
                ranks=case.ranks,
                epochs=epochs + WARM_EPOCHS,
                inference="none",
                out=str(folder / name),
                quiet=True,
                **settings,
                **case.settings,
            )
        except SiafuError as error:
            print(f"  {name}: {error.problem} {error.seen}", flush=True)
            continue
        rows = [json.loads(one) for one in (run.path / "metrics.jsonl").read_text().splitlines()]
        seconds[name] = statistics.median(row["seconds"] for row in rows[WARM_EPOCHS:])
        print(f"  {name}: {seconds[name]:.4f} s, peak {max(run.result['peak_mb']):.0f} MiB")
    return seconds


def taken(
    case: Case, parts: Path, folder: Path, link: Link | None, memory: str | None
) -> tuple[str, str]:
    """Return what auto takes, and what it says of it."""
    model = f"{folder / 'net.py'}:Net" if case.model == "own" else case.model
    said: list[str] = []
    config = make_config(
        data=str(parts),
        model=model,
        ranks=case.ranks,
        memory=memory,
        allow=case.allow,
        **case.settings,
    )
    chosen = with_chosen_strategy(config, parts, said.append, link)
    return chosen.strategy, said[0] if said else ""


def measured(case: Case, epochs: int) -> dict[str, Any]:
    """Return what each strategy took and what auto takes."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        parts = folder / "parts"
        graph = made_graph(case.graph)
        siafu.partition(graph, parts, parts=case.ranks, method=case.method, quiet=True)
        del graph
        link = None
        memory = tight_budget(case, parts, folder) if case.is_tight else None
        if case.is_by_runs:
            seconds = by_runs(case, parts, folder, epochs, memory)
        else:
            seconds, link = in_turns(case, parts, epochs)
        name, told = taken(case, parts, folder, link, memory)
    # Of a budget auto may take stages that no preset has: then its own run counts.
    own = seconds.pop("auto", math.inf)
    best = min(seconds.values(), default=own)
    mine = seconds.get(name, own)
    if memory is not None and name == "halo":
        mine = min(own, mine)
    row = {name: value for name, value in asdict(case).items() if value not in (None, {}, False)}
    row |= {} if memory is None else {"memory": memory}
    row |= {"seconds": {name: round(value, 4) for name, value in seconds.items()}}
    row |= {"auto": None if math.isinf(own) else round(own, 4), "taken": name, "said": told}
    row |= {"best": min(seconds, key=lambda one: seconds[one], default="none")}
    row |= {"ratio": round(mine / best, 3), "load": round(os.getloadavg()[0], 1)}
    return row | {"link": None if link is None else link.model_dump()}


def numbers(text: str) -> Iterator[int]:
    """Yield the numbers of `0-3,7`."""
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        yield from range(int(first), int(last or first) + 1)


def main() -> None:
    """Run the cases and say in how many the choice was good."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cases", default=f"0-{len(CASES) - 1}")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--rank")
    args = parser.parse_args()
    if args.rank:
        measure_rank(json.loads(args.rank))
        return
    if args.calibrate:
        print(f"Kept at {keep_machine(calibrate('cpu', print))}")
    warm_up()
    warm_up_wire()
    rows: list[dict[str, Any]] = []
    for number in numbers(args.cases):
        with suppress(KeyboardInterrupt):
            row = {"case": number, **measured(CASES[number], args.epochs)}
            rows.append(row)
            print(json.dumps(row), flush=True)
            if args.out is not None:
                append_json(args.out, {"benchmark": "chosen", **row, **machine()})
    good = sum(row["ratio"] <= GOAL for row in rows)
    print(f"within 10 % of the best: {good} of {len(rows)}")


if __name__ == "__main__":
    main()
