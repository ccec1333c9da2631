"""A checkpoint gives back what was saved, to the bit."""

from pathlib import Path

import pytest
import torch
from torch import nn

from siafu.checkpoint import (
    Checkpoint,
    checkpoints_in,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)
from siafu.errors import StoreError


def make(epochs: int = 3) -> tuple[nn.Module, Checkpoint]:
    torch.manual_seed(epochs)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model.register_parameter("scale", nn.Parameter(torch.tensor(2.0)))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    (model(torch.randn(5, 3)) * model.scale).sum().backward()
    optimiser.step()
    best = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    facts = {"epochs": epochs, "best_scores": {"val": 0.1}, "losses": [1 / 3, float("1e-300")]}
    return model, Checkpoint(
        model=model.state_dict(), best=best, optimiser=optimiser.state_dict(), facts=facts
    )


def test_everything_comes_back_to_the_bit(tmp_path: Path) -> None:
    model, saved = make()
    loaded = load_checkpoint(save_checkpoint(saved, tmp_path), model)
    assert loaded.facts == saved.facts
    for group in ("model", "best"):
        want, got = getattr(saved, group), getattr(loaded, group)
        assert got.keys() == want.keys()
        for name, tensor in want.items():
            assert torch.equal(got[name], tensor)
            assert got[name].dtype == tensor.dtype
            assert got[name].shape == tensor.shape
    optimiser = torch.optim.Adam(model.parameters())
    optimiser.load_state_dict(loaded.optimiser)
    want_state = saved.optimiser["state"]
    for number, state in optimiser.state_dict()["state"].items():
        for name, value in state.items():
            assert torch.equal(value, want_state[number][name])
    assert optimiser.param_groups[0]["lr"] == 0.1


def test_newest_of_the_complete_ones_is_found(tmp_path: Path) -> None:
    for epochs in (5, 10):
        save_checkpoint(make(epochs)[1], tmp_path)
    (tmp_path / "epoch-000015").mkdir()
    assert newest_checkpoint(tmp_path).name == "epoch-000010"


def damage(checkpoint: Path) -> None:
    file = checkpoint / "model-0.npy"
    file.write_bytes(file.read_bytes()[:-3])


def test_damaged_ones_are_passed_over_and_told(tmp_path: Path) -> None:
    for epochs in (5, 10):
        save_checkpoint(make(epochs)[1], tmp_path)
    damage(tmp_path / "epoch-000010")
    said: list[str] = []
    assert newest_checkpoint(tmp_path, said.append).name == "epoch-000005"
    [line] = said
    assert "epoch-000010" in line
    assert "model-0.npy" in line


def test_damaged_one_of_a_later_epoch_never_outlives_a_whole_one(tmp_path: Path) -> None:
    for epochs in (5, 10):
        save_checkpoint(make(epochs)[1], tmp_path)
    damage(tmp_path / "epoch-000010")
    for epochs in (6, 7):
        save_checkpoint(make(epochs)[1], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-000006", "epoch-000007"]


def test_as_many_as_asked_are_kept_and_those_within_an_epoch_until_its_end(tmp_path: Path) -> None:
    for epochs, steps in [(1, 0), (2, 0), (2, 3), (2, 5), (2, 8), (3, 0), (3, 2)]:
        saved = make(epochs)[1]
        if steps:
            saved.facts["steps"] = {"losses": [0.5] * steps}
        newest = save_checkpoint(saved, tmp_path, keep=2)
        assert newest_checkpoint(tmp_path) == newest
        kept = [path.name for path in checkpoints_in(tmp_path)]
        if steps == 8:
            names = ["epoch-000001", "epoch-000002"]
            names += ["epoch-000002-step-00000005", "epoch-000002-step-00000008"]
            assert kept == names
    assert kept == ["epoch-000002", "epoch-000003", "epoch-000003-step-00000002"]
    save_checkpoint(make(4)[1], tmp_path, keep=1)
    assert [path.name for path in checkpoints_in(tmp_path)] == ["epoch-000004"]


def test_all_damaged_is_told_with_a_fix_that_works(tmp_path: Path) -> None:
    damage(save_checkpoint(make()[1], tmp_path / "checkpoints"))
    with pytest.raises(StoreError, match="No checkpoint of the run is whole") as caught:
        newest_checkpoint(tmp_path / "checkpoints")
    assert f"rm -rf {tmp_path / 'checkpoints'}" in caught.value.fix


def test_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no checkpoint"):
        newest_checkpoint(tmp_path / "absent")


def test_saving_again_replaces(tmp_path: Path) -> None:
    save_checkpoint(make(5)[1], tmp_path)
    model, second = make(5)
    second.best["0.bias"].fill_(7.0)
    path = save_checkpoint(second, tmp_path)
    assert load_checkpoint(path, model).best["0.bias"].tolist() == [7.0] * 4
    assert [folder.name for folder in tmp_path.iterdir()] == ["epoch-000005"]


def test_other_model_is_refused_with_the_tensor_that_differs(tmp_path: Path) -> None:
    path = save_checkpoint(make()[1], tmp_path)
    with pytest.raises(StoreError, match="another model") as caught:
        load_checkpoint(path, nn.Sequential(nn.Linear(3, 5)))
    assert "0.weight: (4, 3) in it, (5, 3) here" in caught.value.seen


def test_what_is_called_like_a_checkpoint_is_left_alone(tmp_path: Path) -> None:
    kept = tmp_path / "epoch-000044.bad"
    kept.mkdir(parents=True)
    path = save_checkpoint(make(50)[1], tmp_path)
    assert newest_checkpoint(tmp_path) == path
    assert kept.exists()
