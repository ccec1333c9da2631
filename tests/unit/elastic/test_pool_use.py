"""What a pool was asked for, as it would be billed."""

import pytest

from siafu.elastic.runner import PoolUse
from siafu.elastic.task import Reply, Usage


def test_every_reply_is_counted_and_its_time_rounded_up() -> None:
    use, delivered = PoolUse(step_seconds=0.1), []
    take = use.counting(delivered.append)
    for seconds in (0.05, 0.2, 0.21):
        take(Reply(1, usage=Usage(seconds=seconds, sent_bytes=7, received_bytes=5)))
    assert len(delivered) == 3
    assert use.totals()[0] == 3
    assert use.totals()[1] == pytest.approx(0.1 + 0.2 + 0.3)
    assert (use.sent_bytes, use.received_bytes) == (21, 15)


def test_a_pool_that_counts_for_itself_is_believed() -> None:
    use = PoolUse(paid=lambda: (9, 1.5))
    use.count(Reply(1, usage=Usage(seconds=3.0)))
    assert use.totals() == (9, 1.5)
