"""One card makes a model known everywhere; what it leaves out is an error, not a guess."""

import pytest

from siafu.errors import ConfigError
from siafu.nn import CARDS, GNN, ModelSpec, cards_that
from siafu.nn.cards import _CARDS


@pytest.mark.parametrize("model", CARDS)
def test_scaling_of_sampled_sums_is_known_of_every_model(model: str) -> None:
    assert CARDS[model].scales_sampled is (model in ("gcn", "gin"))


def test_aggregation_that_nobody_entered_makes_no_card() -> None:
    facts = {name: getattr(CARDS["sage"], name) for name in CARDS["sage"].__dataclass_fields__}
    with pytest.raises(ConfigError, match="is not known") as caught:
        type(CARDS["sage"])(**facts | {"name": "new", "aggregation": "median"})
    assert "median on the card of new" in caught.value.seen


def test_names_are_those_of_the_cards() -> None:
    assert list(CARDS) == [card.name for card in _CARDS]
    assert len(CARDS) == len(_CARDS)


def test_traits_name_the_models_that_settings_are_for() -> None:
    assert cards_that(lambda card: card.attends) == ["gat", "gatv2", "transformer", "typed-gat"]
    assert cards_that(lambda card: card.takes_edge_features) == ["gat", "gatv2", "transformer"]
    assert cards_that(lambda card: card.needs_types) == ["rgcn", "typed-gat"]


@pytest.mark.parametrize("model", CARDS)
def test_every_card_makes_a_network(model: str) -> None:
    spec = ModelSpec(name=model, in_width=3, out_width=2, hidden=8, num_types=2)
    assert len(GNN(spec).layers) == 2
