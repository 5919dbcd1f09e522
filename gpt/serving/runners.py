"""What computes a step: the native engine, or PyTorch."""

from collections.abc import Sequence as Items
from typing import Protocol

import torch
from torch import Tensor

from gpt.errors import GenerationError
from gpt.generation import SampledToken
from gpt.generation.backends.native import prepare
from gpt.generation.decoder import describe
from gpt.kernels.decoding.engine import Engine
from gpt.kernels.decoding.layout import BLOCK
from gpt.kernels.decoding.structures import CSample, sample_in_c, sampling_in_c
from gpt.model import GPT
from gpt.report import silent
from gpt.serving.sequence import Chunk, Sequence
from gpt.settings import read_settings


class Runner(Protocol):
    """Computes steps; the keys and values lie in blocks, of which each sequence has a table."""

    blocks: int
    """There are."""

    def run(self, chunks: Items[Chunk]) -> list[SampledToken | None]:
        """Store the keys and values of each chunk's tokens, and sample after those that say so.

        Returns:
            A token for each chunk that samples, None where logits are not finite.
        """
        ...


class NativeRunner:
    """Computes a step in one call of the native engine.

    Args:
        engine: with a row for each running sequence, and room for all tokens of a step.
    """

    def __init__(self, engine: Engine, vocab_size: int) -> None:
        self._engine, self._vocab_size, self.blocks = engine, vocab_size, engine.blocks

    def run(self, chunks: Items[Chunk]) -> list[SampledToken | None]:
        tokens: list[int] = []
        rows: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        for sequence, new, is_sampled in chunks:
            self._engine.set_blocks(sequence.row, sequence.table.blocks)
            tokens += new
            rows += [sequence.row] * len(new)
            positions += range(sequence.stored, sequence.stored + len(new))
            if is_sampled:
                wanted.append(len(tokens) - 1)
        sampling = [chunk.sequence for chunk in chunks if chunk.samples]
        logits = [self._logits(sequence) for sequence in sampling]
        seen = [self._seen(sequence) for sequence in sampling]  # both stay alive until the call is over
        samples = list(map(_sample, sampling, seen, logits))
        sampled = self._engine.step(tokens, rows, positions, wanted, samples)
        return [
            None
            if token < 0
            else describe([token], None if row is None else row.unsqueeze(0), sequence.params.logprobs)[0]
            for sequence, token, row in zip(sampling, sampled, logits, strict=True)
        ]

    def _logits(self, sequence: Sequence) -> Tensor | None:
        """Return memory for the logits of a sequence that wants their logarithms."""
        return None if sequence.params.logprobs is None else torch.empty(self._vocab_size)

    def _seen(self, sequence: Sequence) -> Tensor | None:
        """Return which tokens a sequence has, (V,), for the repetition penalty; None where there is none."""
        if sequence.params.repetition_penalty == 1.0:
            return None
        seen = torch.zeros(self._vocab_size, dtype=torch.uint8)
        seen[list(set(sequence.tokens))] = 1
        return seen


def build_runner(model: GPT, backend: str, max_sequences: int, prefill_chunk: int, blocks: int | None) -> Runner:
    """Return what computes steps of a model.

    Args:
        model: on the CPU for the native engine.
        backend: "native", "eager", or "auto": native where it is available.
        max_sequences: that run at a time.
        prefill_chunk: most tokens of a step besides one of each sequence.
        blocks: of the cache; None: as many as full windows of all sequences need.

    Raises:
        DeviceError: the native engine was asked for, and is not available.
        GenerationError: there is no such backend, or the blocks do not suffice for one window.
    """
    window = -(-model.config.block_size // BLOCK)
    if blocks is not None and blocks < window:
        raise GenerationError(f"{blocks} blocks of {BLOCK} positions; one window needs {window}")
    prepared = prepare(model, read_settings(), silent)
    engine = Engine(
        prepared.library,
        prepared.weights,
        max_sequences,
        tokens_per_sequence=1 + -(-prefill_chunk // max_sequences),
        blocks=blocks,
    )
    return NativeRunner(engine, model.vocab_size)


def _sample(sequence: Sequence, seen: Tensor | None, logits: Tensor | None) -> CSample:
    return sample_in_c(sampling_in_c(sequence.params), sequence.random.peek(1)[0], seen, logits)
