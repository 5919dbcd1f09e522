from pathlib import Path
from random import Random

import pytest

from gpt.errors import ConfigError
from gpt.training.sweeps.space import Axis, Range, SearchSpace, read_space


def read(tmp_path: Path, text: str) -> SearchSpace:
    (tmp_path / "grid.yaml").write_text(text, encoding="utf-8")
    return read_space(tmp_path / "grid.yaml")


def test_the_axes_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = "optim:\n  weight_decay: {low: 1e-3, high: 1, scale: log}\nmodel:\n  n_layer: [4, 2]\n  mlp: [gelu]\n"
    assert read(tmp_path, text).axes == (
        Axis("optim.weight_decay", Range(1e-3, 1, True)),
        Axis("model.n_layer", (4, 2)),
        Axis("model.mlp", ("gelu",)),
    )


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
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    problems = read(tmp_path, text).problems
    assert len(problems) == 1
    assert message in problems[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"- 1\n- 2\n", "grid.yaml:1: expected 'section: ...' lines"),
        (b"a: [1\n", "grid.yaml:2: "),
        (b"\xff\xfe", "is not UTF-8 text"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "grid.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_space(tmp_path / "grid.yaml")


def test_a_missing_file_is_named_with_a_similar_one(tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").touch()
    with pytest.raises(ConfigError, match=r"grib.yaml: no such grid file; did you mean .*grid.yaml\?"):
        read_space(tmp_path / "grib.yaml")


def test_a_range_is_sampled_within_its_ends_and_by_its_scale() -> None:
    random = Random(0)
    logarithmic = [Range(1e-4, 1, True).sample(random) for _ in range(2000)]
    assert all(1e-4 <= number <= 1 for number in logarithmic)
    assert sum(number < 1e-2 for number in logarithmic) / 2000 == pytest.approx(
        0.5, abs=0.05
    )  # the middle of 4 decades
    assert all(number == float(f"{number:.4g}") for number in logarithmic)
    linear = [Range(0.0, 1, False).sample(random) for _ in range(2000)]
    assert sum(number < 0.25 for number in linear) / 2000 == pytest.approx(0.25, abs=0.05)
    whole = {Range(1, 4, True).sample(random) for _ in range(200)}
    assert whole == {1, 2, 3, 4}
    assert all(isinstance(number, int) for number in whole)
