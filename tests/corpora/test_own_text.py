"""The recipe for one's own text: valid and trainable for every amount."""

import pytest

from gpt.config import Config
from gpt.config.without_effect import options_without_effect
from gpt.corpora.own_text import LEAST, TIERS, recipe_for

AMOUNTS = (LEAST, 2_777, 30_000, 100_000, 180_001, 300_000, 300_001, 1_000_000, 50_000_000)


@pytest.mark.parametrize("characters", AMOUNTS)
def test_it_is_a_configuration_whose_validation_split_fills_a_block(characters: int) -> None:
    config = Config.model_validate(recipe_for(characters, characters // 10))
    assert config.model.block_size < characters // 10
    assert config.model.block_size * config.train.batch_size == pytest.approx(3072, rel=0.05)
    assert config.data.order == "shuffled"
    assert options_without_effect(config) == []
    assert config.sequence_lengths(config.train.max_steps)[0][0] <= 256
    assert bool(config.train.ahead_weights) == (config.train.temperature < 1)
    assert config.sample.temperature == pytest.approx(0.8 * config.train.temperature, abs=0.005)


def test_less_text_is_regularized_more_and_read_more_often() -> None:
    assert [tier.dropout for tier in TIERS] == sorted((tier.dropout for tier in TIERS), reverse=True)
    assert [tier.temperature for tier in TIERS] == sorted(tier.temperature for tier in TIERS)
    amounts = (30_000, 100_000, 500_000, 1_000_000, 50_000_000)
    configs = [Config.model_validate(recipe_for(characters, characters // 10)) for characters in amounts]
    steps = [config.train.max_steps + config.train.teacher_steps for config in configs]
    read = [count / characters for count, characters in zip(steps, amounts, strict=True)]
    assert read == sorted(read, reverse=True)
    taught = [config.train.teacher_share is not None for config in configs]
    assert taught == [3072 * steps > 14 * 0.9 for steps in read]  # epochs of a training split of 90%
    sizes = [config.model.n_layer * config.model.n_embd**2 for config in configs]
    assert sizes == sorted(sizes)
