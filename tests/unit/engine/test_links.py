"""Edges scored: loss and ranks by their definitions, and whole runs."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from siafu.config import make_config
from siafu.engine.links import check_link_settings, link_loss
from siafu.engine.scores import (
    doubled_ranks,
    highest,
    histogram,
    mrr_error,
    ranking_scores,
    shared_hits,
)
from siafu.errors import ConfigError
from siafu.ingest import load
from siafu.minibatch.link_seeds import other_nodes, rows_of_seeds
from tests.command import Command

LINK = {"data": "planted", "strategy": "batchgnn", "task": "link"}


def plain_loss(rows: torch.Tensor, seeds: list[int], negatives: int) -> torch.Tensor:
    """Return the loss edge by edge, each pair by itself."""
    first = list(dict.fromkeys(seeds))
    row = {seed: rows[first.index(seed)] for seed in seeds}
    count = len(seeds) // (2 + negatives)
    total = torch.zeros((), dtype=rows.dtype)
    for edge in range(count):
        src, dst = seeds[edge], seeds[count + edge]
        drawn = seeds[2 * count + edge * negatives :][:negatives]
        others = drawn if negatives else [d for d in seeds[count:] if d != dst]
        total = total + cross_entropy(row[src] @ row[dst], torch.ones_like(total))
        if others:
            wrong = [cross_entropy(row[src] @ row[v], torch.zeros_like(total)) for v in others]
            total = total + torch.stack(wrong).mean()
    return total


@pytest.mark.parametrize(
    ("seeds", "negatives"),
    [
        ([7, 3, 7, 3, 9, 9, 5, 7, 1, 2, 2, 9], 2),
        ([7, 3, 7, 3, 9, 3], 0),
        ([4, 8], 0),
    ],
)
def test_loss_equals_pair_by_pair(seeds: list[int], negatives: int) -> None:
    width = len(set(seeds))
    rows = torch.randn(width, 5, dtype=torch.float64, requires_grad=True)
    got = link_loss(rows, torch.tensor(seeds), negatives)
    want = plain_loss(rows, seeds, negatives)
    torch.testing.assert_close(got, want)
    grads = [torch.autograd.grad(loss, rows)[0] for loss in (got, want)]
    torch.testing.assert_close(*grads)


def test_seeds_are_numbered_as_they_appear() -> None:
    assert rows_of_seeds(torch.tensor([9, 4, 9, 1 << 45, 4])).tolist() == [0, 1, 0, 2, 1]


def test_drawn_nodes_are_uniform_over_all_others() -> None:
    draws = torch.from_numpy(np.random.default_rng(0).random((4000, 6)))
    others = other_nodes(draws, torch.full((4000,), 2), 5)
    counts = torch.bincount(others.flatten(), minlength=5).tolist()
    assert counts[2] == 0
    assert [counts[v] for v in (0, 1, 3, 4)] == pytest.approx([3000] * 4, abs=200)
    assert others.max() == 4
    top = other_nodes(torch.full((1, 2), 1 - 2.0**-32, dtype=torch.float64), torch.tensor([9]), 5)
    assert top.tolist() == [[3]]


def test_ranks_count_equal_scores_half() -> None:
    positive = torch.tensor([3.0, 1.0, 0.0, float("nan")])
    negative = torch.tensor([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0], [0.0, 1.0]])
    doubled = doubled_ranks(positive, negative)
    assert doubled.tolist() == [2, 5, 4, 4]  # 1; 1 + 1 + 1/2; 1 + 2/2; unknown: in the middle
    found = ranking_scores(histogram(doubled[:3], 2).tolist())
    assert found["mrr"] == pytest.approx((1 + 1 / 2.5 + 1 / 2) / 3)
    assert found["hits@1"] == pytest.approx(1 / 3)
    assert found["hits@3"] == 1
    gains = torch.tensor([1.0, 1.0, 0.5, 0.25])
    assert mrr_error([0, 0, 2, 0, 1, 0, 0, 0, 1]) == pytest.approx(
        float(gains.std(correction=0)) / 2
    )
    assert ranking_scores([0, 0, 0]) == {"mrr": 0, "hits@1": 0, "hits@3": 0, "hits@10": 0}


def test_shared_hits_are_above_the_kth_negative_of_all() -> None:
    positive, negative = torch.tensor([5.0, 3.0, 2.0]), torch.tensor([1.0, 4.0, 3.0, 0.0])
    assert shared_hits(positive, highest(negative, 2), 2) == 1  # the 2nd highest is 3
    assert shared_hits(positive, highest(negative, 3), 3) == 3
    assert shared_hits(positive, highest(negative, 9), 9) == 3


@pytest.mark.parametrize(
    ("settings", "seen"),
    [
        ({"strategy": "halo"}, "--strategy halo"),
        ({"negatives": "uniform:0"}, "uniform:0"),
        ({"negatives": "many"}, "many"),
        ({"eval_negatives": "all"}, "all"),
        ({"input_cache": True, "input_dropout": 0.0}, "--input-cache"),
        ({"keep": "loss"}, "--keep loss"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], seen: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_link_settings(make_config(**LINK | settings))
    assert seen in error.value.seen


@pytest.fixture
def siafu(tmp_path, monkeypatch, capsys) -> Command:
    """The command line in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return Command(tmp_path, monkeypatch, capsys)


def test_run_learns_to_rank_edges_and_names_them(siafu: Command) -> None:
    flags = "--task link --strategy batchgnn --model sage --fanout 5,5 --batch-size 500 --dropout 0"
    flags += " --epochs 6 --negatives uniform:2 --eval-negatives 20 --quiet --json --out run"
    done = siafu("train", "powerlaw:400", *flags.split())
    assert done.code == 0, done.err
    result = json.loads(done.out.splitlines()[-1])
    assert result["metric"] == "mrr"
    assert result["score"]["test"] > 0.22  # of 21 at random: 0.17
    assert result["losses"][-1] < result["losses"][0]
    table = pq.read_table(siafu.here / "run" / "predictions")
    assert table.column_names == ["src", "dst", "score", "split"]
    edges = set(map(tuple, load("powerlaw:400").edge_index().T.tolist()))
    rows = table.to_pylist()
    assert {(row["src"], row["dst"]) for row in rows} <= edges
    assert {row["split"] for row in rows} == {"val", "test"}
    done = siafu("infer", "run", "--out", "rows")
    assert done.code == 0, done.err
    assert pq.read_table(siafu.here / "rows").column_names == ["id", "embedding"]
    assert len(pq.read_table(siafu.here / "rows")) == 400
    done = siafu("train", "planted", *flags.replace("--out run", "--split 0.9,0.2").split())
    assert done.code == 2
    assert "--split 0.9,0.2" in done.err


def test_parts_give_the_scores_of_the_data(siafu: Command) -> None:
    flags = "--task link --strategy batchgnn --batch-size 50 --epochs 2 --split 0.6,0.2"
    flags += " --quiet --json"
    assert siafu("partition", "planted:100", "cut.parts", "--parts", 1).code == 0
    done = [siafu("train", data, *flags.split()) for data in ("cut.parts", "planted:100")]
    assert [one.code for one in done] == [0, 0], done[0].err + done[1].err
    one, other = (json.loads(answer.out.splitlines()[-1]) for answer in done)
    assert one["losses"] == other["losses"]
    assert one["score"] == other["score"]
