from collections.abc import Iterator

from gpt.cli.throughput import Meter
from gpt.generation import SampledToken, TextChunk


def test_the_rate_counts_the_tokens_after_the_first_step_in_the_time_after_it() -> None:
    ticks = iter([10.0, 12.0, 12.0, 13.0, 14.0])  # start, two tokens of the first step, two of the second
    meter = Meter(sequences=2, clock=lambda: next(ticks))

    def pieces() -> Iterator[TextChunk]:
        for _ in range(2):
            for row in range(2):
                yield TextChunk(row, "x", SampledToken(1), None)

    assert len(list(meter.watch(pieces()))) == 4
    meter.cache_bytes = 1000
    assert str(meter) == "4 tokens; first after 2000.0 ms, then 1 tokens/s; cache 1,000 bytes"
