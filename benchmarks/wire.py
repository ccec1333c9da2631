"""How far are encoding and decoding rows from a copy of them, and how long takes choosing widths?

Run: python -m benchmarks.wire [--json FILE] [--device cpu|cuda] [--rows N] [--width 256]

Speeds are bytes of float32 rows a second, whatever their size on the wire. "gathered" takes the
rows in random order, as boundary rows are; its floor is `index_select`. The plain side is the same
format in torch operations.

Shapes: N rows, D width.
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import Side, append_json, machine, take_turns
from siafu.comm import Format
from siafu.ops import DrawKey, WireLayout, decode, decode_into, encode, kernels, set_threads
from siafu.ops.contract import Draw, Wire
from siafu.strategy.rounding.assignment import Messages, assign_bytes, cost_of, uniform

ROWS = {"cpu": 200_000, "cuda": 4_000_000}
PLAIN_ROWS = 20_000
"""The plain side is slow and takes many times the memory, so it gets a part of the rows."""

WIDTHS = (2, 4, 8, 16, 32)
KEY = DrawKey(seed=1, epoch=2, purpose=3)


class Case:
    """Rows, a width in bits for all of them, and the buffers that every repetition reuses."""

    def __init__(self, x_ND: Tensor, bits: int, order_N: Tensor) -> None:
        self.x_ND, self.order_N = x_ND, order_N
        self.ids_N = torch.arange(len(x_ND), device=x_ND.device)
        bits_N = torch.full((len(x_ND),), bits, dtype=torch.uint8, device=x_ND.device)
        self.layout = WireLayout.build(bits_N, x_ND.size(1))
        self.payload = torch.empty(self.layout.num_bytes, dtype=torch.uint8, device=x_ND.device)

    def encode(self, order_N: Tensor | None = None) -> None:
        """Encode into the buffer; unchecked, as the device is not to wait in a step."""
        ids_N = self.ids_N if order_N is None else order_N
        encode(self.x_ND, order_N, self.layout, KEY, ids_N, out=self.payload, check=False)

    def encode_plainly(self) -> None:
        """Encode the same rows by torch operations."""
        wire = Wire(self.payload, self.layout.bits_S, self.layout.start_S)
        range_S = torch.empty(len(self.x_ND), device=self.x_ND.device)
        draw = Draw(KEY.row_words(), self.ids_N)
        kernels.PLAIN.wire.encode_into(self.x_ND, None, draw, wire, range_S)

    def decode_plainly(self, out_ND: Tensor) -> None:
        """Decode by torch operations."""
        wire = Wire(self.payload, self.layout.bits_S, self.layout.start_S)
        kernels.PLAIN.wire.decode_into(wire, out_ND)


def gate(x_ND: Tensor, bits: int) -> None:
    """Raise unless both sides write the same bytes, and rows come back within a step."""
    part = Case(x_ND[:1000], bits, torch.arange(1000))
    part.encode()
    fast = part.payload.clone()
    part.encode_plainly()
    assert torch.equal(fast, part.payload), f"{bits} bits: implementations differ"
    range_N1 = (x_ND[:1000].amax(1) - x_ND[:1000].amin(1))[:, None]
    step_N1 = 1.02 * range_N1 / (2.0**bits - 1)
    assert ((decode(fast, part.layout) - x_ND[:1000]).abs() <= step_N1).all()


def measure_width(x_ND: Tensor, bits: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the speeds at one width, in GB/s of float32 rows."""
    gate(x_ND, bits)
    order_N = torch.randperm(len(x_ND), generator=torch.Generator().manual_seed(1)).to(x_ND.device)
    case, out_ND = Case(x_ND, bits, order_N), torch.empty_like(x_ND)
    few = Case(x_ND[:PLAIN_ROWS], bits, order_N[:0])
    case.encode()
    few.encode()
    sides: dict[str, Side] = {
        "copy": partial(out_ND.copy_, x_ND),
        "index_select": partial(torch.index_select, x_ND, 0, order_N, out=out_ND),
        "encode": case.encode,
        "encode gathered": partial(case.encode, order_N),
        "decode": partial(decode_into, case.payload, case.layout, out_ND),
        "plain encode": few.encode_plainly,
        "plain decode": partial(few.decode_plainly, out_ND[:PLAIN_ROWS]),
    }
    # payloads of both orders have one size, so decoding whichever came last is the same work
    spreads = take_turns(sides, repeats=args.repeats, device=args.device)
    row: dict[str, Any] = {"bits": bits, "rows": len(x_ND), "width": x_ND.size(1)}
    for name, spread in spreads.items():
        share = PLAIN_ROWS / len(x_ND) if name.startswith("plain") else 1
        row[f"{name} gb_per_s"] = round(share * x_ND.nbytes / spread.median / 1e9, 2)
        row.update({f"{name} {unit}": value for unit, value in spread.row().items()})
    for name, floor in (
        ("encode", "copy"),
        ("decode", "copy"),
        ("encode gathered", "index_select"),
    ):
        row[f"{name} / {floor}"] = round(spreads[name].median / spreads[floor].median, 2)
    return row


def measure_assignment(count: int = 100_000) -> dict[str, Any]:
    """Return the milliseconds that choosing widths takes, and what it gains over 4 bits for all."""
    draw = np.random.default_rng(0)
    width_K = np.where(draw.random(count) < 0.2, 602, 256)
    messages = Messages(draw.lognormal(0, 2, count), width_K)
    whole = cost_of(messages, uniform(count, Format("rounded", 4)))
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        found = assign_bytes(messages, whole.num_bytes)
        taken.append(time.perf_counter() - start)
    return {
        "messages": count,
        "bytes budget median_ms": round(1e3 * sorted(taken)[2], 1),
        "bytes budget variance / 4 bits": round(found.variance / whole.variance, 3),
    }


def _print_row(row: dict[str, Any]) -> None:
    speeds = ("copy", "encode", "decode", "index_select", "encode gathered")
    text = "  ".join(f"{name} {row[f'{name} gb_per_s']:.1f}" for name in speeds)
    plain = f"plain {row['plain encode gb_per_s']:.2f} / {row['plain decode gb_per_s']:.2f}"
    print(f"{row['bits']:>2} bits, GB/s: {text}  {plain}", flush=True)


def main() -> None:
    """Measure every width, then the assignment."""
    parser = argparse.ArgumentParser(description="encoding rows beside copying them")
    parser.add_argument("--json", type=Path, help="append one line for each row to this file")
    parser.add_argument("--device", choices=sorted(ROWS), default="cpu")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    set_threads(args.threads)
    generator = torch.Generator(args.device).manual_seed(0)
    rows = args.rows or ROWS[args.device]
    x_ND = torch.randn(rows, args.width, generator=generator, device=args.device)
    found = []
    for bits in WIDTHS:
        found.append({**measure_width(x_ND, bits, args), **machine(args.device)})
        _print_row(found[-1])
    found.append({**measure_assignment(), **machine(args.device)})
    print(f"widths of {found[-1]['messages']:,} rows: {found[-1]}")
    for row in found:
        if args.json:
            append_json(args.json, {"benchmark": "wire", **row})
    print(json.dumps({"benchmark": "wire", "device": args.device, "rows": found}))


if __name__ == "__main__":
    main()
