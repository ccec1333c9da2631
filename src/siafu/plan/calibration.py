"""Measuring what work costs on this machine, in some seconds, by the kernels that runs use.

Shapes: M rows, C columns of a matrix, E edges, D width, H heads.
"""

import datetime
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from torch import Tensor, nn

from siafu.comm.loopback import measure_loopback
from siafu.nn import GNN, Draws, ModelSpec
from siafu.nn.local import LocalNeighbours
from siafu.ops import (
    CSR,
    DrawKey,
    EdgeDraw,
    Gat,
    WireLayout,
    attend,
    decode,
    dropout_rows,
    encode,
    map_rows,
    max_with_argument,
    num_threads,
    sample_positions,
    set_threads,
    spare_page_faults,
    sum_into,
)
from siafu.plan.machine import FAR_BYTES, NEAR_BYTES, Link, Machine, Rates
from siafu.plan.seconds import Work, whole_step
from siafu.plan.statistics import CutStatistics
from siafu.strategy import Strategy

WIDTHS = (16, 64, 256)
_EDGES, _DEGREE = 1 << 18, 16
_MORE = 8
"""Times the edges where several threads share them."""
_STEP_NODES = 30_000
_HEADS, _HEAD_WIDTH = 8, 8
_MOST_SECONDS, _REPEATS, _LEAST = 0.08, 5, 3
_KEY = DrawKey(seed=0, epoch=0, purpose=0)


def calibrate(device: str = "cpu", say: Callable[[str], None] = lambda line: None) -> Machine:
    """Return what work costs on this machine; takes some ten seconds."""
    at, resident = torch.device(device), int(psutil.Process().memory_info().rss)
    spare_page_faults()  # as ranks do
    cores = len(os.sched_getaffinity(0))
    say(f"Measuring what work costs on {_name(at)} (once, some ten seconds on an idle machine) ...")
    with _threads_as_before(), torch.random.fork_rng(devices=[at] if at.type == "cuda" else []):
        torch.manual_seed(0)
        counts = [1] if at.type == "cuda" else sorted({1, round(cores**0.5), cores})
        rates = tuple(_rates(count, at) for count in counts)
        set_threads(1 if at.type == "cpu" else cores)
        fixed = {name: _fixed_seconds(name, at) for name in ("gcn", "gat")}
        found = _machine(at, cores, rates, fixed, resident)
        wholes = [_whole(found, count, at) for count in counts]
    rates = tuple(
        one.model_copy(update={"whole": whole}) for one, whole in zip(rates, wholes, strict=True)
    )
    return found.model_copy(update={"rates": rates})


def _machine(
    at: torch.device,
    cores: int,
    rates: tuple[Rates, ...],
    fixed: dict[str, tuple[float, float]],
    resident: int,
) -> Machine:
    return Machine(
        name=_name(at),
        date=datetime.datetime.now(datetime.UTC).date(),
        torch=torch.__version__,
        device="cpu" if at.type == "cpu" else torch.cuda.get_device_name(at),
        cores=cores,
        rates=rates,
        layer_seconds=fixed["gcn"][0],
        attend_layer_seconds=fixed["gat"][0],
        step_seconds=fixed["gcn"][1],
        link=_loopback(),
        process_bytes=resident,
    )


def _whole(machine: Machine, threads: int, device: torch.device) -> float:
    """Return what a real step of some size takes over the sum of its parts."""
    width, edges = _HEADS * _HEAD_WIDTH, _STEP_NODES * _DEGREE
    if device.type == "cpu":
        set_threads(threads)
    seconds = _step_seconds("gcn", 2, _STEP_NODES, device)
    cut = CutStatistics(ranks=1, halo_rows=0, rows=_STEP_NODES, edges=edges)
    work = Work(
        spec=_spec("gcn", 2),
        cut=cut,
        train_share=1.0,
        share=machine.shared(1, threads),
        link=machine.link,
        strategy=Strategy(),
    )
    assert width == work.spec.hidden
    told = whole_step(work)
    return max(0.5, (seconds - told.fixed) / (told.training - told.fixed))


def _name(device: torch.device) -> str:
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return f"{platform.node()} ({kind}, {len(os.sched_getaffinity(0))} cores)"


