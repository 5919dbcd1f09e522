"""The search for a recipe: what a run costs, which candidates go on, and what is not repeated."""

import math
from pathlib import Path

import pytest
from torch import nn

from benchmarks import search
from benchmarks.search import RECIPE, Search, rank, read_candidates, survivors
from benchmarks.training_runs import Run
from gpt.accounting.flops import forward_flops, training_flops
from gpt.config.loading import load_config
from gpt.errors import ConfigError, GPTError

TEXT = "abcdefghij" * 40


Searching = tuple[Search, list[list[str]]]


@pytest.fixture
def searching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Searching:
    """A search whose trainings only say what they were asked."""
    (tmp_path / "text.txt").write_text(TEXT)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"data: {{source: file, path: {tmp_path}/text.txt, dir: {tmp_path}/data, val_fraction: 0.25}}\n"
        "model: {n_layer: 1, n_head: 1, n_embd: 16, block_size: 8}\n"
        "optim: {schedule: wsd, decay_steps: 40}\n"
        "train: {batch_size: 4, max_steps: 100}\n"
    )
    asked: list[list[str]] = []

    def train(config: str, overrides: list[str]) -> Run:
        asked.append(overrides)
        return Run(1.0, nn.Identity())

    monkeypatch.setattr(search, "time_ours", train)
    monkeypatch.setattr(search, "loss_of", lambda *_: 2.0)
    return Search(str(recipe), [], tmp_path / "results.jsonl", tmp_path), asked


def test_a_candidate_gets_the_steps_that_the_share_of_the_arithmetic_pays_for(searching: Searching) -> None:
    one, asked = searching
    row = one.result(["model.n_embd=32"], seed=3, share=0.5)
    small, large = (load_config(Path(one.config), [f"model.n_embd={n}"]).config.model for n in (16, 32))
    costs = [training_flops(model.model_copy(update={"vocab_size": 10}), 4, 8) for model in (small, large)]
    assert row["steps"] == round(50 * costs[0] / costs[1])
    assert {f"train.max_steps={row['steps']}", "run.seed=3", "model.n_embd=32"} <= set(asked[0])
    assert f"optim.decay_steps={round(0.4 * row['steps'])}" in asked[0]
    path = next(value.removeprefix("data.path=") for value in asked[0] if value.startswith("data.path="))
    assert Path(path).read_text() == TEXT[: len(TEXT) * 3 // 4]  # only the training split


def test_a_teacher_takes_its_part_of_the_arithmetic(searching: Searching) -> None:
    one, _ = searching
    row = one.result(["train.teacher_share=0.5"], seed=1, share=0.5)
    model = load_config(Path(one.config)).config.model.model_copy(update={"vocab_size": 10})
    predictions = math.ceil(225 / 8) * forward_flops(model, 1, 8)  # 400 characters, three quarters of three quarters
    assert row["steps"] == pytest.approx((50 - predictions / training_flops(model, 4, 8)) / 1.5, abs=1)


def test_a_run_is_not_repeated_unless_something_differs(searching: Searching) -> None:
    one, asked = searching
    first = one.result(["model.n_embd=32"], seed=1, share=1)
    assert one.result(["model.n_embd=32"], seed=1, share=1) == first
    assert len(asked) == 1
    for overrides, seed, share in (([], 1, 1), (["model.n_embd=32"], 2, 1), (["model.n_embd=32"], 1, 0.5)):
        one.result(overrides, seed, share)
    assert len(asked) == len(one.results.read_text().splitlines()) == 4


def test_a_damaged_file_of_results_is_named(searching: Searching) -> None:
    searching[0].results.write_text('{"loss": 1}\n{"lo')
    with pytest.raises(GPTError, match=r"results\.jsonl: a line is not JSON"):
        searching[0].result([], 1, 1)


def test_the_best_of_the_others_go_on_and_the_recipe_always() -> None:
    losses = {RECIPE: (3.0, 3.2), "a": (2.9, 2.9), "b": (3.0, 2.7), "c": (2.0, 5.0), "d": (4.0, 4.0)}
    settings = {"share": 1, "steps": 1, "overrides": [], "seconds": 1}
    rows = rank({name: [{"loss": loss, **settings} for loss in values] for name, values in losses.items()})
    assert rows["b"]["change"] == pytest.approx(2.85 - 3.1)
    assert survivors(rows, 3) == [RECIPE, "b", "a"]


def test_candidates_are_lists_of_overrides(tmp_path: Path) -> None:
    file = tmp_path / "candidates.yaml"
    file.write_text("wide: [model.n_embd=64]\nplain: []\n")
    assert read_candidates(file) == {"wide": ["model.n_embd=64"], "plain": []}
    for text, message in (("wide: model.n_embd=64", "wide: expected a list"), ("- a", "candidates.yaml")):
        file.write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_candidates(file)
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        read_candidates(tmp_path / "nowhere.yaml")
