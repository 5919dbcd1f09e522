"""How many tokens a call samples, by the time that the calls before took."""

from gpt.generation.burst import MAX_BURST, MAX_STREAM_DELAY, Burst


def lengths(burst: Burst, count: int, seconds_per_token: float, sequences: int = 1) -> list[int]:
    """Compute some calls; return how many tokens each sampled."""
    found = []
    for _ in range(count):
        burst.begin(sequences)
        found.append(burst.length)
        burst.end(burst.length, burst.length * seconds_per_token)
    return found


def test_burst_doubles_from_one_token_to_its_limit() -> None:
    assert lengths(Burst(), 8, seconds_per_token=1e-6) == [1, 2, 4, 8, 16, 32, 64, MAX_BURST]


def test_burst_keeps_a_reader_waiting_no_longer_than_the_delay() -> None:
    assert lengths(Burst(), 6, seconds_per_token=MAX_STREAM_DELAY / 10.5) == [1, 2, 4, 8, 10, 10]
    assert lengths(Burst(), 3, seconds_per_token=2 * MAX_STREAM_DELAY) == [1, 1, 1]


def test_burst_is_shorter_for_more_sequences() -> None:
    burst = Burst()
    lengths(burst, 6, seconds_per_token=1e-6, sequences=2)
    burst.begin(sequences=8)
    assert burst.length == 64 * 2 // 8
    burst.begin(sequences=4)  # fewer may go on as they are
    assert burst.length == 64 * 2 // 8


def test_burst_survives_a_clock_that_stands_still() -> None:
    assert lengths(Burst(), 3, seconds_per_token=0.0) == [1, 2, 4]
