"""A Ray of one's own, which stays on loopback and leaves nothing; a cluster that is not there."""

import os
import queue
import signal
import socket
from pathlib import Path

import psutil
import pytest
import ray
import torch

from siafu.elastic.pools.ray import RayConnection, RayPool
from siafu.elastic.task import Bundle, Reply, Task
from siafu.errors import PoolError
from tests.ray.conftest import WITHIN_SECONDS, listening


def test_own_ray_stays_on_loopback_and_leaves_nothing() -> None:
    variables, handler = dict(os.environ), signal.getsignal(signal.SIGTERM)
    replies: queue.Queue[Reply] = queue.Queue()
    own = psutil.Process()
    others = own.children(recursive=True)  # of other tests
    pool = RayPool(replies.put, workers=1, address=None, deadline_seconds=WITHIN_SECONDS)
    folder = Path(pool._connection._scratch)
    assert folder.is_dir()
    assert signal.getsignal(signal.SIGTERM) is handler
    pool.start(Task(0, "ping", "test", {}, (Bundle("x", {"x": torch.ones(2)}, "run"),)))
    reply = replies.get(timeout=WITHIN_SECONDS)
    assert reply.tensors["out_x"].tolist() == [1, 1]
    processes = [child for child in own.children(recursive=True) if child not in others]
    addresses = listening(processes)
    pool.close()
    pool.close()
    assert addresses == {"127.0.0.1"}
    assert not ray.is_initialized()
    _, alive = psutil.wait_procs(processes, timeout=WITHIN_SECONDS)
    assert not alive
    assert not folder.exists()
    assert dict(os.environ) == variables


def test_cluster_that_is_not_there_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(PoolError, match="can't be joined"):
        RayConnection(f"127.0.0.1:{port}", deadline_seconds=1.0)
