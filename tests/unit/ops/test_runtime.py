"""Setting a process up: threads, allocator, compiled code, and what is missing."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from siafu.errors import ConfigError
from siafu.ops import CSR, fast_paths, kernels, neighbour_sum, num_threads, set_threads, warm_up
from siafu.ops.runtime import COMPILING, telling_compilation
from siafu.ops.threads import run_chunks

WITHOUT_NUMBA = """
import sys
sys.modules["siafu.ops.csr.numba"] = None  # as when it cannot import numba
import torch
from siafu.ops import CSR, fast_paths, neighbour_sum, warm_up
warm_up()
out = neighbour_sum(CSR(torch.tensor([0, 2]), torch.tensor([0, 1]), 2), torch.ones(2, 3))
assert out.tolist() == [[2, 2, 2]]
assert fast_paths()["numba"].startswith("off: "), fast_paths()
"""

LOADS_ALL = """
import siafu.ops.csr.numba as kernels
from siafu.ops import warm_up
warm_up()
stats = kernels.sum_rows.stats
assert stats.cache_hits and not stats.cache_misses, stats
"""


def run_python(code: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env=os.environ.copy())


def test_one_setting_rules_torch_and_kernels(threads):
    set_threads(3)
    assert num_threads() == torch.get_num_threads() == 3
    with pytest.raises(ConfigError, match="needs a thread"):
        set_threads(0)


def test_every_chunk_is_done_once_and_errors_come_back(threads):
    set_threads(3)
    done: list[tuple[int, int]] = []
    run_chunks(lambda lo, hi: done.append((lo, hi)), [0, 2, 5, 5, 9])
    assert sorted(done) == [(0, 2), (2, 5), (5, 5), (5, 9)]

    def fail(lo: int, hi: int) -> None:
        time.sleep(0.01)
        raise KeyError(lo)

    with pytest.raises(KeyError):
        run_chunks(fail, range(9))


def test_several_python_threads_may_call_kernels_at_once(threads):
    """Ranks as threads do; Numba's own thread layer aborts the process here."""
    set_threads(2)
    csr = CSR(torch.arange(0, 40_001, 10), torch.arange(40_000) % 4000, 4000)
    x = torch.randn(4000, 16)
    want = neighbour_sum(csr, x)
    with ThreadPoolExecutor(4) as executor:
        results = list(executor.map(lambda _: neighbour_sum(csr, x), range(20)))
    assert all(torch.equal(result, want) for result in results)


def test_one_thread_starts_no_thread(threads):
    set_threads(1)
    before = threading.active_count()
    run_chunks(lambda lo, hi: None, range(10))
    assert threading.active_count() == before


def test_fast_paths_name_each_compiler_and_why_it_is_off():
    paths = fast_paths()
    assert paths["numba"] == "on"
    assert paths["triton/cuda"] == "on" or paths["triton/cuda"].startswith("off: ")
    assert kernels.fast["cpu"].csr is kernels.csr_numba


def test_allocator_setting_reports_success():
    code = "from siafu.ops import spare_page_faults; print(spare_page_faults())"
    # in a process of its own: the setting cannot be taken back
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert told.stdout.strip() == str(os.confstr("CS_GNU_LIBC_VERSION") is not None)


def test_kernels_work_without_numba():
    run_python(WITHOUT_NUMBA)


def test_second_process_loads_compiled_kernels_from_disk():
    warm_up()
    run_python(LOADS_ALL)


def test_a_compilation_is_told_once_and_a_kernel_from_disk_is_not() -> None:
    numba = pytest.importorskip("numba")
    told: list[str] = []

    @numba.njit
    def doubled(x):
        return x + x

    with telling_compilation(told.append):
        assert (doubled(1), doubled(1.5)) == (2, 3.0)
    assert told == [COMPILING]
    with telling_compilation(told.append):
        doubled(1)
    assert len(told) == 1
    doubled(1j)
    assert len(told) == 1, "nobody listens any more"
