"""One batch in PyTorch, all of whose sequences get a token in every step."""

from collections.abc import Sequence

from gpt.cache.paged import BlockPool
from gpt.generation.backends import Backend
from gpt.generation.runners import Runner, Sampled, sample_each
from gpt.generation.scheduler import Schedule
from gpt.generation.sequence import Chunk, SequenceState


class BatchRunner(Runner):
    """Samples from the logits of a new backend, which keeps the keys and values of the batch as it likes."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(BlockPool(0, 1), Schedule())
        self._backend, self._sequences = backend, list[SequenceState]()

    @property
    def cache_bytes(self) -> int:
        return self._backend.cache_bytes

    def run(self, chunks: Sequence[Chunk]) -> Sampled:
        sequences = [chunk.sequence for chunk in chunks]
        if len(sequences) < len(self._sequences):
            self._backend.select([self._sequences.index(sequence) for sequence in sequences])
        self._sequences = sequences
        return sample_each(sequences, self._backend.next_logits([sequence.tokens for sequence in sequences]))
