"""Threads beside this one: how many helpers each has."""

from siafu.ops import num_threads, set_threads, thread_beside


def test_a_thread_beside_has_threads_of_its_own() -> None:
    before = num_threads()
    try:
        set_threads(2)
        with thread_beside("beside", 1) as beside:
            assert beside.submit(num_threads).result() == 1
            assert num_threads() == 2
            with thread_beside("later", 2) as later:
                assert later.submit(num_threads).result() == 2
            assert beside.submit(num_threads).result() == 1
    finally:
        set_threads(before)
