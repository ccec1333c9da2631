"""Ranks on the nodes of a real Ray cluster: the same losses as local ones, and errors that tell."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from siafu.config import make_config, write_config
from siafu.errors import PoolError, RankError, StoreError
from siafu.launch import fit
from siafu.launch.rank import Job
from siafu.launch.ray import _Ranks, run_ranks_on_ray
from tests.ray.conftest import WITHIN_SECONDS, TwoNodes, listening, wait_until

ENDLESS = {"ranks": 2, "epochs": 100_000, "threads": 1, "checkpoint_every": 5}


def ranks_of(run: Path) -> list[psutil.Process]:
    """Return the processes of a run's ranks, by rank."""
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "siafu.launch" in words and str(run) in words:
            # It may have ended since: then it is not known, or has no variables any more.
            with suppress(psutil.NoSuchProcess, KeyError):
                found[int(process.environ()["RANK"])] = process
    return [found[rank] for rank in sorted(found)]


def epochs_done(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


@contextmanager
def at_epoch(epoch: int, run: Path, act: Callable[[], None]) -> Iterator[None]:
    """Act once a run, which goes on in the body, has done so many epochs."""

    def wait_and_act() -> None:
        wait_until(lambda: epochs_done(run) >= epoch, f"epoch {epoch}")
        act()

    with ThreadPoolExecutor(1) as threads:
        acted = threads.submit(wait_and_act)
        yield
    acted.result()


def test_ranks_and_pools_on_two_nodes_train_as_one_process_does(
    joined: TwoNodes, tmp_path: Path
) -> None:
    settings = {"epochs": 5, "seed": 3, "hidden": 16, "threads": 1}
    alone = fit("planted:300", out=str(tmp_path / "alone"), **settings)
    run = tmp_path / "run"
    pipeline = {"strategy": "dorylus", "pool": "ray", "intervals": 2, "pool_workers": "1"}
    on_ray = fit(
        "planted:300",
        out=str(run),
        ranks=2,
        launcher="ray",
        ray_address=joined.address,
        **pipeline,
        **settings,
    )
    assert on_ray.result["pipeline"]["requests"] >= 2 * 2 * 5 * 5
    assert not on_ray.result["pipeline"]["degraded"]
    # float32 sums in another order
    assert on_ray.result["losses"] == pytest.approx(alone.result["losses"], rel=1e-5)
    assert on_ray.score == alone.score
    assert len(on_ray.result["peak_mb"]) == 2
    assert not ranks_of(run)


def test_cluster_that_is_too_small_is_told(joined: TwoNodes, tmp_path: Path) -> None:
    with pytest.raises(PoolError, match="its 2 nodes hold 4"):
        fit("planted:300", ranks=5, launcher="ray", out=str(tmp_path / "run"))
    assert (tmp_path / "run" / "data.parts").exists(), "a larger cluster may go on with it"


def test_files_that_no_node_sees_are_told(joined: TwoNodes, tmp_path: Path) -> None:
    config = make_config(data="planted", ranks=2, launcher="ray")
    write_config(config, tmp_path / "config.yaml")
    job = Job(verb="train", parts=str(tmp_path / "nowhere"))
    with pytest.raises(StoreError, match="No Ray node that has a rank sees") as error:
        run_ranks_on_ray(config, tmp_path, job.to_text(), {})
    assert "nowhere" in error.value.seen
    assert "share" in error.value.fix


def test_rank_0_is_on_a_node_that_sees_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(data="s3://bucket/my.parts", ranks=3, launcher="ray")
    write_config(config, tmp_path / "config.yaml")
    job, asked = Job(verb="train", parts="s3://bucket/my.parts").to_text(), []

    def actor(address: str, problem: str) -> SimpleNamespace:
        place = {"node": address, "address": address, "num_cores": 1, "gpus": []}
        answer = {**place, "problem": problem}
        return SimpleNamespace(
            look=SimpleNamespace(remote=lambda files: asked.append(files) or answer)
        )

    ranks = _Ranks(config, tmp_path)
    monkeypatch.setattr(ranks, "_ask", lambda calls: calls)
    ranks._actors = [actor("far", "not there"), actor("near", ""), actor("farther", "not there")]
    ranks._look(job)
    assert [place.address for place in ranks._places] == ["near", "far", "farther"]
    assert set(asked[0]) == {str(tmp_path / "config.yaml")}, "what has a URL is no file there"


def test_killed_rank_is_named(joined: TwoNodes, tmp_path: Path) -> None:
    run, seen = tmp_path / "run", []

    def kill() -> None:
        ranks = ranks_of(run)
        seen.append([rank.environ()["LOCAL_WORLD_SIZE"] for rank in ranks])
        seen.append(listening(ranks))
        ranks[1].kill()

    with at_epoch(2, run, kill), pytest.raises(RankError, match="Rank 1 was killed") as error:
        fit("planted:300", out=str(run), launcher="ray", **ENDLESS)
    assert "siafu.resume(" in error.value.fix
    assert seen == [["1", "1"], {"127.0.0.1"}], "one on each node, on its node's address alone"
    assert not ranks_of(run)
    wait_until(lambda: not joined.workers("ray::RayRank"), "the actors to end")


def test_killed_node_is_told_with_its_rank(joined: TwoNodes, tmp_path: Path) -> None:
    run, seen = tmp_path / "run", []

    def kill() -> None:
        seen.extend(joined.workers("ray::RayRank"))
        joined.kill_second()

    with at_epoch(2, run, kill), pytest.raises(RankError, match=r"Rank \d was lost") as error:
        fit("planted:300", out=str(run), launcher="ray", **ENDLESS)
    assert f"siafu.resume({str(run)!r})" in error.value.fix
    assert len(seen) == 2
    wait_until(lambda: not ranks_of(run), "the ranks to end")
    _, alive = psutil.wait_procs(seen, timeout=WITHIN_SECONDS)
    assert not alive, "actors"
    joined.replace_second()
