"""One cluster of two Ray nodes for all tests here: it takes seconds to start."""

import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster

from siafu.elastic.pools.ray import RayConnection, _read_key

NODE = {
    "num_cpus": 2,
    "object_store_memory": 200 * 2**20,
    "include_dashboard": False,
    "node_ip_address": "127.0.0.1",
}
QUICK = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    # Ray ends idle workers above the number of cores, which are few here; a new one imports torch.
    "idle_worker_killing_time_threshold_ms": 600_000,
}
"""A node that died is noticed in 3 s; Ray's own settings take 15 s."""
WITHIN_SECONDS = 240.0
"""Of a machine that is busy: every worker of Ray imports torch first."""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {WITHIN_SECONDS} s for {what}"
        time.sleep(0.05)


def listening(processes: list[psutil.Process]) -> set[str]:
    """Return the addresses on which these processes accept connections."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # Ray ended it since: it accepts no more
            found += process.net_connections("tcp")
    return {c.laddr.ip.removeprefix("::ffff:") for c in found if c.status == psutil.CONN_LISTEN}


def kill_all(processes: list[psutil.Process]) -> None:
    """Kill what is still there: Ray itself ends workers it has lost, or no longer needs."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


class TwoNodes:
    """A head, where the tests are, and a second node that may be killed and is then replaced."""

    def __init__(self) -> None:
        self._scratch = tempfile.mkdtemp(prefix="siafu-ray-", dir="/tmp")
        folder = Path(self._scratch, "ray")  # where Ray notes the newest cluster, for "auto"
        folder.mkdir()
        with self._scratch_for_temporary_files():
            self._cluster = Cluster(
                initialize_head=True,
                head_node_args={**NODE, "temp_dir": str(folder), "_system_config": QUICK},
                shutdown_at_exit=True,
            )
        self.address: str = self._cluster.address
        self.head: str = self._cluster.head_node.node_id
        self.start_second()

    def start_second(self) -> None:
        """Start the second node."""
        with self._scratch_for_temporary_files():
            self._second = self._cluster.add_node(**NODE)

    @contextmanager
    def _scratch_for_temporary_files(self) -> Iterator[None]:
        """Have nodes that start now, and all on them, leave what they leave in one folder."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TMPDIR", self._scratch)
            yield

    @property
    def second(self) -> str:
        """The id of the second node."""
        return self._second.node_id

    def workers(self, *titles: str, second_only: bool = False) -> list[psutil.Process]:
        """Return the processes that Ray's workers run in, by what they now do."""
        nodes = [self._second] if second_only else [self._cluster.head_node, self._second]
        raylets = [psutil.Process(n.all_processes["raylet"][0].process.pid) for n in nodes]
        children = [child for raylet in raylets for child in raylet.children()]
        return [child for child in children if _title(child).startswith(titles)]

    def stop_workers(self, *, second_only: bool = False) -> list[psutil.Process]:
        """Halt every worker, so that a task it is given does not end; return them to be killed."""
        stopped = []
        for worker in self.workers("ray::IDLE", "ray::run_packed", second_only=second_only):
            with suppress(psutil.NoSuchProcess):
                worker.suspend()
                stopped.append(worker)
        return stopped

    def kill_second(self) -> None:
        """Kill the raylet of the second node, as if its machine went away."""
        [raylet] = self._second.all_processes["raylet"]
        psutil.Process(raylet.process.pid).kill()

    def replace_second(self) -> None:
        """Clear away a killed second node, and start another."""
        self._cluster.remove_node(self._second, allow_graceful=False)
        self.start_second()

    def close(self) -> None:
        """End every process of the cluster."""
        with self._scratch_for_temporary_files():
            self._cluster.shutdown()
        shutil.rmtree(self._scratch, ignore_errors=True)


@pytest.fixture(scope="session")
def nodes() -> Iterator[TwoNodes]:
    """Two nodes of two cores each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Ray is not to put a key in the user's home, nor to do without.
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        _read_key()
        cluster = TwoNodes()
        yield cluster
        cluster.close()
    _read_key()


@pytest.fixture(scope="module")
def joined(nodes: TwoNodes) -> Iterator[TwoNodes]:
    """The nodes, with this process as a driver."""
    connection = RayConnection(nodes.address, deadline_seconds=WITHIN_SECONDS)
    yield nodes
    connection.close()
    assert not ray.is_initialized()
