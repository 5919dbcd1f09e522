import pytest

from gpt.training.throughput import SpeedMeter


class Clock:
    """Shows what it was set to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_speed_is_of_the_steps_since_the_last_reading_or_restart_and_seconds_of_the_whole_run() -> None:
    """1000 tokens and 5000 FLOPs a step (4000 in sequences of 8), on a machine of 20,000 FLOP/s, 50 s into its run."""
    clock = Clock()
    meter = SpeedMeter(1000, {16: 5000, 8: 4000}.__getitem__, lambda: 20_000.0, lambda: 7, clock)
    meter.start(seconds_before=50.0)
    assert meter.total_seconds == 50.0
    for steps, seconds, tokens, mfu in ((4, 2, 2000.0, 0.5), (1, 4, 250.0, 0.0625), (0, 0, 0.0, 0.0)):
        for _ in range(steps):
            meter.count_step(16)
        clock.now += seconds
        total = clock.now - 50.0
        assert meter.read() == {
            "speed/tokens_per_second": tokens,
            "speed/mfu": mfu,
            "speed/memory_bytes": 7,
            "speed/seconds": pytest.approx(total),
        }
    meter.count_step(16)
    clock.now += 1000
    meter.restart()
    meter.count_step(16)
    meter.count_step(8)
    clock.now += 1
    read = meter.read()
    assert (read["speed/tokens_per_second"], read["speed/mfu"]) == (2000.0, 0.45)
    assert meter.total_seconds == clock.now - 50.0
    meter.count_step(16)
    assert meter.read()["speed/tokens_per_second"] > 0  # also where no time has passed
