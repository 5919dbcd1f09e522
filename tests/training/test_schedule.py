import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.config import OptimConfig
from gpt.training.schedule import learning_rate

MAX_STEPS = 110


def optim(**changes: object) -> OptimConfig:
    return OptimConfig.model_validate({"learning_rate": 1.0, "min_lr": 0.1, "warmup_steps": 10, **changes})


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "constant"])
def test_warmup_climbs_in_equal_steps_and_reaches_the_peak_on_its_last(schedule: str) -> None:
    config = optim(schedule=schedule)
    rates = [learning_rate(step, config, MAX_STEPS) for step in range(10)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])


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
        ({"schedule": "constant"}, 10, 1.0),
        ({"schedule": "constant"}, 10_000, 1.0),
        ({"schedule": "constant", "warmup_steps": 0}, 0, 1.0),
    ],
)
def test_values_worked_out_by_hand(changes: dict[str, object], step: int, expected: float) -> None:
    assert learning_rate(step, optim(**changes), MAX_STEPS) == pytest.approx(expected, rel=1e-12)


def test_wsd_of_fewer_than_five_steps_decays_in_the_last() -> None:
    config = optim(schedule="wsd", warmup_steps=0)
    assert [learning_rate(step, config, 3) for step in range(4)] == pytest.approx([1.0, 1.0, 1.0, 0.1])


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


def test_a_decay_longer_than_what_follows_the_warmup_begins_right_after_it() -> None:
    config = OptimConfig(learning_rate=1.0, min_lr=0.0, schedule="wsd", warmup_steps=50, decay_steps=700)
    rates = [learning_rate(step, config, 500) for step in (49, 50, 275, 500)]
    assert rates == pytest.approx([1.0, 1.0, 0.5, 0.0])