@contextmanager
def _threads_as_before() -> Iterator[None]:
    before = num_threads()
    try:
        yield
    finally:
        set_threads(before)


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of one call, the least of some after the first."""
    sync = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    work()
    sync()
    found: list[float] = []
    while len(found) < _REPEATS and (len(found) < _LEAST or sum(found) < _MOST_SECONDS):
        started = time.perf_counter()
        work()
        sync()
        found.append(time.perf_counter() - started)
    return min(found)


def _matrix(columns: int, device: torch.device, edges: int = 0) -> CSR:
    edges = edges or _EDGES * (_MORE if num_threads() > 1 or device.type == "cuda" else 1)
    index = torch.randint(columns, (edges,), dtype=torch.int32, device=device)
    indptr = torch.arange(0, edges + 1, _DEGREE, device=device)
    return CSR(indptr=indptr, index=index, num_cols=columns)


def _rates(threads: int, device: torch.device) -> Rates:
    if device.type == "cpu":
        set_threads(threads)
    tensors = 8 << 20 if device.type == "cuda" or threads > 1 else 2 << 20
    a, b = (torch.ones(tensors // 64, 64, device=device) for _ in range(2))
    ids = torch.arange(len(a), device=device)
    picked = torch.randint(len(a), (len(a),), device=device)
    layout = WireLayout.build(
        torch.full((len(a),), 4, dtype=torch.uint8, device=device), 64, a.dtype
    )

    def code() -> None:
        decode(encode(a, None, layout, _KEY, ids, check=False).payload, layout)

    return Rates(
        threads=threads,
        near={width: _gather(width, NEAR_BYTES, device) for width in WIDTHS},
        far={width: _gather(width, FAR_BYTES, device) for width in WIDTHS},
        product={width: _product(width, device) for width in WIDTHS},
        element=_seconds(lambda: torch.add(a, b), device) / a.numel(),
        draw=_seconds(lambda: dropout_rows(a, ids, _KEY, 0.5), device) / a.numel(),
        select=_seconds(lambda: a.index_select(0, picked), device) / a.numel(),
        attend=_attention(device),
        maximum=_maximum(device),
        code=_seconds(code, device) / a.numel(),
        sample=_sampling(device),
    )


def _gather(width: int, table_bytes: int, device: torch.device) -> float:
    csr = _matrix(table_bytes // (4 * width), device)
    x_CD = torch.ones(csr.num_cols, width, device=device)
    out_MD = torch.empty(csr.num_rows, width, device=device)
    return _seconds(lambda: sum_into(csr, x_CD, out_MD), device) / (csr.num_edges * width)


def _product(width: int, device: torch.device) -> float:
    rows = max(1024, (1 << 22) // width) * (4 if device.type == "cuda" else 1)
    x, weight = (torch.ones(count, width, device=device) for count in (rows, width))
    return _seconds(lambda: map_rows(x, weight), device) / (rows * width * width)


def _attention(device: torch.device) -> tuple[float, float]:
    csr = _matrix(1 << 17, device)
    width = _HEADS * _HEAD_WIDTH
    z = torch.ones(csr.num_cols, _HEADS, _HEAD_WIDTH, device=device, requires_grad=True)
    score = torch.ones(csr.num_cols, _HEADS, device=device, requires_grad=True)

    ids = torch.arange(csr.num_cols, device=device)
    drop = EdgeDraw(_KEY, 0.5, ids, ids[: csr.num_rows])

    def forward() -> Tensor:
        return attend(Gat(slope=0.2), csr, (z, score), (score[: csr.num_rows],), drop=drop)

    def both() -> None:
        forward().sum().backward()

    there = _seconds(lambda: forward().detach(), device)
    return there / (csr.num_edges * width), max(there, _seconds(both, device) - there) / (
        csr.num_edges * width
    )


def _maximum(device: torch.device) -> float:
    csr = _matrix(1 << 14, device)
    x_CD = torch.ones(csr.num_cols, 64, device=device)
    return _seconds(lambda: max_with_argument(csr, x_CD), device) / (csr.num_edges * 64)


def _sampling(device: torch.device) -> float:
    csr = _matrix(1 << 16, torch.device("cpu"))
    rows = torch.arange(csr.num_rows)
    batch = torch.zeros(len(rows), dtype=torch.int64)
    draw = lambda: sample_positions(csr.indptr, rows, rows, batch, [_KEY], 10)  # noqa: E731
    return _seconds(draw, torch.device("cpu")) / (10 * len(rows))


def _fixed_seconds(model: str, device: torch.device) -> tuple[float, float]:
    """Return the seconds of a layer and of the rest of a step where there are hardly any rows."""
    short, tall = (_step_seconds(model, layers, 64, device) for layers in (2, 6))
    layer = max(0.0, (tall - short) / 4)
    return layer, max(0.0, short - 2 * layer)


def _spec(model: str, layers: int) -> ModelSpec:
    width = _HEADS * _HEAD_WIDTH
    return ModelSpec(name=model, in_width=width, out_width=width, hidden=width, layers=layers)


def _step_seconds(model: str, layers: int, nodes: int, device: torch.device) -> float:
    """Return the seconds of a step on a random graph."""
    csr, draws = _matrix(nodes, device, edges=nodes * _DEGREE), Draws()
    neighbours = LocalNeighbours(csr, torch.arange(nodes, device=device), draws)
    spec = _spec(model, layers)
    network = GNN(spec).to(device)
    draws.training = True
    x = torch.ones(nodes, spec.in_width, device=device)
    y = torch.zeros(nodes, dtype=torch.int64, device=device)
    optimiser = torch.optim.Adam(network.parameters())

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(network(x, neighbours, draws), y).backward()
        optimiser.step()

    return _seconds(step, device)


def _loopback() -> Link:
    """Return what lies between two ranks of this machine."""
    latency, bandwidth = measure_loopback()
    return Link(bytes_per_second=bandwidth, latency_seconds=latency, is_shared=True)
