"""Options that nothing reads are told."""

from pathlib import Path
from typing import Any

import pytest

from gpt.config import Config
from gpt.config.loading import load_config
from gpt.config.without_effect import options_without_effect

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"model": {"rope_theta": 50.0}}, "model.rope_theta=50.0 has no effect: model.position is learned"),
        ({"train": {"teacher_weight": 0.4}}, "train.teacher_weight=0.4 has no effect: train.teacher is null"),
        (
            {"model": {"init": "zero_projections"}, "train": {"init_from": "runs/x"}},
            "model.init='zero_projections' has no effect: train.init_from gives the weights",
        ),
        *(
            ({"optim": {"schedule": "constant", **key}}, f"{line} has no effect: optim.schedule is constant")
            for key, line in (({"min_lr": 0.0}, "optim.min_lr=0.0"), ({"decay_steps": 7}, "optim.decay_steps=7"))
        ),
    ],
)
def test_an_option_without_effect_is_told(sections: dict[str, Any], line: str) -> None:
    assert options_without_effect(Config.model_validate(sections)) == [line]


def test_what_is_read_and_what_is_at_its_default_is_not() -> None:
    read = {
        "model": {"position": "rope", "rope_theta": 50.0},
        "optim": {"min_lr": 0.0, "decay_steps": 7},
        "train": {"teacher": "runs/x", "teacher_weight": 0.4},
    }
    assert options_without_effect(Config.model_validate(read)) == []
    # such a rate may be below the default of the one that nothing reads
    written_out = Config.model_validate({"optim": {"schedule": "constant", "learning_rate": 1e-5}}).model_dump()
    assert options_without_effect(Config.model_validate(written_out)) == []


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_recipes_have_none(path: Path) -> None:
    assert options_without_effect(load_config(path).config) == []
