"""What a recipe costs: by its FLOPs, or as another run of the same work took."""

import json
import shutil
from functools import lru_cache
from pathlib import Path

import pytest

from gpt.accounting.flops import forward_flops, recomputed_flops, training_flops, whole_flops
from gpt.config.loading import load_config
from gpt.serving.http.playground import recipes
from gpt.serving.http.playground.recipes import START_SECONDS, UTILIZATION, VOCABULARY, Recipes
from gpt.serving.http.playground.runs import Runs

CONFIGS = Path(__file__).resolve().parents[4] / "configs"


def recipes_of(folder: Path, runs: Path, rate: float = 1e9) -> Recipes:
    return Recipes(folder, Runs(runs), lambda run: rate)


def test_the_shipped_recipes_are_those_that_fit_any_text(tmp_path: Path) -> None:
    names = {recipe.name for recipe in recipes_of(CONFIGS, tmp_path).describe(10**6)}
    assert {"quickstart", "shakespeare", "shakespeare_long", "shakespeare_sprint"} < names
    assert "reference_shapes" not in names  # it has a vocabulary of its own
    assert all(recipe.about for recipe in recipes_of(CONFIGS, tmp_path).describe(10**6))


def test_time_is_flops_by_the_rate_of_this_machine(place: Path) -> None:
    config = load_config(place / "configs" / "tiny.yaml").config
    model = config.model.model_copy(update={"vocab_size": VOCABULARY})
    steps = 6 * training_flops(model, 4, 16)
    evaluations = 3 * 100_000 / 16 * forward_flops(model, 1, 16)  # before the first step, after 3 and after 6
    assert whole_flops(config.model_copy(update={"model": model}), 1_000_000) == pytest.approx(steps + evaluations)
    recipe = recipes_of(place / "configs", place / "runs", rate=1e9).describe(1_000_000)[0]
    expected = [START_SECONDS + (steps + evaluations) / (share * 1e9) for share in reversed(UTILIZATION)]
    assert recipe.seconds == pytest.approx(expected)
    assert recipe.like is None


def test_before_a_measurement_times_rest_on_an_assumption(place: Path) -> None:
    def measure(run: object) -> float:
        raise AssertionError("it was measured")

    recipes = Recipes(place / "configs", Runs(place / "runs"), measure)
    (tiny, endless) = recipes.describe(10**6, measured=False)
    assert tiny.seconds[0] < tiny.seconds[1] < endless.seconds[0]


def test_what_is_recomputed_takes_time_too(place: Path) -> None:
    file = place / "configs" / "tiny.yaml"
    model = load_config(file).config.model.model_copy(update={"vocab_size": VOCABULARY})
    before = recipes_of(place / "configs", place / "runs").describe(10**6)[0].seconds
    file.write_text(file.read_text().replace("max_steps: 6", "max_steps: 6, activation_checkpointing: true"))
    after = recipes_of(place / "configs", place / "runs").describe(10**6)[0].seconds
    added = 6 * recomputed_flops(model, 4, 16) / 1e9
    assert [high - low for low, high in zip(before, after, strict=True)] == pytest.approx(
        [added / share for share in reversed(UTILIZATION)]
    )


def test_averaged_weights_are_evaluated_beside_the_others() -> None:
    plain = load_config(CONFIGS / "shakespeare.yaml", ["model.vocab_size=65"]).config
    averaged = plain.model_copy(update={"optim": plain.optim.model_copy(update={"ema_decay": 0.995})})
    once = whole_flops(plain, 10**6) - whole_flops(plain, 0)
    assert whole_flops(averaged, 10**6) - whole_flops(averaged, 0) == pytest.approx(2 * once)


def test_the_pace_of_a_run_of_the_same_work_says_more_than_flops(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "runs", tmp_path / "runs")
    shutil.copy(trained / "tiny.yaml", tmp_path / "tiny.yaml")
    metrics = tmp_path / "runs" / "tiny" / "metrics.jsonl"
    assert recipes_of(tmp_path, tmp_path / "runs").describe(1)[0].like is None  # six steps say little
    row = {"step": 40, "train/loss": 1.0, "speed/seconds": 20.0}
    metrics.write_text(json.dumps(row) + "\n")
    recipe = recipes_of(tmp_path, tmp_path / "runs").describe(1)[0]
    assert recipe.like == "tiny"
    assert recipe.seconds == (START_SECONDS + 6 * 0.5, START_SECONDS + 6 * 0.5)
    text = (tmp_path / "tiny.yaml").read_text()
    for old, new in (("n_embd: 16", "n_embd: 32"), ("max_steps: 6", "max_steps: 6, length_warmup: [0.5]")):
        (tmp_path / "tiny.yaml").write_text(text.replace(old, new))
        assert recipes_of(tmp_path, tmp_path / "runs").describe(1)[0].like is None


def test_a_recipe_with_a_mistake_is_left_out(place: Path) -> None:
    (place / "configs" / "tiny.yaml").write_text("modle: {}")
    found = recipes_of(place / "configs", place / "runs")
    assert [recipe.name for recipe in found.describe(1)] == ["endless"]
    assert found.path("tiny") is None
    assert recipes_of(place / "none", place / "runs").describe(1) == []


def test_runs_that_compute_alike_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[tuple[object, ...]] = []
    monkeypatch.setattr(recipes, "_rate", lru_cache(recipes._rate.__wrapped__))  # an empty cache
    monkeypatch.setattr(recipes, "measure_matmul_rate", lambda *given: measured.append(given) or 1e9)
    for name in ("one", "another"):
        run = load_config(CONFIGS / "quickstart.yaml", [f"run.name={name}", "run.device=cpu"]).config.run
        assert recipes.measure_rate.__wrapped__(run) == 1e9
    assert len(measured) == 1
