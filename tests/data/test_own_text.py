"""The recipe for one's own text: valid and trainable for every amount."""

from itertools import pairwise
from pathlib import Path

import pytest

from gpt.config import Config, DataConfig
from gpt.data.own_text import (
    MAX_EVAL_TOKENS,
    MIN_CHARS,
    TIERS,
    fit_recipe,
    item_recipe_for,
    recipe_for,
)
from gpt.system.environment import read_settings

AMOUNTS = (
    MIN_CHARS,
    2_777,
    8_001,
    30_000,
    100_000,
    180_001,
    300_000,
    300_001,
    1_000_000,
    50_000_000,
)


@pytest.mark.parametrize("characters", AMOUNTS)
def test_own_text_gets_a_config_whose_validation_fills_a_block(characters: int) -> None:
    config = Config.model_validate(recipe_for(characters, characters // 10, 65))
    assert config.model.block_size < characters // 10
    tokens = config.model.block_size * config.train.batch_size
    assert tokens in {tier.tokens_per_step for tier in TIERS}
    # The training split, 0.9 of the text, is read fewer than 26 times.
    assert tokens * config.train.max_steps < 26 * 0.9 * characters
    assert config.optim.warmup_steps + (config.optim.decay_steps or 0) <= config.train.max_steps
    assert config.train.max_steps / config.train.eval_interval > 3  # at least four evaluations
    assert (config.train.eval_max_tokens is None) == (characters // 10 <= MAX_EVAL_TOKENS)
    assert config.data.order == "shuffled"
    assert config.sequence_lengths()[0][0] <= 256
    assert bool(config.train.mtp_weights) == (config.train.logit_temperature < 1)
    assert config.sample.temperature == pytest.approx(
        0.8 * config.train.logit_temperature, abs=0.005
    )


def test_less_text_is_regularized_more_and_read_more_often() -> None:
    assert [tier.dropout for tier in TIERS] == sorted(
        (tier.dropout for tier in TIERS), reverse=True
    )
    assert [tier.temperature for tier in TIERS] == sorted(tier.temperature for tier in TIERS)
    amounts = (MIN_CHARS, 4_000, 30_000, 100_000, 180_000, 180_001, 500_000, 1_000_000, 50_000_000)
    configs = [
        Config.model_validate(recipe_for(characters, characters // 10, 65))
        for characters in amounts
    ]
    tokens = [
        config.train.max_steps * config.train.sequences * config.model.block_size
        for config in configs
    ]
    assert all(less < 1.01 * more for less, more in pairwise(tokens))
    read = [count / characters for count, characters in zip(tokens, amounts, strict=True)]
    assert all(more > 0.99 * less for more, less in pairwise(read))
    sizes = [config.model.n_layer * config.model.n_embd**2 for config in configs]
    assert sizes == sorted(sizes)


def test_characters_that_hardly_occur_again_are_read_less_often() -> None:
    few, many = (
        Config.model_validate(recipe_for(30_000, 3_000, distinct)) for distinct in (1_500, 1_501)
    )
    assert many.train.max_steps == few.train.max_steps // 3
    assert many.model.dropout > few.model.dropout


@pytest.mark.parametrize(("characters", "warned"), [(3_000, True), (20_000, False)])
def test_a_line_warns_of_a_text_too_small_for_a_claim(
    tmp_path: Path, characters: int, warned: bool
) -> None:
    path = tmp_path / "text.txt"
    lines: list[str] = []
    path.write_text("0123456789" * (characters // 10))
    fit_recipe(
        DataConfig(source="file", path=str(path), dir=str(tmp_path)),
        read_settings(True),
        lines.append,
    )
    assert (
        any(line.startswith("warning: ") and f"{characters:,} characters" in line for line in lines)
        == warned
    )


@pytest.mark.parametrize(
    ("name", "line", "is_warned"),
    [
        ("a.jsonl", '{"text": "number NUMBER"}', True),
        ("a.jsonl", '{"prompt": "NUMBER", "answer": "a number"}', False),
        ("a.jsonl", "number NUMBER", False),
        ("a.txt", '{"text": "number NUMBER"}', False),
    ],
)
def test_json_lines_without_pairs_are_read_with_a_warning(
    tmp_path: Path, name: str, line: str, is_warned: bool
) -> None:
    path = tmp_path / name
    path.write_text("".join(f"{line}\n".replace("NUMBER", f"{n}") for n in range(1_000, 2_000)))
    reported: list[str] = []
    data = DataConfig(source="file", path=str(path), dir=str(tmp_path))
    fit_recipe(data, read_settings(True), reported.append)
    warnings = [each for each in reported if "is read as it stands" in each]
    assert len(warnings) == is_warned


@pytest.mark.parametrize("characters", [MIN_CHARS, 8_000, 60_000, 150_001, 1_000_000, 20_000_000])
@pytest.mark.parametrize("longest", [5, 100, 10_000])
def test_recipe_for_items_holds_a_whole_item_where_one_can(characters: int, longest: int) -> None:
    config = Config.model_validate(item_recipe_for(characters, characters // 10, longest))
    assert config.model.block_size >= min(longest, 256)
    assert config.model.block_size % 8 == 0
    assert config.train.batch_size >= 1
    assert config.sample.temperature == 1
    assert config.optim.warmup_steps + (config.optim.decay_steps or 0) <= config.train.max_steps
