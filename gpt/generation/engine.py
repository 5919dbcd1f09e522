"""The decoding loop: requests in, step by step, chunks of text out; and a model prepared for it in PyTorch."""

from typing import NamedTuple

import torch

from gpt.data.tokenizers import Tokenizer
from gpt.generation.paged import BLOCK
from gpt.generation.paged_store import KV_DTYPES
from gpt.generation.runner import Runner, TorchRunner
from gpt.generation.scheduler import Scheduler
from gpt.generation.sequence import FinishReason, Request, SequenceState, TextChunk
from gpt.generation.tokens import not_finite
from gpt.model import GPT
from gpt.model.quantized import weights_format
from gpt.system.device import require_own_threads
from gpt.system.errors import GenerationError


class EngineStats(NamedTuple):
    """Requests in the batch and not in it yet, and cache blocks, now; then what has been counted since the start."""

    running: int
    waiting: int
    blocks_in_use: int
    blocks: int
    tokens_generated: int
    prompt_tokens_reused: int
    preemptions: int


REMEDY = "call torch.set_num_threads(1) in it before generating"
"""What helps after a fork."""
NewChunks = tuple[Request, list[TextChunk]]
"""A request and its new chunks."""


class Engine:
    """Computes the tokens of many requests, which join and leave between steps.

    The tokens of a request depend on its prompt, its parameters and its seed, not on the requests beside it.
    Without a tokenizer no text is wanted.
    """

    def __init__(
        self, runner: Runner, tokenizer: Tokenizer | None, max_sequences: int, prefill_chunk: int | None = None
    ) -> None:
        self._runner, self._tokenizer = runner, tokenizer
        self._scheduler = Scheduler(runner.pool, max_sequences, prefill_chunk)
        self._sequences: dict[Request, SequenceState] = {}
        self._tokens_generated = 0
        self._threads = torch.get_num_threads()

    @property
    def requests(self) -> list[Request]:
        return list(self._sequences)

    def stats(self) -> EngineStats:
        scheduler, pool = self._scheduler, self._runner.pool
        return EngineStats(
            len(scheduler.running),
            len(scheduler.waiting),
            pool.in_use,
            pool.blocks,
            self._tokens_generated,
            scheduler.reused_tokens,
            scheduler.preemptions,
        )

    def add(self, request: Request) -> list[NewChunks]:
        """Queue a request; return its only chunk if it asks for no tokens.

        Raises:
            GenerationError: the prompt has no token.
        """
        if not request.prompt_ids:
            raise GenerationError("a prompt needs at least one token")
        if request.params.max_new_tokens == 0:
            return [(request, [TextChunk(request.row, "", None, "length")])]
        sequence = SequenceState(request, self._tokenizer, self._runner.block_size, self._runner.pool)
        self._sequences[request] = sequence
        self._scheduler.add(sequence)
        return []

    def end(self, request: Request, finish: FinishReason) -> list[NewChunks]:
        """End a request and return its last chunk; nothing if it has ended before."""
        sequence = self._sequences.pop(request, None)
        if sequence is None:
            return []
        self._scheduler.remove(sequence)
        return [(request, [sequence.end(finish)])]

    @torch.inference_mode()
    def step(self) -> list[NewChunks]:
        """Compute one step, and return the new chunks of each request.

        Raises:
            DeviceError: this process was forked from the one that made the engine, with several threads.
        """
        require_own_threads(self._threads, REMEDY)
        runner, scheduler = self._runner, self._scheduler
        chunks = scheduler.schedule(runner.max_samples_per_call)
        sampled = runner.run(chunks) if chunks else {}
        new: list[NewChunks] = []
        for chunk in chunks:
            sequence = chunk.sequence
            tokens = sampled.get(sequence, [])
            scheduler.commit(chunk, tokens)
            if chunk.max_samples and not tokens:
                sequence.request.error = not_finite(len(sequence.tokens) - 1)
                new += self.end(sequence.request, "error")
            elif chunk.max_samples:
                texts = sequence.append(tokens)
                self._tokens_generated += len(texts)
                new.append((sequence.request, texts))
                if texts[-1].finish is not None:
                    del self._sequences[sequence.request]
                    scheduler.remove(sequence)
        return new


class Runtime:
    """A model prepared for decoding; `name` has backend, weights and cache, for messages."""

    backend = "eager"

    def __init__(self, model: GPT, kv_dtype: str = "fp32") -> None:
        self.model, self.kv_dtype = model, kv_dtype
        parts = [self.backend, f"{weights_format(model)} weights", f"{kv_dtype} cache"]
        self.name = ", ".join(part for part in parts if part != "float32 weights")

    def runner(self, sequences: int, prefill_chunk: int = 0, blocks: int | None = None) -> Runner:
        """Return a runner for at most `sequences` sequences; see `engine`."""
        require_own_threads(torch.get_num_threads(), REMEDY)
        window = -(-self.model.config.block_size // BLOCK)
        blocks = sequences * window if blocks is None else blocks
        if blocks < window:
            raise GenerationError(f"{blocks} blocks of {BLOCK} positions; one window needs {window}")
        return self._runner(sequences, prefill_chunk, blocks)

    def _runner(self, sequences: int, prefill_chunk: int, blocks: int) -> Runner:
        return TorchRunner(self.model, blocks, KV_DTYPES[self.kv_dtype])

    def engine(
        self,
        tokenizer: Tokenizer | None,
        max_sequences: int,
        prefill_chunk: int | None = None,
        blocks: int | None = None,
    ) -> Engine:
        """Return an engine for requests that join and leave; see `Scheduler`.

        Args:
            tokenizer: of the model; None: ids are wanted, and no text.
            blocks: number of blocks in the cache; None: enough for full windows of all sequences.

        Raises:
            DeviceError: this is a forked process with several threads.
            GenerationError: the blocks are too few for one window, or no sequences or tokens are allowed.
        """
        for name, value in (("max_sequences", max_sequences), ("prefill_chunk", prefill_chunk)):
            if value is not None and value < 1:
                raise GenerationError(f"{name} is {value}, expected at least 1")
        return Engine(self.runner(max_sequences, prefill_chunk or 0, blocks), tokenizer, max_sequences, prefill_chunk)
