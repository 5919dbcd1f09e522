"""The decoding loop: requests in, step by step, chunks of text out."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from gpt.data.tokenizers import Tokenizer
from gpt.generation.runner import NOT_FINITE, Runner
from gpt.generation.scheduler import Scheduler
from gpt.generation.sequence import FinishReason, Request, SequenceState, TextChunk
from gpt.generation.tokens import SampledToken, not_finite
from gpt.system.device import require_own_threads
from gpt.system.errors import GenerationError

FORK_HINT = "call torch.set_num_threads(1) in it before generating"
"""What a forked process has to do before it generates, since it has no threads of its parent."""


class EngineStats(NamedTuple):
    """The numbers of requests and cache blocks now, and what has been counted since the start."""

    running: int
    waiting: int
    blocks_in_use: int
    blocks: int
    tokens_generated: int
    prompt_tokens_reused: int
    preemptions: int


NewChunks = tuple[Request, list[TextChunk]]
"""A request and its new chunks."""


class Engine:
    """Computes the tokens of many requests, which join and leave between steps.

    The tokens of a request depend on its prompt, its parameters and its seed, not on the requests
    beside it.

    Args:
        tokenizer: None if only token ids are wanted.
        max_sequences: how many sequences are computed at a time; other requests wait.
        prefill_chunk: how many tokens of prompts a step computes at most; None means no limit.
    """

    def __init__(
        self,
        runner: Runner,
        tokenizer: Tokenizer | None,
        max_sequences: int,
        prefill_chunk: int | None = None,
    ) -> None:
        self._runner = runner
        self._tokenizer = tokenizer
        self._scheduler = Scheduler(runner.pool, max_sequences, prefill_chunk)
        self._sequences: dict[Request, SequenceState] = {}
        self._tokens_generated = 0
        # By this number `step` refuses a process that was forked later: the threads of torch do not
        # survive a fork.
        self._threads = torch.get_num_threads()

    @property
    def requests(self) -> list[Request]:
        return list(self._sequences)

    def stats(self) -> EngineStats:
        """Return the present numbers, as the server shows them."""
        pool = self._runner.pool
        return EngineStats(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            blocks_in_use=pool.in_use,
            blocks=pool.blocks,
            tokens_generated=self._tokens_generated,
            prompt_tokens_reused=self._scheduler.reused_tokens,
            preemptions=self._scheduler.preemptions,
        )

    def add(self, request: Request) -> list[NewChunks]:
        """Queue a request; return its only chunk if it asks for no tokens, else nothing yet.

        Raises:
            GenerationError: the prompt has no token.
        """
        if not request.prompt_ids:
            raise GenerationError("a prompt needs at least one token")
        if request.params.max_new_tokens == 0:
            chunk = TextChunk(request.row, text="", token=None, finish="length")
            return [(request, [chunk])]
        runner = self._runner
        sequence = SequenceState(request, self._tokenizer, runner.block_size, runner.pool)
        self._sequences[request] = sequence
        self._scheduler.add(sequence)
        return []

    def end(self, request: Request, finish: FinishReason) -> list[NewChunks]:
        """End a request and return its last chunk; return no chunk if it has ended before."""
        sequence = self._sequences.pop(request, None)
        if sequence is None:
            return []
        self._scheduler.remove(sequence)
        return [(request, [sequence.end(finish)])]

    @torch.inference_mode()
    def step(self) -> list[NewChunks]:
        """Compute one step, and return the new chunks of each request.

        Raises:
            DeviceError: this process was forked from the one that made the engine, with several
                threads.
        """
        # A forked child has one thread of its parent's pool, and would wait for the others forever.
        require_own_threads(self._threads, FORK_HINT)
        work = self._scheduler.schedule(self._runner.max_samples_per_call)
        if not work:
            return []
        sampled = self._runner.run(work)
        new_chunks: list[NewChunks] = []
        for item in work:
            # A part of a prompt is only stored, and nothing is sampled after it.
            tokens = sampled.get(item.sequence, [])
            self._scheduler.commit(item, tokens)
            if item.max_samples > 0:
                new_chunks += self._append(item.sequence, tokens)
        return new_chunks

    def _append(self, sequence: SequenceState, tokens: Sequence[SampledToken]) -> list[NewChunks]:
        """Add sampled tokens to a sequence, and return its new chunks.

        A sequence that ends with these tokens leaves the engine.
        """
        request = sequence.request
        if tokens == NOT_FINITE:  # no token, since its logits are not finite
            # Only this request fails: the logits of the others do not depend on it.
            request.error = not_finite(position=len(sequence.tokens) - 1)
            return self.end(request, "error")
        chunks = sequence.append(tokens)
        self._tokens_generated += len(chunks)
        if chunks[-1].finish is not None:
            del self._sequences[request]
            self._scheduler.remove(sequence)
        return [(request, chunks)]
