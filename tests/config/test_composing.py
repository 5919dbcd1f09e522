from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt.config import Config, ModelConfig
from gpt.config.composing import compose_config
from gpt.config.sources import find_config, load_config
from gpt.system.errors import ConfigError


def test_all_sources_give_the_same_configuration(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("model: {n_layer: 2}\noptim: {betas: [0.8, 0.9]}\n", encoding="utf-8")
    sections = {"model": {"n_layer": 2}, "optim": {"betas": [0.8, 0.9]}}
    expected = load_config(file)
    assert compose_config(file) == compose_config(str(file)) == expected
    assert compose_config(sections).config == compose_config(Config.model_validate(sections)).config == expected.config
    assert compose_config(None, sections).config == expected.config
    assert compose_config(None, {"model": ModelConfig(n_layer=2), "betas": (0.8, 0.9)}).config == expected.config


def test_keywords_replace_single_values_of_a_recipe() -> None:
    recipe = load_config("shakespeare").config
    given = {"max_steps": np.int64(7), "model": {"dropout": 0.5}, "name": "mine", "run": {"dir": Path("elsewhere")}}
    loaded = compose_config("shakespeare", given)
    changes = {"train.max_steps": 7, "model.dropout": 0.5, "run.name": "mine", "run.dir": "elsewhere"}
    assert loaded.config.leaves() == {**recipe.leaves(), **changes}
    assert loaded.default_name == "shakespeare"


def problems_of(source: Any = None, **keywords: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        compose_config(source, keywords)
    assert "http" not in str(caught.value)
    return [line.strip() for line in str(caught.value).splitlines()]


def test_all_problems_are_told_at_once_with_what_was_meant(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("train:\n  batch_size: none\n", encoding="utf-8")
    assert problems_of(file, max_stepz=3, lr=1, seed=3, model={"n_layers": 1, "n_embd": 10, "n_head": 3}, n_head=4) == [
        f"{file} has 7 problems:",
        "keyword: max_stepz: unknown; did you mean train.max_steps?",
        "keyword: lr: unknown; did you mean optim.learning_rate?",
        "keyword: seed: is a key of several sections; write run=dict(seed=3) or sample=dict(seed=3)",
        "keyword: model.n_head: is given twice; leave one of them out",
        "keyword: model.n_layers: unknown key; did you mean n_layer?",
        f"{file}:2: train.batch_size: got 'none', expected a valid integer",
        "keyword: model.n_embd: 10 is not divisible by n_head 4",
    ]


@pytest.mark.parametrize(
    ("source", "keywords", "message"),
    [
        ("shakespear", {}, "'shakespear' is neither a file nor a recipe; did you mean shakespeare?"),
        ("gone.yaml", {}, "gone.yaml: no such configuration file"),
        (5, {}, "config is a int, expected a file, a recipe's name, a Config or a dict"),
        ({"modle": {}}, {}, "config: modle: unknown key; did you mean model?"),
        (None, {"model": 5}, "keyword: model: got 5, expected a dict of its keys, such as model=dict(...)"),
        (None, {"max_steps": "a"}, "keyword: train.max_steps: got 'a', expected a valid integer"),
    ],
)
def test_a_mistake_is_one_line(source: Any, keywords: dict[str, Any], message: str) -> None:
    assert problems_of(source, **keywords) == [message]


def test_every_shipped_recipe_is_found_by_its_name() -> None:
    assert load_config("quickstart").config.data.source == "pydocs"
    with pytest.raises(ConfigError, match=r"neither a file nor a recipe; expected a file or one of .*text8"):
        find_config("nonsense")
