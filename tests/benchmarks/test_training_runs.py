"""Whole training processes: what the peer is given."""

from benchmarks.processes import ROOT
from benchmarks.training_runs import NANOGPT_WINDOWS, README_OPTIONS
from gpt.config.loading import load_config


def test_our_copy_of_nanogpts_recipe_is_what_its_readme_says() -> None:
    config = load_config(ROOT / "configs" / "shakespeare_nanogpt_cpu.yaml").config
    options = dict(option.removeprefix("--").split("=") for option in README_OPTIONS.split())
    for key in ("n_layer", "n_head", "n_embd", "block_size", "dropout"):
        assert str(getattr(config.model, key)) == options[key]
    assert (str(config.train.batch_size), str(config.train.max_steps)) == (options["batch_size"], options["max_iters"])
    assert str(NANOGPT_WINDOWS["cpu"]) == options["block_size"]
