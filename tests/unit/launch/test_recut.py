"""A run goes on with other ranks, or another cut, as if nothing had changed."""

from pathlib import Path
from typing import Any

import pytest

import siafu
from siafu.errors import ConfigError, StoreError

pytestmark = pytest.mark.usefixtures("runs_on_pool")

SETTINGS: dict[str, Any] = {"hidden": 8, "dropout": 0.3, "quiet": True, "partition": "hash"}
STEPS = {"batch_size": 20, "seed_order": "global", "step_minibatches": 3}
KINDS: dict[str, dict[str, Any]] = {
    "halo": {"model": "gat"},
    "sar": {"model": "gat", "strategy": "sar"},
    "columns": {"model": "gcn", "strategy": "columns"},
    "adaqp": {"strategy": "adaqp", "wire_period": 3},
    "batchgnn": {"model": "sage", "strategy": "batchgnn", **STEPS},
    "dorylus": {"model": "gcn", "strategy": "dorylus", "pool": "none", "intervals": 2},
    "links": {"model": "sage", "strategy": "batchgnn", "task": "link", **STEPS},
    "dynamic": {"model": "tm-gcn"},
}


def losses(run: siafu.Run) -> list[float]:
    return [float(loss) for loss in run.result["losses"]]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_on_4_then_3_then_2_then_4_ranks_follows_the_uninterrupted_one(kind: str) -> None:
    is_static = kind != "dynamic"
    settings = {**(SETTINGS if is_static else {"quiet": True}), **KINDS[kind]}
    data = "planted:200" if is_static else "drifting:60"
    whole = siafu.fit(data, epochs=4, ranks=1, **settings)
    run = siafu.fit(data, epochs=1, ranks=4, **settings)
    for epochs, ranks in enumerate((3, 2, 4), start=2):
        # On two ranks with another partition too.
        cut = {"partition": "contiguous"} if ranks == 2 and is_static else {}
        run = siafu.resume(run, epochs=epochs, ranks=ranks, quiet=True, **cut)
        assert run.result["ranks"] == ranks
    # Rows that adaqp rounds are others on other ranks, and one rank has none.
    assert losses(run) == pytest.approx(losses(whole), rel=0.02 if kind == "adaqp" else 1e-5)
    hidden = [path.name for path in run.path.iterdir() if path.name.startswith(".")]
    assert not hidden, "nothing of earlier cuts stays"


def test_another_partition_changes_nothing_but_who_has_what() -> None:
    whole = siafu.fit("planted:200", epochs=2, ranks=2, **SETTINGS)
    run = siafu.fit("planted:200", epochs=1, ranks=2, **SETTINGS)
    run = siafu.resume(run, epochs=2, partition="contiguous", quiet=True)
    assert losses(run) == pytest.approx(losses(whole), rel=1e-5)
    assert run.result["bytes_sent"] != whole.result["bytes_sent"]


def test_what_messages_depend_on_begins_anew_on_other_ranks() -> None:
    settings = {**SETTINGS, "wire": 4, "changes": True, "staleness": 1}
    run = siafu.fit("planted:200", epochs=6, ranks=2, **settings)
    run = siafu.resume(run, epochs=12, ranks=3, quiet=True)
    assert run.result["ranks"] == 3
    assert len(losses(run)) == 12


def test_what_was_there_is_put_back_where_the_data_can_not_be_read_again() -> None:
    graph = siafu.load("planted:200")
    run = siafu.fit(graph, epochs=1, ranks=2, **SETTINGS)  # which lies in no file
    before = (run.path / "config.yaml").read_text(), (run.path / "job.json").read_text()
    with pytest.raises(StoreError, match="another graph now"):
        siafu.resume(run, epochs=2, ranks=3, quiet=True)
    assert ((run.path / "config.yaml").read_text(), (run.path / "job.json").read_text()) == before
    assert len(losses(siafu.resume(run, epochs=2, quiet=True))) == 2


def test_parts_of_the_users_own_are_not_cut_anew() -> None:
    siafu.partition("planted:200", "mine.parts", parts=2, quiet=True)
    run = siafu.fit("mine.parts", epochs=1, hidden=8, quiet=True)
    with pytest.raises(ConfigError, match="not its own to cut anew"):
        siafu.resume(run, epochs=2, ranks=3, quiet=True)
    assert len(losses(siafu.resume(run, epochs=2, quiet=True))) == 2


def test_a_run_is_not_cut_short_by_resuming_it() -> None:
    run = siafu.fit("planted:200", epochs=3, checkpoint_every=2, **SETTINGS)
    before = losses(run)
    with pytest.raises(ConfigError, match="has more epochs than that already"):
        siafu.resume(run, epochs=2, quiet=True)
    assert losses(siafu.open_run(run.path)) == before
    assert losses(siafu.resume(run, epochs=3, quiet=True)) == before
    assert losses(siafu.resume(run, epochs=4, quiet=True))[:3] == before
