"""Whole processes: that the peers get the budget of nanoGPT's recipe."""

from benchmarks.processes import ROOT
from benchmarks.races import README_OPTIONS, same_budget
from gpt.config import Config, load_config


def test_the_budget_is_what_the_readme_says() -> None:
    budget = same_budget(Config(), 2000)
    options = dict(option.removeprefix("--").split("=") for option in README_OPTIONS.split())
    for key in ("n_layer", "n_head", "n_embd", "block_size", "dropout"):
        assert str(getattr(budget.model, key)) == options[key]
    assert (str(budget.train.batch_size), str(budget.train.max_steps)) == (options["batch_size"], options["max_iters"])
    assert budget.optim.warmup_steps == 100


def test_data_and_threads_are_those_of_the_measured_recipe() -> None:
    config = load_config(ROOT / "configs" / "quickstart.yaml", ["run.threads=3"]).config
    budget = same_budget(config, 7)
    assert (budget.data, budget.run.threads, budget.train.max_steps) == (config.data, 3, 7)
    assert budget.optim.warmup_steps == 6
