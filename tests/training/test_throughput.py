import pytest

from gpt.training.throughput import SpeedMeter


class Clock:
    """Shows what it was set to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def meter(clock: Clock) -> SpeedMeter:
    """1000 tokens and 5000 FLOPs a step, on a machine of 20,000 FLOP/s, 50 s into its run."""
    meter = SpeedMeter(1000, 5000, lambda: 20_000.0, lambda: 7, clock)
    meter.start(seconds_before=50.0)
    return meter


def speed(meter: SpeedMeter) -> tuple[float, float]:
    """Tokens per second, and MFU."""
    found = meter.read()
    assert found["speed/memory_bytes"] == 7
    return found["speed/tokens_per_second"], found["speed/mfu"]


def test_a_reading_is_of_the_steps_since_the_last_one(meter: SpeedMeter, clock: Clock) -> None:
    for _ in range(4):
        meter.count_step()
    clock.now += 2
    assert speed(meter) == (2000.0, 0.5)
    meter.count_step()
    clock.now += 4
    assert speed(meter) == (250.0, 0.0625)


def test_what_is_done_before_a_restart_does_not_count(meter: SpeedMeter, clock: Clock) -> None:
    meter.count_step()
    clock.now += 1000
    meter.restart()
    meter.count_step()
    clock.now += 1
    assert speed(meter)[0] == 1000.0


def test_total_seconds_go_on_over_restarts_and_resumes(meter: SpeedMeter, clock: Clock) -> None:
    assert meter.total_seconds == 50.0
    clock.now += 3
    meter.restart()
    clock.now += 4
    meter.read()
    assert meter.total_seconds == 57.0


def test_without_steps_or_time_the_speed_is_a_number(meter: SpeedMeter) -> None:
    assert speed(meter) == (0.0, 0.0)
    meter.count_step()
    assert speed(meter)[0] > 0
