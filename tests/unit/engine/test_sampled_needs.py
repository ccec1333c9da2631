"""What a model needs of sampled edges is known of each, or an error."""

import pytest

from siafu.engine.sampled import asks_sums
from siafu.errors import PlanError
from siafu.nn.models import LAYERS


@pytest.mark.parametrize("model", LAYERS)
def test_scaling_of_sums_is_known_of_every_built_in_model(model: str) -> None:
    assert asks_sums(model) is (model in ("gcn", "gin"))


def test_model_that_nobody_entered_gets_no_unscaled_sums() -> None:
    with pytest.raises(PlanError, match="is not known") as caught:
        asks_sums("brand-new")
    assert "--strategy halo" in caught.value.fix
