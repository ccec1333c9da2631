"""Where do pools of workers pay? A map over widths, degrees, nodes, latencies and prices.

Run: python -m benchmarks.pool_value [--json benchmarks/results/pool_value.jsonl]

A 2-layer GCN on 4 servers in virtual time (`siafu.pipeline.cluster`): our engine on the servers
alone, and the same with a pool for the tensor work. Features, hidden rows and the server's own
share of nodes are as wide as the map says; the first layer's gather is constant and done once, in
both. Costs are today's: gathers as `benchmarks.spmm` has them, products and serving as
`benchmarks.offload` has them, workers and prices those of the packaged function and of prices.toml.

Value is 1 / (seconds x dollars). Beside the same servers a pool also brings more dollars per hour;
`value_at_equal_spend` is beside as many dollars per hour spent on more such servers, which are
taken to scale as well as they can. `price_to_break_even` is what a GB-second may cost, of today's
price, for the value to be that of the servers alone; 0 where a pool is slower than none.

The second table is the replacement of a figure that was withdrawn: how much of a latency a pipeline
hides, of 16 workers that each have a core.
"""

import argparse
import itertools
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.measure import append_json, machine
from siafu.elastic.pools.cloud import CloudModel
from siafu.pipeline.cluster import Cluster
from siafu.pipeline.cluster_plan import (
    SERVING_PER_BYTE,
    SERVING_PER_BYTE_IN_CLEAR,
    SERVING_PER_TASK,
    ClusterPlan,
    ClusterRun,
    GraphWork,
    Script,
    TensorWork,
)
from siafu.pipeline.scheduler import BACKWARD, FORWARD
from siafu.plan import read_prices

Row = dict[str, Any]
FLOAT = 4
SERVERS, CLASSES = 4, 32
SERVER_BYTES, EDGE_BYTES = 21e9, 12
WIDTHS = (64, 256, 1024, 4096)
DEGREES = (5, 20, 100)
NODES = (100_000, 1_000_000, 10_000_000)
LATENCIES = (0.005, 0.02, 0.1)
HEAVY, DEPTHS = ((256, 20, 1_000_000), (1024, 20, 100_000)), (4, 16, 64, 256)
"""Places where layers have many products, and how many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Of one core, unless said."""

    cores: float = 5.2
    """Of a server: 8 virtual ones, two of which are a core's threads."""
    worker_speed: float = 0.65
    """Of a function with one virtual core."""
    row_seconds: float = 22e-9
    stream_bytes: float = 17e9
    """Of gathers: 37 ns for a row of 256 bytes (products-like), 52 of 512 (arxiv-like)."""
    flops: float = 76e9
    halo: float = 0.8
    """Rows of other servers per row of its own, at 4 servers (as `dorylus_cluster` has it)."""
    card_bytes: float = 25e9 / 8
    instance: str = "c5n.2xlarge"
    workers: tuple[int, ...] = (8, 32, 100)
    """Per server, with as many intervals: the number of the best value counts."""


@dataclass(frozen=True, slots=True)
class Point:
    """One place of the map."""

    width: int
    degree: int
    nodes: int
    """Of a server."""
    latency: float
    depth: int = 1
    """Products of width by width in a layer: 1 is a GCN, many are an encoder of texts."""

    @property
    def fits(self) -> bool:
        """Whether a server holds the rows (input, hidden and two gradients) and the edges."""
        rows = 4 * FLOAT * self.nodes * self.width
        return rows + EDGE_BYTES * self.nodes * self.degree <= SERVER_BYTES


def script(point: Point, costs: Costs, intervals: int, *, offloaded: bool) -> Script:
    """Return an interval's epoch; a pool's backward runs forward again."""
    rows, width = point.nodes / intervals, point.width
    edges = rows * point.degree
    gather = edges * (costs.row_seconds + FLOAT * width / costs.stream_bytes)
    halo = round(costs.halo * rows * FLOAT * width)
    product = point.depth * 2 * rows * width * width / costs.flops
    last = 3 * 2 * rows * width * CLASSES / costs.flops
    wide = round(rows * FLOAT * width)
    constants = (("answer", wide),)
    weights = point.depth * FLOAT * width * width
    return (
        TensorWork("forward", product, 0, wide, weights, constants),
        GraphWork(FORWARD, 1, gather, halo),
        TensorWork("finish", last, wide, wide, FLOAT * width * CLASSES),
        GraphWork(BACKWARD, 1, gather, halo),
        TensorWork("backward", product * (1 + offloaded), wide, weights, weights, constants),
    )


def cloud_of(point: Point, costs: Costs) -> CloudModel:
    """Return the packaged function at a latency, without mishaps."""
    model = replace(CloudModel.aws_lambda(), speed=costs.worker_speed)
    return replace(model, latency_seconds=point.latency, failure=0.0, loss=0.0, straggler=0.0)


