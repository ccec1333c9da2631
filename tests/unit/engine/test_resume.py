"""A run that stops and goes on ends bit for bit as one that never stopped."""

import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch

import siafu
from siafu.comm import World
from siafu.config import make_config
from siafu.engine import begin
from siafu.engine.run_facts import RunFacts
from siafu.errors import PlanError, StoreError
from siafu.graph import folder_kind
from siafu.ingest import load
from siafu.partitioning import partition_graph
from siafu.record import RunFolder, Watch
from siafu.shard import open_shard
from tests.harness import RankPool
from tests.unit.engine.runs import run_engine

SETTINGS = {"epochs": 20, "checkpoint_every": 5, "hidden": 16, "seed": 3, "eval_every": 2}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    root, folders = tmp_path_factory.mktemp("resume"), {}
    for size in (1, 2):
        folders[size] = root / f"{size}.parts"
        partition_graph(load("planted:300"), folders[size], num_parts=size, method="hash")
    return folders


def run(ranks: RankPool, size: int, *args) -> list[dict]:
    return [run_engine(World(), *args)] if size == 1 else ranks.run(run_engine, size, *args)


def assert_same(got: dict, want: dict) -> None:
    assert got["losses"] == want["losses"]
    for group in ("last", "best"):
        assert got[group].keys() == want[group].keys()
        for name, tensor in want[group].items():
            assert torch.equal(got[group][name], tensor), f"{group} weight {name}"
    for key in ("score", "best_epoch", "epochs"):
        assert got["summary"][key] == want["summary"][key]


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("model", ["gcn", "gat", "gin", "pipelined gcn"])
def test_resumed_run_ends_bit_for_bit_alike(
    ranks: RankPool, parts, tmp_path: Path, model: str, size: int
) -> None:
    settings = {**SETTINGS, "model": model.split()[-1]}
    if model.startswith("pipelined"):
        settings |= {"strategy": "dorylus", "pool": "none", "intervals": 3}
    straight = run(ranks, size, parts[size], tmp_path / "straight", False, settings)
    run(ranks, size, parts[size], tmp_path / "broken", False, {**settings, "epochs": 10})
    resumed = run(ranks, size, parts[size], tmp_path / "broken", True, settings)
    assert_same(resumed[0], straight[0])
    for name in ("requests", "rows_read_by_age") if model.startswith("pipelined") else ():
        reports = [result[0]["summary"]["pipeline"] for result in (resumed, straight)]
        assert reports[0][name] == reports[1][name]

    rows = [RunFolder(tmp_path / name).read_metrics() for name in ("straight", "broken")]
    assert [row["epoch"] for row in rows[1]] == list(range(1, 21))
    kept = [[(row["loss"], row.get("score")) for row in metrics] for metrics in rows]
    # Epoch 10 was the last of the broken run, so it was evaluated there as here (2 divides 10).
    assert kept[0] == kept[1]


@pytest.mark.parametrize("size", [1, 2])
def test_optimiser_and_schedule_go_on_where_they_were(
    ranks: RankPool, parts, tmp_path: Path, size: int
) -> None:
    course = {"schedule": "step", "warmup": 2, "clip_norm": 0.1, "optimizer": "sgd", "lr": 0.5}
    settings = {**SETTINGS, "epochs": 8, "checkpoint_every": 4, "model": "gcn", **course}
    straight = run(ranks, size, parts[size], tmp_path / "run", False, settings)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "epoch-000008")
    resumed = run(ranks, size, parts[size], tmp_path / "run", True, settings)
    assert_same(resumed[0], straight[0])


@pytest.mark.parametrize("unit", ["halo", "batchgnn", "dorylus"])
def test_clipped_steps_are_alike_on_one_and_two_ranks(
    ranks: RankPool, parts, tmp_path: Path, unit: str
) -> None:
    course = {"schedule": "cosine", "clip_norm": 0.05, "optimizer": "sgd", "lr": 0.5, "dropout": 0}
    settings = {**SETTINGS, "epochs": 6, "model": "gcn", "strategy": unit, **course}
    settings |= {"pool": "none"} if unit == "dorylus" else {}
    shared = {"seed_order": "global", "step_minibatches": 2, "batch_size": 20}
    settings |= shared if unit == "batchgnn" else {}
    alone, pair = (
        run(ranks, size, parts[size], tmp_path / str(size), False, settings)[0] for size in (1, 2)
    )
    assert pair["losses"] == pytest.approx(alone["losses"], rel=1e-4)


