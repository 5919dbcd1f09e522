import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.config import Config, OptimConfig
from gpt.training.schedule import fit_schedule, learning_rate, sequence_length

MAX_STEPS = 110


def optim(**changes: object) -> OptimConfig:
    return OptimConfig.model_validate({"learning_rate": 1.0, "min_lr": 0.1, "warmup_steps": 10, **changes})


@pytest.mark.parametrize(
    ("changes", "step", "expected"),
    [
        ({"schedule": "cosine"}, 10, 1.0),
        ({"schedule": "cosine"}, 35, 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2),  # a quarter of the way
        ({"schedule": "cosine"}, 60, 0.55),
        ({"schedule": "cosine"}, 85, 0.1 + 0.9 * (1 - math.sqrt(0.5)) / 2),
        ({"schedule": "cosine"}, 110, 0.1),
        ({"schedule": "cosine"}, 10_000, 0.1),
        ({"schedule": "cosine", "decay_steps": 60}, 35, 0.55),
        ({"schedule": "cosine", "decay_steps": 60}, 60, 0.1),
        ({"schedule": "cosine", "decay_steps": 60}, 109, 0.1),
        ({"schedule": "cosine", "decay_steps": 5}, 10, 1.0),  # over before the warmup is
        ({"schedule": "cosine", "decay_steps": 5}, 11, 0.1),
        ({"schedule": "cosine", "warmup_steps": 0}, 0, 1.0),
        ({"schedule": "cosine", "warmup_steps": 0}, 55, 0.55),
        ({"schedule": "wsd"}, 10, 1.0),
        ({"schedule": "wsd"}, 88, 1.0),  # the last fifth, 22 steps, decays
        ({"schedule": "wsd"}, 99, 0.55),
        ({"schedule": "wsd"}, 109, 0.1 + 0.9 / 22),
        ({"schedule": "wsd"}, 110, 0.1),
        ({"schedule": "wsd"}, 500, 0.1),
        ({"schedule": "wsd", "decay_steps": 50}, 60, 1.0),
        ({"schedule": "wsd", "decay_steps": 50}, 85, 0.55),
        ({"schedule": "wsd", "decay_steps": 1}, 109, 1.0),
        ({"schedule": "wsd", "decay_steps": 700}, 10, 1.0),  # right after the warmup
        ({"schedule": "wsd", "decay_steps": 700}, 60, 0.55),
        ({"schedule": "constant"}, 10, 1.0),
        ({"schedule": "constant"}, 10_000, 1.0),
        ({"schedule": "constant", "warmup_steps": 0}, 0, 1.0),
    ],
)
def test_values_worked_out_by_hand(changes: dict[str, object], step: int, expected: float) -> None:
    assert learning_rate(step, optim(**changes), MAX_STEPS) == pytest.approx(expected, rel=1e-12)


@given(
    schedule=st.sampled_from(["cosine", "wsd", "constant"]),
    peak=st.floats(1e-6, 10),
    share=st.floats(0, 1),
    warmup=st.integers(0, 50),
    decay=st.none() | st.integers(1, 200),
    max_steps=st.integers(1, 150),
)
def test_the_rate_stays_within_its_bounds_and_only_falls_after_the_warmup(
    schedule: str, peak: float, share: float, warmup: int, decay: int | None, max_steps: int
) -> None:
    config = optim(schedule=schedule, learning_rate=peak, min_lr=peak * share, warmup_steps=warmup, decay_steps=decay)
    rates = [learning_rate(step, config, max_steps) for step in range(max_steps + 60)]
    rounding = 1e-12 * peak
    assert all(0 < rate <= peak + rounding for rate in rates[:warmup])
    assert all(config.min_lr - rounding <= rate <= peak + rounding for rate in rates[warmup:])
    assert rates[:warmup] == sorted(rates[:warmup])
    assert all(later <= earlier + rounding for earlier, later in zip(rates[warmup:], rates[warmup + 1 :], strict=False))


def config_of(max_steps: int, **changes: object) -> Config:
    return Config.model_validate({"optim": changes, "train": {"max_steps": max_steps}})


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
@pytest.mark.parametrize(("max_steps", "warmup"), [(1, 0), (9, 0), (20, 2), (100, 10), (101, 100)])
def test_a_warmup_that_would_take_the_whole_run_is_a_tenth_of_it(schedule: str, max_steps: int, warmup: int) -> None:
    lines: list[str] = []
    fitted = fit_schedule(config_of(max_steps, schedule=schedule, warmup_steps=100), lines.append)
    assert fitted.optim.warmup_steps == warmup
    told = [f"optim.warmup_steps: {warmup} instead of 100, since train.max_steps is {max_steps}"]
    assert lines == (told if warmup < 100 else [])
    assert fit_schedule(fitted, pytest.fail) == fitted  # as where a run goes on by its own config.yaml


def test_a_decay_that_does_not_fit_is_told_as_the_schedule_shortens_it() -> None:
    lines: list[str] = []
    fitted = fit_schedule(config_of(20, schedule="wsd", warmup_steps=5, decay_steps=700), lines.append)
    assert lines == ["optim.decay_steps: 15 instead of 700, since train.max_steps is 20"]
    rates = [learning_rate(step, fitted.optim, 20) for step in range(4, 21)]
    assert rates == sorted(rates, reverse=True)
    assert (rates[0], rates[-1]) == (fitted.optim.learning_rate, fitted.optim.min_lr)
    assert len(set(rates[1:])) == 16


def test_a_constant_schedule_reaches_its_peak_too() -> None:
    config = config_of(20, schedule="constant", warmup_steps=100)
    assert learning_rate(2, fit_schedule(config, print).optim, 20) == config.optim.learning_rate


def lengths(block_size: int, max_steps: int, *shares: float) -> list[int]:
    values = {"model": {"block_size": block_size}, "train": {"max_steps": max_steps, "length_warmup": list(shares)}}
    config = Config.model_validate(values)
    return [sequence_length(step, config) for step in range(max_steps)]


def test_the_length_of_sequences_doubles_after_each_share_of_the_steps() -> None:
    assert lengths(512, 10, 0.4, 0.4) == 4 * [128] + 4 * [256] + 2 * [512]
    assert lengths(48, 7, 0.3) == 2 * [24] + 5 * [48]
    assert lengths(48, 3) == 3 * [48]


@given(shares=st.lists(st.floats(0.01, 0.24), max_size=4), max_steps=st.integers(1, 300))
def test_each_length_has_its_share_of_the_steps_to_within_one(shares: list[float], max_steps: int) -> None:
    found = lengths(128, max_steps, *shares)
    assert found == sorted(found)
    parts = [*shares, 1 - sum(shares)]
    for cut, share in zip(itertools.count(len(shares), -1), parts, strict=False):
        assert abs(found.count(128 >> cut) - share * max_steps) < 1 + 1e-9
