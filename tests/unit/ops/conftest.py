"""Matrices with every awkward shape, and each implementation of the kernels in turn."""

from collections.abc import Iterator
from importlib import import_module

import pytest
import torch

from siafu.ops import CSR, Attention, kernels, num_threads, set_threads
from tests.unit.ops.attention_cases import KINDS
from tests.unit.ops.interpreter import INTERPRETED

DEGREES = {
    "no rows": [],
    "no edges": [0, 0, 0],
    "single": [1],
    "uneven": [0, 3, 1, 0, 8, 5, 4, 0, 17, 2, 0],
    "repeated source": [6, 0, 6, 6],
    "hub": [2, 1500, 0, 3, 1],
}


@pytest.fixture(params=["plain", "numba", pytest.param("triton", marks=pytest.mark.gpu)])
def device(request, monkeypatch) -> torch.device:
    """The device to put tensors on; the implementation under test is in charge there."""
    if request.param == "plain":
        monkeypatch.setitem(kernels.fast, "cpu", kernels.PLAIN)
    elif request.param == "numba":
        assert kernels.numba_missing is None
    elif INTERPRETED:
        modules = (import_module(f"siafu.ops.{name}.triton") for name in ("csr", "random"))
        more = {
            name: import_module(f"siafu.ops.{name}.triton")
            for name in ("wire", "sample", "delta", "rows")
        }
        monkeypatch.setitem(kernels.fast, "cpu", kernels.Kernels(*modules, **more))
    elif torch.cuda.is_available():
        return torch.device("cuda")
    else:
        pytest.skip("no CUDA device; test_triton.py runs these cases in Triton's interpreter")
    return torch.device("cpu")


def interpreted_kernels() -> kernels.Kernels:
    """Return what `kernels` has for CUDA; it imports none of this where torch has no CUDA."""
    names = ("csr", "random", "attention")
    return kernels.Kernels(*(import_module(f"siafu.ops.{name}.triton") for name in names))


@pytest.fixture(params=KINDS)
def kind(request) -> Attention:
    """Each kind of attention in turn."""
    return KINDS[request.param]


@pytest.fixture(params=sorted(DEGREES))
def csr(request, device) -> CSR:
    """One awkward matrix, unweighted, int32."""
    return make_csr(request.param).to(device)


@pytest.fixture
def uneven(device) -> CSR:
    """A small matrix with empty, short and longer rows."""
    return make_csr("uneven").to(device)


@pytest.fixture
def make():
    """The maker of named matrices."""
    return make_csr


@pytest.fixture
def threads() -> Iterator[None]:
    """Restore the number of threads afterwards."""
    before = num_threads()
    yield
    set_threads(before)


def make_csr(name: str, *, weighted: bool = False, dtype: torch.dtype = torch.int32) -> CSR:
    degree = torch.tensor(DEGREES[name], dtype=torch.int64)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degree.cumsum(0)])
    num_cols = {"repeated source": 2, "single": 1}.get(name, 13)
    generator = torch.Generator().manual_seed(1)
    # the last column stays unread, so its gradient must be 0
    high = max(1, num_cols - 1)
    index = torch.randint(0, high, (int(indptr[-1]),), generator=generator, dtype=dtype)
    weight = torch.rand(len(index), generator=generator, dtype=torch.float64) if weighted else None
    return CSR.checked(indptr, index, num_cols, weight)