def test_resumed_quantised_run_ends_bit_for_bit_alike(
    ranks: RankPool, parts, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "model": "gcn", "wire": 2}
    straight = run(ranks, 2, parts[2], tmp_path / "straight", False, settings)
    run(ranks, 2, parts[2], tmp_path / "broken", False, {**settings, "epochs": 10})
    resumed = run(ranks, 2, parts[2], tmp_path / "broken", True, settings)
    assert_same(resumed[0], straight[0])
    exact = run(ranks, 2, parts[2], tmp_path / "exact", False, {**settings, "wire": 32})
    assert exact[0]["losses"] != straight[0]["losses"]
    assert straight[0]["summary"]["exactness"] == "unbiased"


@pytest.mark.parametrize("period", [3, 4, 5, 7])
def test_resumed_run_of_adaptive_widths_ends_bit_for_bit_alike(
    ranks: RankPool, parts, tmp_path: Path, period: int
) -> None:
    # It stops after epoch 10: just after a period, while widths are assigned, and in between.
    settings = {**SETTINGS, "strategy": "adaqp", "wire_bits": 3, "wire_period": period}
    straight = run(ranks, 2, parts[2], tmp_path / "straight", False, settings)
    run(ranks, 2, parts[2], tmp_path / "broken", False, {**settings, "epochs": 10})
    resumed = run(ranks, 2, parts[2], tmp_path / "broken", True, settings)
    assert_same(resumed[0], straight[0])
    widths = straight[0]["summary"]["widths"]
    assert {entry["epoch"] for entry in widths} == set(range(period + 3, 21, period))
    assert resumed[0]["summary"]["widths"] == [entry for entry in widths if entry["epoch"] > 10]


@pytest.mark.parametrize(
    "choice",
    [
        {"wire": 2, "changes": True},
        {"wire": 4, "changes": True, "kept_bits": 16},
        {"wire": 0, "changes": True, "wire_period": 4, "strategy": "sar"},
        {"wire": "adaptive", "changes": True, "wire_bits": 1, "wire_period": 3},
        {"staleness": 1, "smoothing": 0.5},
        {"staleness": 1, "wire": 4, "changes": True, "strategy": "sar", "model": "gat"},
    ],
    ids=lambda choice: " ".join(f"{name}={value}" for name, value in choice.items()),
)
def test_resumed_run_goes_on_with_the_rows_it_kept(
    ranks: RankPool, parts, tmp_path: Path, choice: dict
) -> None:
    settings = {**SETTINGS, "epochs": 12, "eval_every": 4, **choice}
    straight = run(ranks, 2, parts[2], tmp_path / "straight", False, settings)
    shutil.copytree(tmp_path / "straight", tmp_path / "broken")
    for left in (tmp_path / "broken" / "checkpoints").glob("epoch-000012*"):
        shutil.rmtree(left)
    resumed = run(ranks, 2, parts[2], tmp_path / "broken", True, settings)
    assert_same(resumed[0], straight[0])
    exact = {name: value for name, value in settings.items() if name not in choice}
    other = run(ranks, 2, parts[2], tmp_path / "exact", False, exact)
    assert other[0]["losses"] != straight[0]["losses"]


def test_each_rank_saves_its_own_share(ranks: RankPool, parts, tmp_path: Path) -> None:
    settings = {**SETTINGS, "model": "gcn", "wire": 4, "changes": True}
    straight = run(ranks, 2, parts[2], tmp_path, False, settings)
    checkpoints = tmp_path / "checkpoints"
    names = [
        f"epoch-{n}{share}" for n in ("000015", "000020") for share in ("", ".rank-0", ".rank-1")
    ]
    assert sorted(path.name for path in checkpoints.iterdir()) == names
    shutil.rmtree(checkpoints / "epoch-000020.rank-1")
    resumed = run(ranks, 2, parts[2], tmp_path, True, settings)  # from epoch 15, which is whole
    assert_same(resumed[0], straight[0])


def test_a_share_that_is_damaged_is_refused(ranks: RankPool, parts, tmp_path: Path) -> None:
    settings = {**SETTINGS, "epochs": 5, "wire": 4, "changes": True}
    run(ranks, 2, parts[2], tmp_path, False, settings)
    kept = tmp_path / "checkpoints" / "epoch-000005.rank-1" / "kept-0-0-0.npy"
    raw = bytearray(kept.read_bytes())
    raw[-1] ^= 1
    kept.write_bytes(raw)
    with pytest.raises(AssertionError, match="wrong checksum"):
        run(ranks, 2, parts[2], tmp_path, True, {**settings, "epochs": 8})


