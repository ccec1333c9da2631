"""Settings of pipelines are used or refused, never passed over."""

import pytest

from siafu.config import make_config
from siafu.errors import ConfigError
from siafu.launch.checks import check_run


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"strategy": "batchgnn", "staleness": 1}, "no meaning where minibatches"),
        ({"cloud": "20ms"}, "no meaning where no intervals"),
        ({"pool_workers": "3"}, "no meaning where no intervals"),
        ({"strategy": "dorylus", "cloud": "20ms"}, "no meaning for this pool"),
        ({"strategy": "dorylus", "lambda_function": "f", "pool": "ray"}, "for this pool"),
        ({"strategy": "dorylus", "exact_from": 0.5}, "nothing lags"),
        ({"strategy": "dorylus", "device": "cuda"}, "done on CPUs"),
        ({"strategy": "dorylus", "stages": "2"}, "way of their own"),
        ({"strategy": "dorylus", "wire": 8}, "way of their own"),
        ({"strategy": "dorylus", "pool_bits": 3}, "Unknown width"),
    ],
)
def test_settings_without_a_meaning_are_refused(settings: dict, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        check_run("planted", make_config(data="planted", **settings))


def test_exactness_follows_the_choices() -> None:
    def exactness(**settings: object) -> str:
        config = make_config(data="planted", strategy="dorylus", **settings)
        return config.chosen.exactness

    assert exactness() == "exact"
    assert exactness(staleness=1) == "bounded"
    assert exactness(gather="latest") == "bounded"
    assert exactness(pool_bits=8) == "unbiased"


@pytest.mark.parametrize("device", [None, "auto"])
def test_a_gpu_that_happens_to_be_there_is_not_used(device: str | None) -> None:
    given = {} if device is None else {"device": device}
    assert make_config(data="planted", strategy="dorylus", **given).device == "cpu"
