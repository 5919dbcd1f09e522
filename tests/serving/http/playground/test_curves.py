"""Curves from a metrics file that is long, growing, damaged or missing."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from gpt.serving.http.playground.curves import TAIL_BYTES, last_progress, read_curves


def training_line(step: int, loss: float | None = 2.0) -> str:
    row = {"step": step, "train/loss": loss, "train/learning_rate": 1e-3, "train/grad_norm": 0.5}
    return json.dumps({**row, "speed/tokens_per_second": 1e4, "speed/mfu": 0.2, "speed/seconds": step / 4}) + "\n"


def validation_line(step: int) -> str:
    return json.dumps({"step": step, "val/loss": 1.5, "val/bits_per_char": 2.2, "speed/seconds": step / 4}) + "\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_each_curve_has_its_columns(file: Path) -> None:
    file.write_text(training_line(10) + training_line(20) + validation_line(20))
    curves = read_curves(file)
    assert curves.training == {
        "step": [10, 20],
        "loss": [2.0, 2.0],
        "learning_rate": [1e-3, 1e-3],
        "tokens_per_second": [1e4, 1e4],
        "seconds": [2.5, 5.0],
    }
    assert curves.validation == {"step": [20], "loss": [1.5], "bits_per_char": [2.2], "seconds": [5.0]}
    assert (curves.every, curves.last_step) == (1, 20)


def test_a_long_curve_is_thinned_and_keeps_its_last_point(file: Path) -> None:
    count = 2500
    file.write_text("".join(training_line(step) + validation_line(step) for step in range(1, count + 1)))
    curves = read_curves(file, most=100)
    for columns in (curves.training, curves.validation):
        assert len(columns["step"]) == 101
        assert columns["step"][:2] == [1, 26]
        assert columns["step"][-1] == count
    assert curves.every == 25


@pytest.mark.parametrize("lines", [20, 5000])
@pytest.mark.parametrize("after", [-1, 0, 7, 19, 20, 4990, 10**12])
def test_only_later_points_come_where_they_are_asked_for(file: Path, lines: int, after: int) -> None:
    file.write_text("".join(training_line(step) for step in range(lines)))
    assert lines < 1000 or file.stat().st_size > 4 * TAIL_BYTES
    curves = read_curves(file, after, most=10_000)
    assert curves.training["step"] == list(range(max(0, after + 1), lines))
    assert curves.last_step == lines - 1


def test_what_is_followed_piece_by_piece_is_the_whole(file: Path) -> None:
    steps: list[Any] = []
    content = "".join(map(training_line, range(60)))
    for end in range(0, len(content) + 500, 500):
        file.write_text(content[:end])
        steps += read_curves(file, steps[-1] if steps else -1).training["step"]
    assert steps == list(range(60))


def test_damaged_lines_are_left_out_and_what_was_not_finite_has_no_value(file: Path) -> None:
    damaged = ['{"step": 3, "train/loss": }\n', "[" * 100_000 + "\n", '{"train/loss": 2}\n', "\n", '"step"\n']
    file.write_text(training_line(1) + "".join(damaged) + training_line(4, None) + '{"step": 5, "train/loss": 1')
    curves = read_curves(file)
    assert curves.training["step"] == [1, 4]
    assert curves.training["loss"] == [2.0, None]
    file.write_text('{"step": 6, "train/loss": NaN, "speed/seconds": 1e999}\n')
    assert read_curves(file).training["loss"] == [None]
    assert last_progress(file) is None


def test_a_run_that_has_not_reported_has_no_points(file: Path) -> None:
    for _ in range(2):
        curves = read_curves(file)
        assert (curves.training["step"], curves.validation["step"], curves.last_step) == ([], [], None)
        assert last_progress(file) is None
        file.touch()


def test_progress_is_that_of_the_last_line_with_a_time(file: Path) -> None:
    file.write_text(
        "".join(training_line(step) for step in range(5000)) + validation_line(4999) + training_line(6000)[:-1]
    )
    step, seconds = last_progress(file) or (0, math.nan)
    assert (step, seconds) == (4999, 4999 / 4)