def test_rows_after_the_checkpoint_are_written_again(parts, tmp_path: Path) -> None:
    settings = {**SETTINGS, "epochs": 13}  # the newest checkpoint is of epoch 10
    run_engine(World(), parts[1], tmp_path / "run", False, settings)
    resumed = run_engine(World(), parts[1], tmp_path / "run", True, SETTINGS)
    straight = run_engine(World(), parts[1], tmp_path / "straight", False, SETTINGS)
    assert_same(resumed, straight)
    epochs = [row["epoch"] for row in RunFolder(tmp_path / "run").read_metrics()]
    assert epochs == list(range(1, 21))


def test_half_written_checkpoint_is_passed_over(parts, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_engine(World(), parts[1], folder, False, {**SETTINGS, "epochs": 10})
    checkpoints = folder / "checkpoints"
    # What a kill leaves behind: the temporary folder, and one that never got its manifest.
    shutil.copytree(checkpoints / "epoch-000010", checkpoints / ".epoch-000015.abcd.tmp")
    shutil.copytree(checkpoints / "epoch-000010", checkpoints / "epoch-000015")
    (checkpoints / "epoch-000015" / "manifest.json").unlink()
    resumed = run_engine(World(), parts[1], folder, True, SETTINGS)
    assert resumed["summary"]["epochs"] == 20
    assert len(resumed["losses"]) == 20


def resume_with_own_view(
    world: World, parts: Path, folder: Path, other: Path, settings: dict
) -> dict:
    """Resume on rank 0 from `folder`, on the other ranks from what they see of it: `other`."""
    return run_engine(world, parts, folder if world.rank == 0 else other, True, settings)


def test_every_rank_takes_the_checkpoint_that_rank_0_chose(
    ranks: RankPool, parts, tmp_path: Path
) -> None:
    folder, other = tmp_path / "run", tmp_path / "seen"
    ranks.run(run_engine, 2, parts[2], folder, False, {**SETTINGS, "epochs": 10})
    shutil.copytree(folder, other)
    shutil.rmtree(folder / "checkpoints" / "epoch-000010")  # rank 0 has epoch 5 only
    results = ranks.run(resume_with_own_view, 2, parts[2], folder, other, SETTINGS)
    assert results[0]["losses"] == results[1]["losses"]
    assert len(results[0]["losses"]) == 20


def test_damaged_checkpoint_is_refused(parts, tmp_path: Path) -> None:
    run_engine(World(), parts[1], tmp_path, False, {**SETTINGS, "epochs": 5})
    file = tmp_path / "checkpoints" / "epoch-000005" / "model-0.npy"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    with pytest.raises(StoreError, match="wrong checksum"):
        run_engine(World(), parts[1], tmp_path, True, SETTINGS)


def test_checkpoint_of_another_run_is_passed_over(
    parts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"hidden": 8, "seed": 3, "checkpoint_every": 2}
    run = siafu.fit("planted:120", epochs=4, out=str(tmp_path / "run"), **settings, quiet=True)
    whole = siafu.fit("planted:120", epochs=6, out=str(tmp_path / "whole"), **settings, quiet=True)
    for data, model in (("planted:121", "gcn"), ("planted:120", "sage")):
        other = siafu.fit(data, model=model, epochs=5, out=str(tmp_path / model), **settings)
        saved = "checkpoints/epoch-000004"
        shutil.copytree(
            other.path / saved, run.path / "checkpoints" / f"epoch-00000{len(model) + 2}"
        )
    run = siafu.resume(run, epochs=6)
    told = capsys.readouterr().err
    assert "Passed over a checkpoint, epoch-000005: The checkpoint is of a run on another" in told
    assert "Passed over a checkpoint, epoch-000006: The checkpoint is of another model" in told
    assert run.result["losses"] == whole.result["losses"]
    assert [row["epoch"] for row in RunFolder(run.path).read_metrics()] == list(range(1, 7))


MINIBATCHES = {"strategy": "batchgnn", "model": "sage", "batch_size": 20, "fanout": "3,3"}
MINIBATCHES |= {"epochs": 3, "checkpoint_every": 1, "hidden": 8, "seed": 3, "norm": "batch"}
MINIBATCHES |= {"schedule": "cosine", "checkpoint_minutes": 1e-9, "patience": 0}


def run_to_step(world: World, parts: Path, folder: Path, settings: dict, last: int) -> list[str]:
    """Train until so many steps have been followed, end there, and return what was saved."""
    config = make_config(data="planted", ranks=world.size, **settings).resolved()
    training, steps = begin(config, open_shard(parts, world)), itertools.count(1)

    class Ending(Watch):
        def step(self, done: int, total: int) -> None:
            if next(steps) == last:
                raise InterruptedError

    training.watch = Ending()
    folder.mkdir(exist_ok=True)
    with pytest.raises(InterruptedError):
        training.train(RunFolder(folder), lambda row: None, lambda: settings["patience"] > 0)
    training.abandon()
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


@pytest.mark.parametrize(("size", "more"), [(1, {}), (2, {}), (2, {"macrobatch": "2"})])
def test_run_left_within_an_epoch_ends_bit_for_bit_alike(
    ranks: RankPool, parts, tmp_path: Path, size: int, more: dict
) -> None:
    settings = MINIBATCHES | more
    straight = run(ranks, size, parts[size], tmp_path / "straight", False, settings)[0]
    steps = straight["summary"]["sampling"]["steps"]
    assert steps >= 3
    given = (parts[size], tmp_path / "broken", settings, steps + 3)
    left = [run_to_step(World(), *given)] if size == 1 else ranks.run(run_to_step, size, *given)
    assert left[0] == ["epoch-000001", "epoch-000001-step-00000001", "epoch-000001-step-00000002"]
    resumed = run(ranks, size, parts[size], tmp_path / "broken", True, settings)[0]
    assert_same(resumed, straight)
    kept = sorted(path.name for path in (tmp_path / "broken" / "checkpoints").iterdir())
    assert kept == ["epoch-000002", "epoch-000003"]


@pytest.mark.parametrize("order", ["local", "global"])
def test_run_left_within_an_epoch_goes_on_with_other_ranks(
    ranks: RankPool, parts, tmp_path: Path, order: str
) -> None:
    """Where steps are alike on any ranks it goes on amid the epoch, else with the one before."""
    shared = {"seed_order": "global", "step_minibatches": 2} if order == "global" else {}
    settings = MINIBATCHES | {"dropout": 0.0} | shared
    ranks.run(run_to_step, 2, parts[2], tmp_path / "broken", settings, 3)
    config = make_config(data="planted", **settings).resolved()
    training, said = begin(config, open_shard(parts[1], World())), list[str]()
    if order == "local":  # there is no checkpoint of an epoch's end yet
        with pytest.raises(PlanError, match="dealt otherwise"):
            training.resume(tmp_path / "broken" / "checkpoints", said.append)
        training.close()
        return
    training.close()
    resumed = run_engine(World(), parts[1], tmp_path / "broken", True, settings)
    straight = run_engine(World(), parts[1], tmp_path / "straight", False, settings)
    torch.testing.assert_close(resumed["losses"], straight["losses"], rtol=1e-4, atol=0)


def test_who_is_told_to_end_within_an_epoch_saves_once_at_the_next_step(
    parts, tmp_path: Path
) -> None:
    settings = MINIBATCHES | {"checkpoint_minutes": 0.0, "patience": 9}  # is told where it has some
    saved = run_to_step(World(), parts[1], tmp_path / "told", settings, 3)
    assert saved == ["epoch-000000-step-00000001"]


def test_checkpoint_of_another_graph_is_refused(parts, tmp_path: Path) -> None:
    run_engine(World(), parts[1], tmp_path / "run", False, {**SETTINGS, "epochs": 5})
    partition_graph(load("planted:301"), tmp_path / "other.parts", num_parts=1)
    with pytest.raises(PlanError, match="another graph"):
        run_engine(World(), tmp_path / "other.parts", tmp_path / "run", True, SETTINGS)


def test_checkpoint_of_another_model_is_refused(parts, tmp_path: Path) -> None:
    run_engine(World(), parts[1], tmp_path, False, {**SETTINGS, "epochs": 5})
    with pytest.raises(StoreError, match="another model"):
        run_engine(World(), parts[1], tmp_path, True, {**SETTINGS, "model": "gat"})


def test_checkpoint_of_another_width_is_refused(parts, tmp_path: Path) -> None:
    run_engine(World(), parts[1], tmp_path, False, {**SETTINGS, "epochs": 5})
    with pytest.raises(StoreError, match="another model"):
        run_engine(World(), parts[1], tmp_path, True, {**SETTINGS, "hidden": 8})


def test_checkpoint_with_a_layer_too_few_is_refused(parts, tmp_path: Path) -> None:
    run_engine(World(), parts[1], tmp_path, False, {**SETTINGS, "epochs": 5})
    with pytest.raises(StoreError, match="another model"):
        run_engine(World(), parts[1], tmp_path, True, {**SETTINGS, "layers": 3})


def test_resuming_without_a_checkpoint_is_refused(parts, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no checkpoint"):
        run_engine(World(), parts[1], tmp_path, True, SETTINGS)


def test_checkpoint_serves_another_number_of_ranks(ranks: RankPool, parts, tmp_path: Path) -> None:
    run_engine(World(), parts[1], tmp_path / "run", False, {**SETTINGS, "epochs": 10})
    resumed = run(ranks, 2, parts[2], tmp_path / "run", True, SETTINGS)[0]
    straight = run_engine(World(), parts[1], tmp_path / "straight", False, SETTINGS)
    torch.testing.assert_close(resumed["losses"], straight["losses"], rtol=1e-5, atol=0)


def test_two_newest_checkpoints_are_kept(parts, tmp_path: Path) -> None:
    run_engine(World(), parts[1], tmp_path, False, SETTINGS)
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["epoch-000015", "epoch-000020"]
    assert all(folder_kind(tmp_path / "checkpoints" / name) == "checkpoint" for name in kept)


def test_patience_ends_the_run_at_the_same_epoch_after_resuming(parts, tmp_path: Path) -> None:
    settings = {**SETTINGS, "epochs": 400, "patience": 8, "lr": 0.05}
    straight = run_engine(World(), parts[1], tmp_path / "straight", False, settings)
    assert straight["summary"]["epochs"] < 400
    short = {**settings, "epochs": 10}
    run_engine(World(), parts[1], tmp_path / "broken", False, short)
    resumed = run_engine(World(), parts[1], tmp_path / "broken", True, settings)
    assert_same(resumed, straight)


def test_patience_shorter_than_the_pause_between_evaluations(parts, tmp_path: Path) -> None:
    settings = {**SETTINGS, "epochs": 40, "eval_every": 10, "patience": 3, "lr": 1e-9}
    summary = run_engine(World(), parts[1], tmp_path, False, settings)["summary"]
    assert (summary["best_epoch"], summary["epochs"]) == (10, 13)
    evaluated = [row["epoch"] for row in RunFolder(tmp_path).read_metrics() if "score" in row]
    assert evaluated == [10, 13]


def test_resumed_at_its_last_epoch_still_reports_scores(parts, tmp_path: Path) -> None:
    settings = {**SETTINGS, "epochs": 8, "eval_every": 100}
    run_engine(World(), parts[1], tmp_path, False, settings)
    shutil.rmtree(next(tmp_path.rglob("epoch-000008")))  # that of epoch 5 is left
    summary = run_engine(World(), parts[1], tmp_path, True, {**settings, "epochs": 5})["summary"]
    assert (summary["best_epoch"], summary["epochs"]) == (5, 5)
    assert summary["score"].keys() == {"train", "val", "test"}


def test_metrics_cut_by_a_kill_are_repaired(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for epoch in range(1, 5):
        run.append_metrics({"epoch": epoch, "loss": 1.0 / epoch})
    with run.metrics.open("a") as file:
        file.write('{"epoch": 5, "lo')
    run.keep_metrics(3)
    lines = run.metrics.read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]


def test_an_epoch_that_ends_late_is_saved(tmp_path: Path) -> None:
    settings = {"hidden": 8, "quiet": True, "checkpoint_minutes": 1e-9}
    run = siafu.fit("planted:120", epochs=3, out=str(tmp_path / "run"), **settings)
    saved = sorted(path.name for path in (run.path / "checkpoints").iterdir())
    assert saved == ["epoch-000002", "epoch-000003"]
    settings["checkpoint_every"] = 0
    run = siafu.fit("planted:120", epochs=3, out=str(tmp_path / "none"), **settings)
    assert not (run.path / "checkpoints").exists()


def test_a_run_that_rounded_once_says_so_on_one_rank_too(parts, tmp_path: Path) -> None:
    said = []
    for facts in (None, {"ranks": 4, "most_ranks": 4}, {"ranks": 1, "most_ranks": 3}):
        config = make_config(data="planted", wire="4", strategy="halo").resolved()
        training = begin(config, open_shard(parts[1], World()))
        if facts is not None:
            earlier = training.checkpoint()
            training.workload.restore(RunFacts.model_validate(earlier.facts | facts))
        said.append(training.workload.report(1.0, 1)["exactness"])
        assert training.checkpoint().facts["most_ranks"] == (facts or {}).get("most_ranks", 1)
        training.close()
    assert said == ["exact", "unbiased", "unbiased"]
