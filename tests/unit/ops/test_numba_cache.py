"""Who misses a kernel on disk compiles it; others wait for it and load it."""

import importlib.util
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

numba = pytest.importorskip("numba")
cache = pytest.importorskip("siafu.ops.numba_cache")

SIGNATURE = (numba.int64,)


@pytest.fixture
def double(tmp_path: Path) -> Any:
    """A function in a file of its own, so that its code has no folder on disk yet."""
    (tmp_path / "doubling.py").write_text("def double(x):\n    return 2 * x\n")
    spec = importlib.util.spec_from_file_location("doubling", tmp_path / "doubling.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["doubling"] = module
    spec.loader.exec_module(module)
    yield module.double
    del sys.modules["doubling"]


def test_a_second_that_misses_is_given_what_the_first_has_saved(double: Any) -> None:
    compiled = numba.njit(double)
    compiled.compile(SIGNATURE)
    [code] = compiled.overloads.values()
    first, second = cache.SharedCache(double), cache.SharedCache(double)
    assert first.load_overload(SIGNATURE, compiled.targetctx) is None
    found: list[Any] = []
    waits = threading.Thread(
        target=lambda: found.append(second.load_overload(SIGNATURE, compiled.targetctx))
    )
    waits.start()
    first.save_overload(SIGNATURE, code)
    waits.join(60)
    assert found[0] is not None
    assert not list(Path(first.cache_path).glob("*.lock")), "no lock stays behind"


def test_what_could_not_be_compiled_holds_nothing_up(
    double: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = numba.njit(double).targetctx
    first, second = cache.SharedCache(double), cache.SharedCache(double)
    assert first.load_overload(SIGNATURE, target) is None
    assert first.load_overload((numba.float64,), target) is None, "its own lock lets it pass"
    monkeypatch.setattr(cache, "_WAITS_SECONDS", 0.0)
    assert second.load_overload(SIGNATURE, target) is None, "it compiles, too, in the end"
    first.save_overload(SIGNATURE, _compiled(double))
    assert second.load_overload(SIGNATURE, target) is not None


def _compiled(function: Any) -> Any:
    compiled = numba.njit(function)
    compiled.compile(SIGNATURE)
    [code] = compiled.overloads.values()
    return code
