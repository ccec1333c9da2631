"""The eight figures of the README, ours beside a peer's, picked out of benchmarks/results."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.beside import Row, mb, ms, rows_of, times


@dataclass(frozen=True, kw_only=True, slots=True)
class Headline:
    """One figure and the peer's, in one unit, both from one run."""

    what: str
    short: str
    """The same in few words, for plots."""
    ours: float
    peer: float
    whom: str
    unit: Callable[[float], str]
    word: str
    """What the ratio says when ours is the smaller number."""
    command: str

    @property
    def ratio(self) -> float:
        """How many times ours goes into the peer's; above 1 when ours is ahead."""
        return self.peer / self.ours

    def line(self) -> str:
        """Return a row of the README's table."""
        return (
            f"| {self.what} | **{self.unit(self.ours)}** | {self.whom} {self.unit(self.peer)} "
            f"| **{times(self.ratio)} {self.word}** | `{self.command}` |"
        )


def headlines() -> list[Headline]:
    """Return the eight figures, in the order of the README."""
    return [_epoch_cpu(), _epoch_gpu(), _beside_dgl(), *_layer(), _sampling(), _memory(), _slow()]


def _one(name: str, **wanted: object) -> Row:
    """Return the newest row of a results file that has these values."""
    found = [row for row in rows_of(name) if wanted.items() <= row.items()]
    assert found, f"{name}: no row with {wanted}"
    return found[-1]


def _epoch_cpu() -> Headline:
    row = _one("epoch", model="gcn", allocator="kept")
    return Headline(
        what="epoch, GCN 3 x 256, 170k nodes, 2 cores",
        short="epoch, GCN, 2 cores",
        ours=row["siafu"]["median_ms"],
        peer=row["pyg"]["median_ms"],
        whom="PyG",
        unit=ms,
        word="faster",
        command="benchmarks.epoch",
    )


def _epoch_gpu() -> Headline:
    row = _one("epoch-h200", model="gcn")
    return Headline(
        what="epoch, GCN 3 x 256, 170k nodes, H200",
        short="epoch, GCN, H200",
        ours=row["siafu"]["median_ms"],
        peer=row["pyg"]["median_ms"],
        whom="PyG",
        unit=ms,
        word="faster",
        command="benchmarks.epoch --device cuda",
    )


def _beside_dgl() -> Headline:
    row = _one("epoch-dgl", model="gat")
    return Headline(
        what="epoch, GAT 3 x (4 x 64), 170k nodes, one thread, processor time",
        short="epoch, GAT, one thread",
        ours=row["siafu"]["cpu_median_ms"],
        peer=row["dgl"]["cpu_median_ms"],
        whom="DGL",
        unit=ms,
        word="faster",
        command="benchmarks.epoch_dgl --models gat --scale 1 --dgl-python P",
    )


def _layer() -> list[Headline]:
    row = _one("attention-h200", kind="gat", graph="reddit-like/5")
    what = f"GAT layer, forward and backward, {row['edges'] / 1e6:.0f} M edges, H200"
    command = "benchmarks.attention --device cuda --kind gat"
    return [
        Headline(
            what=what,
            short="GAT layer, H200",
            ours=row["ours median_ms"],
            peer=row["pyg median_ms"],
            whom="PyG",
            unit=ms,
            word="faster",
            command=command,
        ),
        Headline(
            what=f"memory of that layer, {row['edges'] / 1e6:.0f} M edges",
            short="memory of that layer",
            ours=row["ours peak_mb"],
            peer=row["pyg peak_mb"],
            whom="PyG",
            unit=mb,
            word="less",
            command=command,
        ),
    ]


def _sampling() -> Headline:
    row = _one("sampling", graph="reddit-like/5")
    # DGL draws more edges of one minibatch, so an edge is what both are asked about.
    ours, theirs = (1e9 / row[f"{side} edges_per_cpu_s"] for side in ("ours", "dgl"))
    return Headline(
        what="minibatches drawn, fan-out 15,10,5, 22 M edges, processor time per edge",
        short="minibatches drawn, per edge",
        ours=ours,
        peer=theirs,
        whom="DGL",
        unit=lambda value: f"{value:.0f} ns",
        word="faster",
        command="benchmarks.sampling --pyg-python P --dgl-python P",
    )


def _memory() -> Headline:
    result = rows_of("memory_scaling")[-1]
    rows = {(r["ranks"], r["strategy"]): r for r in result["rows"] if r["model"] == "gat"}
    most = max(ranks for ranks, _ in rows)
    return Headline(
        what=f"memory per rank, GAT 3 x (4 x 64), 10 M edges, `sar` on {most} ranks",
        short=f"memory per rank, {most} ranks",
        ours=rows[most, "sar"]["peak_mb"],
        peer=rows[1, "halo"]["peak_mb"],
        whom="one rank",
        unit=mb,
        word="less",
        command="benchmarks.memory_scaling",
    )


def _slow() -> Headline:
    run = next(row for row in rows_of("slow_network-cores") if row["graph"] == "github_social")
    # Two hosts: of four, a machine with two cores plays slower ones.
    found = {
        row["mode"]: row["seconds_to_target"]
        for row in run["times"]
        if (row["hosts"], row["ranks_per_host"], row["mbit"]) == (2, 1, 100.0)
    }
    return Headline(
        what="time to accuracy, SAGE 3 x 256, 2 hosts at 100 Mbit/s, `--wire 2 --changes`",
        short="time to accuracy, 2 hosts at 100 Mbit/s",
        ours=1e3 * found["all"],
        peer=1e3 * found["fp32"],
        whom="plain fp32",
        unit=ms,
        word="faster",
        command="benchmarks.slow_network --data github_social --hosts 2 --cores 1 --models sage "
        "--modes fp32,changes,all --curves --seeds 2 --epochs 60 --lr 0.0005",
    )


def readme_table() -> str:
    """Return the README's table, and below it where a peer is ahead."""
    head = ["| measured | siafu | peer | | `python -m` |", "|---|---|---|---|---|"]
    behind = _one("spmm-h200", graph="arxiv-like")
    ours, theirs = behind["ours median_ms"], behind["torch.sparse median_ms"]
    scores = {row["set"]: row for row in rows_of("accuracy")}
    told = ", ".join(
        f"{name.capitalize()} {scores[name]['mean']:.1f} ({scores[name]['expected']})"
        for name in ("cora", "citeseer", "pubmed")
    )
    note = (
        f"\nGCN test accuracy, 10 seeds (published): {told} (`benchmarks.accuracy`). Where a peer "
        f"is ahead: a neighbour sum of {behind['edges'] / 1e6:.0f} M edges on an H200 takes "
        f"{ms(ours)}, torch.sparse {ms(theirs)} ({times(ours / theirs)} faster; `benchmarks.spmm "
        "--device cuda`). All figures, with their machines and "
        "commands: [docs/benchmarks.md](docs/benchmarks.md)."
    )
    return "\n".join([*head, *(figure.line() for figure in headlines()), note])
