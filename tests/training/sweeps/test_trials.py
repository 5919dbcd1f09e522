from pathlib import Path
from random import Random

import pytest

from gpt.config import Config
from gpt.config.loading import load_config, parse_config
from gpt.errors import ConfigError
from gpt.training.sweeps.trials import Range, Trial, plan_trials

BASE = parse_config("model: {n_head: 2, n_embd: 16}", "base")


def plan(folder: Path, text: str | bytes, number: int | None = None, seed: int = 0) -> list[Trial]:
    (folder / "grid.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return plan_trials(folder / "grid.yaml", BASE, number, seed)


def test_a_grid_has_every_combination_in_the_order_of_the_file(tmp_path: Path) -> None:
    trials = plan(tmp_path, "optim: {learning_rate: [1, 2e-3]}\nmodel: {mlp: [gelu, relu]}")
    values = [tuple(trial.values.values()) for trial in trials]
    assert values == [(1.0, "gelu"), (1.0, "relu"), (0.002, "gelu"), (0.002, "relu")]
    assert str(trials[3]) == "optim.learning_rate=0.002 model.mlp=relu"
    assert trials[3].name == "optim.learning_rate-0.002_model.mlp-relu"


def test_random_trials_differ_repeat_with_their_seed_and_begin_a_longer_list(tmp_path: Path) -> None:
    text = "optim: {learning_rate: {low: 1e-3, high: 1, scale: log}}\nmodel: {n_layer: [1, 2]}"
    trials = plan(tmp_path, text, 20, seed=3)
    assert len({trial.name for trial in trials}) == 20
    assert plan(tmp_path, text, 20, seed=3) == trials
    assert plan(tmp_path, text, 40, seed=3)[:20] == trials
    assert plan(tmp_path, text, 20, seed=4) != trials


def test_a_range_is_sampled_within_its_ends_and_by_its_scale() -> None:
    random = Random(0)
    logarithmic = [Range(1e-4, 1, True).sample(random) for _ in range(2000)]
    assert all(1e-4 <= number <= 1 and number == float(f"{number:.4g}") for number in logarithmic)
    middle_of_four_decades = 1e-2
    assert sum(number < middle_of_four_decades for number in logarithmic) / 2000 == pytest.approx(0.5, abs=0.05)
    linear = [Range(0.0, 1, False).sample(random) for _ in range(2000)]
    assert sum(number < 0.25 for number in linear) / 2000 == pytest.approx(0.25, abs=0.05)
    whole = {Range(1, 4, True).sample(random) for _ in range(200)}
    assert whole == {1, 2, 3, 4}
    assert all(isinstance(number, int) for number in whole)


@pytest.mark.parametrize(
    "given", ['a "word"', "1e-3", "true", "null", "naïve\nline", "", "a: b", "ends with \\", "#"], ids=repr
)
def test_overrides_give_the_train_command_the_same_value(tmp_path: Path, given: str) -> None:
    (tmp_path / "base.yaml").touch()
    (override,) = Trial({"train.init_from": given}).overrides
    if not given:
        with pytest.raises(ConfigError, match="at least 1 character"):
            load_config(tmp_path / "base.yaml", [override])
    else:
        assert load_config(tmp_path / "base.yaml", [override]).config.train.init_from == given


def test_names_are_those_of_runs_and_differ_where_values_do() -> None:
    long, other = ({"data.path": "x" * 300 + end} for end in "ab")
    odd = {"data.path": "a/b c"}
    names = [Trial(values).name for values in (long, other, odd, {"data.path": "a-b-c"}, {"optim.eps": 1e30})]
    assert len(set(names)) == 5
    for name in names:
        assert len(name) < 120
        Config.model_validate({"run": {"name": name}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "grid.yaml: varies nothing; give keys with lists of values"),
        ("optim:\n  learning_rate: 3e-4\n", "grid.yaml:2: optim.learning_rate: got 0.0003, expected a list of values"),
        ("optim:\n  learning_rate: []\n", "grid.yaml:2: optim.learning_rate: is an empty list"),
        ("optim:\n  learning_rate: [1, 2, 1]\n", "grid.yaml:2: optim.learning_rate: has the value 1 twice"),
        ("\noptim.learning_rate: [1]\n", "grid.yaml:2: optim.learning_rate: write optim: on a line of its own"),
        ("optim:\nmodel: {n_layer: [1]}\n", "grid.yaml:1: optim: expected keys below this section, got None"),
        ("run:\n  name: [a]\n", "grid.yaml:2: run.name: is set by the sweep, and cannot vary"),
        ("model:\n  n_layer: [1]\n  n_layer: [2]\n", "grid.yaml:3: model.n_layer: is given twice, first on line 2"),
        ("a:\n  b: {low: 1}\n", "grid.yaml:2: a.b: got {'low': 1}, expected a list of values, or a range"),
        ("a:\n  b: {low: 1, high: 2, step: 1}\n", "expected a list of values, or a range"),
        ("a:\n  b: {low: true, high: 2}\n", "expected a list of values, or a range"),
        ("a:\n  b: {low: 1, high: .inf}\n", "expected a list of values, or a range"),
        (f"a:\n  b: {{low: 1, high: {10**400}}}\n", "expected a list of values, or a range"),
        (f"a:\n  b: {{low: {-(10**308)}, high: {10**308}}}\n", "expected a list of values, or a range"),
        ("a:\n  b: {low: 2, high: 1}\n", "a.b: low 2 is not below high 1"),
        ("a:\n  b: {low: 0, high: 1, scale: log}\n", "a.b: low is 0, and a range with scale: log is above 0"),
        ("a:\n  b: {low: 0, high: 1, scale: lin}\n", "a.b: scale is 'lin', expected one of linear, log"),
        ("- 1\n- 2\n", "grid.yaml:1: expected 'section: ...' lines"),
        ("a: [1\n", "grid.yaml:2: "),
        (b"\xff\xfe", "is not UTF-8 text"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path, text, 1)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named_with_a_similar_one(tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").touch()
    with pytest.raises(ConfigError, match=r"grib.yaml: no such grid file; did you mean .*grid.yaml\?"):
        plan_trials(tmp_path / "grib.yaml", BASE)


def test_all_problems_are_reported_at_once_each_with_its_line(tmp_path: Path) -> None:
    text = """
optim:
  learning_rate: [1e-3, fast]
  weight_decay: {low: 1e-3, high: 1}
model:
  n_layers: [1]
  n_head: [2, 3]
  n_embd: []
sampel: {seed: [1]}
"""
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path, text)
    lines = [line.strip().removeprefix(str(tmp_path) + "/") for line in str(caught.value).splitlines()]
    assert lines[0].endswith("grid.yaml has 6 problems:")
    assert set(lines[1:]) == {
        "grid.yaml:3: optim.learning_rate: got 'fast', expected a valid number",
        "grid.yaml:4: optim.weight_decay: a range needs --random NUMBER; a grid needs a list of values",
        "grid.yaml:6: model.n_layers: unknown key; did you mean n_layer?",
        "grid.yaml:8: model.n_embd: 16 is not divisible by n_head 3",
        "grid.yaml:8: model.n_embd: is an empty list; give at least one value",
        "grid.yaml:9: sampel: unknown key; did you mean sample?",
    }


def test_too_many_and_too_few_trials_are_refused(tmp_path: Path) -> None:
    hundred = list(range(1, 101))
    large = f"model: {{n_layer: {hundred}}}\ntrain: {{max_steps: {hundred}, batch_size: {hundred}}}"
    for text, number, message in (
        (large, None, "a grid of 1,000,000 trials; more than 10,000 need --random"),
        (large, 10**9, "^--random 1,000,000,000: expected at most 10,000 trials"),
        ("model: {n_layer: [1, 2]}", 3, "has 2 combinations, fewer than --random 3"),
        ("model: {n_layer: [1, 2]}", 9999, "has 2 combinations, fewer than --random 9,999"),
    ):
        with pytest.raises(ConfigError, match=message):
            plan(tmp_path, text, number)
