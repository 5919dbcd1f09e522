"""The core of the engine, without threads: requests in, step by step, pieces out."""

from typing import NamedTuple

import torch

from gpt.cache.paged import BlockPool
from gpt.data.tokenizers import Tokenizer
from gpt.generation import Piece
from gpt.generation.decoder import not_finite
from gpt.generation.output import Finish
from gpt.kernels.decoding.layout import BLOCK
from gpt.serving.model_runner import Runner
from gpt.serving.request import Request
from gpt.serving.scheduler import Scheduler
from gpt.serving.sequence import Sequence


class EngineStats(NamedTuple):
    """What an engine is doing and has done.

    Attributes:
        running: number of sequences in the batch.
        waiting: number of requests not in the batch yet.
        blocks_in_use: cache blocks in use.
        blocks: cache blocks in total.
        tokens_generated: number of tokens sampled so far.
        prompt_tokens_reused: prompt tokens found in the cache, so far.
        preemptions: number of preemptions so far.
    """

    running: int
    waiting: int
    blocks_in_use: int
    blocks: int
    tokens_generated: int
    prompt_tokens_reused: int
    preemptions: int


Delivery = tuple[Request, list[Piece]]
"""A request and its new pieces."""


class EngineCore:
    """Computes the tokens of many requests, which join and leave between steps.

    Args:
        runner: computes steps.
        tokenizer: the model's tokenizer.
        block_size: the model's context length.
        max_sequences: most sequences in the running batch.
        prefill_chunk: most prompt tokens computed in a step.
    """

    def __init__(
        self, runner: Runner, tokenizer: Tokenizer, block_size: int, max_sequences: int, prefill_chunk: int
    ) -> None:
        self._runner, self._tokenizer, self._block_size = runner, tokenizer, block_size
        self._pool = BlockPool(runner.blocks, BLOCK)
        self._scheduler = Scheduler(self._pool, max_sequences, prefill_chunk)
        self._sequences: dict[Request, Sequence] = {}
        self._tokens_generated = 0

    @property
    def requests(self) -> list[Request]:
        """Return the number of requests that have not ended."""
        return list(self._sequences)

    def stats(self) -> EngineStats:
        """Return the current statistics."""
        scheduler = self._scheduler
        return EngineStats(
            len(scheduler.running),
            len(scheduler.waiting),
            self._pool.in_use,
            self._runner.blocks,
            self._tokens_generated,
            scheduler.reused_tokens,
            scheduler.preemptions,
        )

    def add(self, request: Request) -> list[Delivery]:
        """Queue a request; return its only piece if it asks for no tokens."""
        if request.params.max_new_tokens == 0:
            return [(request, [Piece(0, "", None, "length")])]
        sequence = Sequence(request, self._tokenizer, self._block_size, self._pool)
        self._sequences[request] = sequence
        self._scheduler.add(sequence)
        return []

    def end(self, request: Request, finish: Finish) -> list[Delivery]:
        """End a request and return its last piece, or None if it has ended before."""
        sequence = self._sequences.pop(request, None)
        if sequence is None:
            return []
        self._scheduler.remove(sequence)
        return [(request, [sequence.end(finish)])]

    @torch.inference_mode()
    def step(self) -> list[Delivery]:
        """Compute one step, and return the new pieces of each request."""
        chunks = self._scheduler.schedule()
        sampled = self._runner.run(chunks) if chunks else {}
        delivered: list[Delivery] = []
        for chunk in chunks:
            self._scheduler.store(chunk)
            if not chunk.samples:
                continue
            request, token = chunk.sequence.request, sampled[chunk.sequence]
            if token is None:
                request.error = not_finite(len(chunk.sequence.tokens) - 1)
                delivered += self.end(request, "error")
                continue
            self._tokens_generated += 1
            piece = chunk.sequence.append(token)
            delivered.append((request, [piece]))
            if piece.finish is not None:
                del self._sequences[request]
                self._scheduler.remove(chunk.sequence)
        return delivered
