"""From settings to a pool: what they mean, and what is refused."""

import queue
from pathlib import Path

import pytest

from siafu.comm import World
from siafu.elastic.open import open_runner, read_cloud
from siafu.elastic.options import PoolOptions
from siafu.errors import ConfigError


@pytest.mark.parametrize(("text", "seconds"), [("20ms", 0.02), ("0.5s", 0.5), ("1.5 ms", 0.0015)])
def test_a_latency_names_an_otherwise_ideal_cloud(text: str, seconds: float) -> None:
    model = read_cloud(text)
    assert model.latency_seconds == pytest.approx(seconds)
    assert (model.speed, model.loss) == (1.0, 0.0)


def test_a_file_sets_the_numbers_of_a_cloud(tmp_path: Path) -> None:
    file = tmp_path / "cloud.yaml"
    file.write_text("loss: 0.25\nspeed: 0.5\n")
    model = read_cloud(str(file))
    assert (model.loss, model.speed) == (0.25, 0.5)


@pytest.mark.parametrize("content", ["loss: [", "- 1", None])
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "cloud.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match="file of the simulated cloud"):
        read_cloud(str(file))


@pytest.mark.parametrize("text", ["1.2.3ms", "soon", "", "ms"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="simulated cloud"):
        read_cloud(text)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"pool": "process", "pool_workers": "none"}, "number of workers"),
        ({"pool": "process", "pool_workers": "0"}, "number of workers"),
        ({"pool": "aws-lambda"}, "has no name"),
        (
            {"pool": "aws-lambda", "lambda_function": "f", "lambda_endpoint": "http://10.0.0.1:9"},
            "in clear",
        ),
        ({"pool": "aws-lambda", "lambda_function": "f"}, "on loopback"),
        (
            {"pool": "aws-lambda", "lambda_function": "f", "pool_address": "tcp://127.0.0.2:7000"},
            "on loopback",
        ),
        (
            {"pool": "aws-lambda", "lambda_function": "f", "pool_address": "10.0.0.5:7000"},
            "No address of a socket",
        ),
    ],
)
def test_settings_no_pool_can_be_made_of_are_refused(settings: dict, match: str) -> None:
    options = PoolOptions(**{name: value for name, value in settings.items() if name != "pool"})
    replies: queue.SimpleQueue = queue.SimpleQueue()
    with pytest.raises(ConfigError, match=match):
        open_runner(options, settings["pool"], 4, World(), replies.put)
