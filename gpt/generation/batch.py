"""A batch of prompts in, chunks of tokens and text out."""

from collections import deque
from collections.abc import Iterator, Sequence

from gpt.config import SamplingParams
from gpt.config.ranges import SEEDS
from gpt.data.tokenizers import Tokenizer
from gpt.generation.runtime import Runtime
from gpt.generation.sequence import Request, TextChunk
from gpt.generation.text import check_ids, encode_prompts
from gpt.generation.tokens import TokenIds
from gpt.system.errors import GenerationError


class Batch:
    """A batch of sequences; each step returns a chunk of every sequence that has not ended.

    Attributes:
        active: rows that have not ended.

    Args:
        prompts: token ids, at least one for each prompt.
        seeds: a seed for each prompt, instead of `params.seed`.
        tokenizer: the tokenizer of the model; None if only token ids are wanted.

    Raises:
        GenerationError: a prompt is empty.
        InputError: an id is outside the vocabulary.
    """

    def __init__(
        self,
        runtime: Runtime,
        prompts: Sequence[TokenIds],
        params: SamplingParams,
        seeds: Sequence[int],
        tokenizer: Tokenizer | None = None,
    ) -> None:
        for ids in prompts:
            check_ids(ids, runtime.model.vocab_size)
        self.active = list(range(len(prompts)))
        # A step of the engine may return several chunks of a row, but `step` returns one at a time.
        self._queues: list[deque[TextChunk]] = [deque() for _ in prompts]
        # All prompts run at once. Without prompts there is nothing to run, but an engine must have
        # room for at least one sequence.
        self._engine = runtime.engine(tokenizer, max_sequences=max(1, len(prompts)))
        self._requests: list[Request] = []
        for row, (ids, seed) in enumerate(zip(prompts, seeds, strict=True)):
            seeded = params.model_copy(update={"seed": seed})
            request = Request(list(ids), seeded, row=row)
            self._requests.append(request)
            # `add` returns pairs of a request, which is this one, and its chunks. There are chunks
            # only of a request for no tokens, which ends at once.
            for _, chunks in self._engine.add(request):
                self._queues[row] += chunks

    def step(self) -> dict[int, TextChunk]:
        """Return the next chunk of every request that has not ended, by its row.

        Raises:
            GenerationError: the model's logits are not finite.
        """
        # A call returns one chunk of every active row, so the engine runs until each row has one.
        while not all(self._queues[row] for row in self.active):
            for request, new_chunks in self._engine.step():
                self._queues[request.row] += new_chunks
        chunks = {row: self._queues[row].popleft() for row in self.active}
        ended = [row for row, chunk in chunks.items() if chunk.finish is not None]
        if ended:
            self.active = [row for row in self.active if row not in ended]
        for row in ended:
            error = self._requests[row].error
            if error is not None:
                # The batch fails as a whole, and gives no more chunks.
                self.active = []
                raise error
        return chunks

    def __iter__(self) -> Iterator[TextChunk]:
        """Yield all chunks as they come, once."""
        while self.active:
            yield from self.step().values()


BATCH_SIZE = 64
"""Largest number of sequences in a batch: more need memory, and hardly raise the throughput."""


class TextBatch(Batch):
    """Texts after several prompts, generated as one batch.

    Args:
        prompts: texts of at most `block_size` tokens each, unless `params.long_prompt` crops them.
        seeds: a seed for each prompt; None means `params.seed` for all.

    Raises:
        DataError: a prompt has characters outside the vocabulary.
        GenerationError: a prompt is too long and `params.long_prompt` is refuse, a seed is out of
            its range, or the logits are not finite, which is found in the iteration.
    """

    def __init__(
        self,
        runtime: Runtime,
        tokenizer: Tokenizer,
        prompts: Sequence[str],
        params: SamplingParams,
        seeds: Sequence[int] | None = None,
    ) -> None:
        # A model's vocabulary may be larger than the tokenizer's. The additional ids have no text,
        # and are not sampled.
        params = params.limited_to(tokenizer.vocab_size)
        ids = encode_prompts(tokenizer, prompts, params, runtime.model.config.block_size)
        if seeds is None:
            seeds = [params.seed] * len(ids)
        if len(seeds) != len(ids):
            raise GenerationError(f"{len(seeds)} seeds for {len(ids)} prompts; give one each")
        # `params.seed` was checked on construction, but other seeds come from the caller.
        for seed in seeds:
            if not 0 <= seed < SEEDS:  # 2^32
                raise GenerationError(f"seed {seed}: expected at least 0 and less than 2^32")
        super().__init__(runtime, ids, params, seeds, tokenizer)


def sample_texts(
    runtime: Runtime,
    tokenizer: Tokenizer,
    prompt: str,
    params: SamplingParams,
    seeds: Sequence[int],
) -> Iterator[str]:
    """Yield the text that follows a prompt for each seed, in batches of `BATCH_SIZE`.

    A batch is computed when its first text is asked for.
    """
    for first in range(0, len(seeds), BATCH_SIZE):
        batch_seeds = seeds[first : first + BATCH_SIZE]
        prompts = [prompt] * len(batch_seeds)
        texts = [""] * len(batch_seeds)
        for chunk in TextBatch(runtime, tokenizer, prompts, params, batch_seeds):
            texts[chunk.row] += chunk.text
        yield from texts
