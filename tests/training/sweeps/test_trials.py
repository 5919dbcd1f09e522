from pathlib import Path

import pytest

from gpt.config import Config, load_config, parse_config
from gpt.errors import ConfigError
from gpt.training.sweeps.space import SearchSpace, read_space
from gpt.training.sweeps.trials import Trial, plan_trials

BASE = parse_config("model: {n_head: 2, n_embd: 16}", "base")


def space(tmp_path: Path, text: str) -> SearchSpace:
    (tmp_path / "grid.yaml").write_text(text, encoding="utf-8")
    return read_space(tmp_path / "grid.yaml")


def values_of(trials: list[Trial]) -> list[tuple[object, ...]]:
    return [tuple(trial.values.values()) for trial in trials]


def test_a_grid_has_every_combination(tmp_path: Path) -> None:
    trials = plan_trials(space(tmp_path, "optim: {learning_rate: [1, 2e-3]}\nmodel: {mlp: [gelu, relu]}"), BASE)
    assert values_of(trials) == [(1.0, "gelu"), (1.0, "relu"), (0.002, "gelu"), (0.002, "relu")]
    assert str(trials[3]) == "optim.learning_rate=0.002 model.mlp=relu"
    assert trials[3].name == "optim.learning_rate-0.002_model.mlp-relu"


def test_random_trials_differ_repeat_with_their_seed_and_begin_a_longer_list(tmp_path: Path) -> None:
    text = "optim: {learning_rate: {low: 1e-3, high: 1, scale: log}}\nmodel: {n_layer: [1, 2]}"
    found = space(tmp_path, text)
    trials = plan_trials(found, BASE, 20, seed=3)
    assert len({trial.name for trial in trials}) == 20
    assert plan_trials(found, BASE, 20, seed=3) == trials
    assert plan_trials(found, BASE, 40, seed=3)[:20] == trials
    assert plan_trials(found, BASE, 20, seed=4) != trials


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
        plan_trials(space(tmp_path, text), BASE)
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
    large = space(tmp_path, f"model: {{n_layer: {hundred}}}\ntrain: {{max_steps: {hundred}, batch_size: {hundred}}}")
    with pytest.raises(ConfigError, match="a grid of 1,000,000 trials; more than 10,000 need --random"):
        plan_trials(large, BASE)
    with pytest.raises(ConfigError, match="has 2 combinations, fewer than --random 3"):
        plan_trials(space(tmp_path, "model: {n_layer: [1, 2]}"), BASE, 3)
    with pytest.raises(ConfigError, match="has 2 combinations, fewer than --random 9,999"):
        plan_trials(space(tmp_path, "model: {n_layer: [1, 2]}"), BASE, 9999)
    with pytest.raises(ConfigError, match=r"--random 1,000,000,000: expected at most 10,000 trials"):
        plan_trials(large, BASE, 10**9)
