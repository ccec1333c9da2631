"""What ranks of one machine have between them, measured by two threads that stand for two."""

import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def measure_loopback(num_bytes: int = 8 << 20, pings: int = 50) -> tuple[float, float]:
    """Return the seconds of a small message over Gloo, and the bytes per second of large ones."""
    api: Any = dist
    store, seconds, kind = api.HashStore(), [0.0, 0.0], api.ProcessGroupGloo
    options = kind._Options()
    options._devices = [kind.create_device(interface="lo")]
    options._timeout = timedelta(seconds=30)

    def act(rank: int) -> None:
        group = kind(store, rank, 2, options)
        small, large = torch.ones(1), torch.ones(num_bytes // 4)

        def swap(send: Tensor, into: Tensor) -> None:
            going, coming = group.send([send], 1 - rank, 0), group.recv([into], 1 - rank, 0)
            going.wait()
            coming.wait()

        for place, (tensor, times) in enumerate(((small, pings), (large, 4))):
            into = torch.empty_like(tensor)
            swap(tensor, into)
            started = time.perf_counter()
            for _ in range(times):
                swap(tensor, into)
            seconds[place] = (time.perf_counter() - started) / times

    threads = [threading.Thread(target=act, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seconds[0], num_bytes / seconds[1]
