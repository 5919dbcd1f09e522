"""One batch in PyTorch, all of whose sequences get a token in every step."""

from collections.abc import Sequence

from gpt.cache.paged import BlockPool
from gpt.generation.backends import Backend
from gpt.generation.runners import Runner, Sampled, sample_each
from gpt.generation.scheduler import Scheduler
from gpt.generation.sequence import Chunk, SequenceState
from gpt.generation.tokens import SampledToken


class WholeBatch(Scheduler):
    """The schedule of a batch that is complete before its first step; sequences only leave it."""

    def __init__(self, pool: BlockPool) -> None:
        super().__init__(pool, 0, None)

    def add(self, sequence: SequenceState) -> None:
        self.running.append(sequence)

    def remove(self, sequence: SequenceState) -> None:
        self.running.remove(sequence)

    def schedule(self, ahead: int = 1) -> list[Chunk]:
        return [Chunk(sequence, [], ahead) for sequence in self.running]

    def store(self, chunk: Chunk, sampled: Sequence[SampledToken]) -> None:
        """Do nothing: the backend knows what it stores."""


class BatchRunner(Runner):
    """Samples from the logits of a backend, which keeps the keys and values of the batch as it likes.

    Args:
        backend: not used before.
    """

    def __init__(self, backend: Backend) -> None:
        pool = BlockPool(0, 1)
        super().__init__(pool, WholeBatch(pool))
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
