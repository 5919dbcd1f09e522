"""How many tokens a call of a runner samples before it returns."""

MAX_STREAM_DELAY = 0.03
"""Seconds that a sampled token may wait until it is shown: readers do not notice such a delay."""
MAX_BURST = 64
"""Largest number of tokens in a call: a call itself costs little beside 64 tokens."""
SHORTEST_TIME = 1e-9
"""Least seconds of a call. A coarse clock may measure 0, by which nothing can be divided."""


class Burst:
    """The number of tokens that a call samples after each sequence.

    A call that samples several tokens saves the time between calls, but shows none before the last
    one. The first call samples one token, and each later one twice as many as the one before, as
    long as that takes no longer than `MAX_STREAM_DELAY`.

    Attributes:
        length: number of tokens that the next call samples after each sequence.
    """

    def __init__(self) -> None:
        self.length = 1
        self._sequences = 0

    def begin(self, sequences: int) -> None:
        """Shorten the next call if it has more sequences than the last one.

        More sequences take more time a token, up to as many times as there are more of them.
        """
        if sequences > self._sequences:
            self.length = max(1, self.length * self._sequences // sequences)
        self._sequences = sequences

    def end(self, tokens: int, seconds: float) -> None:
        """Set the length of the next call by the time of one that sampled `tokens`."""
        per_token = max(seconds, SHORTEST_TIME) / tokens
        tokens_in_time = int(MAX_STREAM_DELAY / per_token)
        self.length = max(1, min(2 * self.length, MAX_BURST, tokens_in_time))