def simulate(point: Point, costs: Costs, workers: int, *, in_clear: bool = True) -> ClusterRun:
    """Return what an epoch takes with so many workers per server; 0: by the servers alone."""
    plan = ClusterPlan(
        servers=SERVERS,
        intervals=workers or 8,
        cores=costs.cores,
        card_bytes=costs.card_bytes,
        cloud=cloud_of(point, costs) if workers else None,
        workers=workers or 8,
        weight_bytes=FLOAT * point.width * (point.depth * point.width + CLASSES),
        message_seconds=1e-4,
        serving_per_byte=SERVING_PER_BYTE_IN_CLEAR if in_clear else SERVING_PER_BYTE,
        serving_per_task=SERVING_PER_TASK,
    )
    if workers:
        return Cluster(plan, script(point, costs, workers, offloaded=True)).run(5, skipped=2)
    runs = [
        Cluster(each, script(point, costs, each.intervals, offloaded=False)).run(3)
        for each in (replace(plan, intervals=1, overlap=False), plan)
    ]
    return min(runs, key=lambda run: run.epoch_seconds)


def value_of(point: Point, costs: Costs, *, in_clear: bool = True) -> Row:
    """Return seconds, dollars and values of both sides; the pool's size is the best of some."""
    alone = simulate(point, costs, 0)
    rows = [_beside(point, costs, alone, workers, in_clear=in_clear) for workers in costs.workers]
    return max(rows, key=lambda row: row["value"])


def _beside(point: Point, costs: Costs, alone: ClusterRun, workers: int, *, in_clear: bool) -> Row:
    prices = read_prices()
    per_second = SERVERS * prices.instance(costs.instance).dollars_per_hour / 3600
    pooled = simulate(point, costs, workers, in_clear=in_clear)
    memory = cloud_of(point, costs).memory_gb
    requests = pooled.requests * prices.lambda_price.dollars_per_million_requests / 1e6
    compute = pooled.billed_seconds * memory * prices.lambda_price.dollars_per_gb_second
    servers = per_second * pooled.epoch_seconds
    alone_dollars = per_second * alone.epoch_seconds
    dollars = servers + requests + compute
    value = alone.epoch_seconds * alone_dollars / (pooled.epoch_seconds * dollars)
    room = alone.epoch_seconds * alone_dollars / pooled.epoch_seconds - servers - requests
    works = script(point, costs, workers, offloaded=False)
    seconds = sum(work.core_seconds for work in works if isinstance(work, TensorWork))
    operations = costs.flops * seconds * workers * SERVERS
    moved = pooled.sent_bytes + pooled.received_bytes
    seconds_of = {"servers alone": alone.epoch_seconds, "pool": pooled.epoch_seconds}
    return {
        **asdict(point),
        "workers": workers,
        "epoch_s": {name: float(f"{each:.4g}") for name, each in seconds_of.items()},
        "faster": round(alone.epoch_seconds / pooled.epoch_seconds, 3),
        "dollars_over_servers_alone": round(dollars / alone_dollars, 3),
        "value": round(value, 3),
        # As many dollars per hour in more servers would raise their value by the same factor.
        "value_at_equal_spend": round(value * servers / dollars, 3),
        "price_to_break_even": round(max(0.0, room / compute), 3) if compute else 0.0,
        "flop_per_byte": round(operations / moved, 1) if moved else None,
        "done_by_servers": pooled.counters["rescued"] > 0,
    }


def hidden_latency(costs: Costs) -> list[Row]:
    """Return epochs over those without latency, in a pipeline and taking turns."""
    # The graph of the figure that was withdrawn: 700 k nodes of degree 20, 64 columns, one server.
    point = Point(64, 20, 700_000, 0.0)
    works = script(point, costs, 16, offloaded=True)
    rows = []
    sides: dict[str, Row] = {
        "exact": {},
        "taking turns": {"overlap": False},
        "staleness 1": {"staleness": 1},
    }
    for name, changes in sides.items():
        plan = ClusterPlan(servers=1, intervals=16, cores=1.0, workers=16, **changes)
        seconds = {
            latency: Cluster(replace(plan, cloud=CloudModel.ideal(latency_seconds=latency)), works)
            .run(8, skipped=3)
            .epoch_seconds
            for latency in (0.0, 0.001, 0.02, 0.1)
        }
        told = {f"{latency * 1000:g} ms": round(each, 4) for latency, each in seconds.items()}
        ratio = round(seconds[0.1] / seconds[0.0], 3)
        rows.append({"side": name, "epoch_s": told, "times_at_100_ms": ratio})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Simulate every place of the map; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    costs, began, rows = Costs(), time.process_time(), []
    latencies = hidden_latency(costs)
    places = [Point(*place) for place in itertools.product(WIDTHS, DEGREES, NODES, LATENCIES)]
    places += [Point(*place, 0.02, depth) for place in HEAVY for depth in DEPTHS]
    for point in places:
        if point.fits:
            rows.append(value_of(point, costs))
            print(rows[-1], flush=True)
    encrypted = value_of(Point(1024, 20, 1_000_000, 0.02), costs, in_clear=False)
    result = {
        "benchmark": "pool-value",
        "rows": rows,
        "left_out": sum(not point.fits for point in places),
        "encrypted": encrypted,
        "hidden_latency": latencies,
        "costs": asdict(costs),
        "prices": str(read_prices().date),
        "processor_s": round(time.process_time() - began, 1),
        **machine(),
    }
    if args.json:
        append_json(args.json, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
