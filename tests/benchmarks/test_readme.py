from pathlib import Path

from benchmarks.readme import README_OPTIONS, readme_options, same_budget
from gpt.config import load_config

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "shakespeare_nanogpt_cpu.yaml"


def test_two_thousand_steps_are_the_readmes_own_words() -> None:
    assert readme_options(2000) == README_OPTIONS.split()


def test_other_steps_change_the_schedule_with_them() -> None:
    changed = set(readme_options(7)) - set(README_OPTIONS.split())
    assert changed == {"--max_iters=7", "--lr_decay_iters=7"}


def test_the_budget_is_that_of_our_own_configuration_of_the_recipe() -> None:
    ours = load_config(CONFIG).config
    budget = same_budget(ours.data, 2000, None)
    assert (budget.model, budget.optim) == (ours.model, ours.optim)
    assert (budget.train.batch_size, budget.train.max_steps) == (ours.train.batch_size, ours.train.max_steps)
    options = dict(option.removeprefix("--").split("=") for option in README_OPTIONS.split())
    for key in ("n_layer", "n_head", "n_embd", "block_size", "dropout"):
        assert str(getattr(budget.model, key)) == options[key]
    assert str(budget.train.batch_size) == options["batch_size"]
