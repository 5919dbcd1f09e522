"""Runners, which compute the steps of a batch: by the native engine, or in PyTorch."""

from collections.abc import Sequence as Items
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gpt.cache import KV_DTYPES
from gpt.cache.paged_store import PagedStore
from gpt.environment import read_settings
from gpt.errors import DeviceError, GenerationError
from gpt.generation import DecodeOptions, SampledToken
from gpt.generation.backends.native import Prepared, prepare
from gpt.generation.decoder import describe
from gpt.generation.sampling import next_token_probabilities, sample
from gpt.kernels.decoding.c_structs import CSample, sample_in_c, sampling_in_c
from gpt.kernels.decoding.engine import Engine
from gpt.kernels.decoding.layout import BLOCK
from gpt.model import GPT, eval_mode
from gpt.progress import Report
from gpt.serving.sequence import Chunk, Sequence

BACKENDS = ("auto", "native", "eager")
Sampled = dict[Sequence, SampledToken | None]
"""The token of each sampled sequence; None if its logits are not finite."""


class Runner(Protocol):
    """Computes steps; keys and values are stored in blocks, of which each sequence has a table.

    Attributes:
        blocks: number of blocks in the cache.
    """

    blocks: int

    def run(self, chunks: Items[Chunk]) -> Sampled:
        """Store the keys and values of each chunk's tokens, and sample after chunks with `samples`."""
        ...


class NativeRunner:
    """Computes a step in one call of the native engine.

    What the engine cannot sample by, see `Prepared.why_not_sample`, is sampled in PyTorch from the engine's logits.

    Args:
        engine: must have a sequence for each running one, and room for all tokens of a step.
        prepared: what the engine was made from.
        report: receives a line when a request is the first that PyTorch samples for a reason.
    """

    def __init__(self, engine: Engine, prepared: Prepared, report: Report) -> None:
        self._engine, self._prepared, self.blocks = engine, prepared, engine.blocks
        self._report, self._reported = report, set[str | None]([None])
        self._vocab_size = prepared.weights.head.outputs
        self._in_pytorch: WeakKeyDictionary[Sequence, bool] = WeakKeyDictionary()

    def run(self, chunks: Items[Chunk]) -> Sampled:
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
        sequences = [chunk.sequence for chunk in chunks if chunk.samples]
        logits = [self._logits(sequence) for sequence in sequences]
        seen = [self._seen(sequence) for sequence in sequences]  # both stay alive until the call is over
        sampled = self._engine.step(tokens, rows, positions, wanted, list(map(_arguments, sequences, seen, logits)))
        return {
            sequence: self._sampled(sequence, token, row)
            for sequence, token, row in zip(sequences, sampled, logits, strict=True)
        }

    def _sampled(self, sequence: Sequence, token: int, logits: Tensor | None) -> SampledToken | None:
        if logits is not None and self._in_pytorch[sequence]:
            return _sample(sequence, logits.unsqueeze(0))
        return None if token < 0 else _describe(sequence, token, logits)

    def _logits(self, sequence: Sequence) -> Tensor | None:
        """Return memory for the logits of a sequence if PyTorch samples from them or describes them."""
        if sequence not in self._in_pytorch:
            reason = self._prepared.why_not_sample(sequence.params)
            self._in_pytorch[sequence] = reason is not None
            if reason not in self._reported:
                self._report(f"sampling with PyTorch's operators: {reason}")
                self._reported.add(reason)
        needed = self._in_pytorch[sequence] or sequence.params.logprobs is not None
        return torch.empty(self._vocab_size, dtype=torch.float32) if needed else None

    def _seen(self, sequence: Sequence) -> Tensor | None:
        """Return which tokens a sequence has, (V,), for the repetition penalty; None where there is none."""
        if sequence.params.repetition_penalty == 1.0:
            return None
        seen = torch.zeros(self._vocab_size, dtype=torch.uint8)
        seen[list(set(sequence.tokens))] = 1
        return seen


class EagerRunner:
    """Computes a step in PyTorch: all sequences that need one token as one batch, each longer chunk by itself.

    The reference, and the runner on a GPU. Logits depend on the rest of the batch by rounding only.

    Args:
        model: on any device.
        blocks: number of blocks in the cache.
        dtype: type of keys and values.
    """

    def __init__(self, model: GPT, blocks: int, dtype: torch.dtype = torch.float32) -> None:
        self._model, self.blocks = model, blocks
        self._store = PagedStore(model.config, blocks, BLOCK, dtype, next(model.parameters()).device)

    def run(self, chunks: Items[Chunk]) -> Sampled:
        short = [chunk for chunk in chunks if len(chunk.tokens) == 1]
        batches = [[chunk] for chunk in chunks if len(chunk.tokens) > 1]
        sampled: Sampled = {}
        with eval_mode(self._model):
            for batch in [*batches, short] if short else batches:
                for chunk, logits in zip(batch, self._forward(batch), strict=True):
                    if chunk.samples:
                        sampled[chunk.sequence] = _sample(chunk.sequence, logits[-1:])
        return sampled

    def _forward(self, batch: Items[Chunk]) -> Tensor:
        """Return the logits (B, T, V) after the tokens of chunks of equal length."""
        idx = torch.tensor([chunk.tokens for chunk in batch], device=self._store.device)
        tables = [chunk.sequence.table.blocks for chunk in batch]
        cache = self._store.view(tables, [chunk.sequence.stored for chunk in batch], idx.size(1))
        logits: Tensor = self._model(idx, cache=cache)
        return logits


def build_runner(
    model: GPT,
    backend: str,
    max_sequences: int,
    prefill_chunk: int,
    blocks: int | None,
    report: Report,
    kv_dtype: str = "fp32",
) -> Runner:
    """Return a runner for a model.

    Args:
        model: must be on the CPU for the native engine.
        backend: "native", "eager", or "auto": native where it is available.
        max_sequences: most sequences in the running batch.
        prefill_chunk: most tokens in a step besides one of each sequence.
        blocks: number of blocks in the cache; None: enough for full windows of all sequences.
        report: receives a line when something is compiled.
        kv_dtype: type of keys and values: fp32, bf16, int8 in the native engine, fp16 in PyTorch.

    Raises:
        DeviceError: the native engine was asked for, and is not available.
        GenerationError: there is no such backend or cache, or the blocks are too few for one window.
    """
    window = -(-model.config.block_size // BLOCK)
    blocks = max_sequences * window if blocks is None else blocks
    if blocks < window:
        raise GenerationError(f"{blocks} blocks of {BLOCK} positions; one window needs {window}")
    if backend not in BACKENDS:
        raise GenerationError(f"backend {backend!r}: expected one of {', '.join(BACKENDS)}")
    options = DecodeOptions(backend, kv_dtype=kv_dtype)
    if backend == "eager" or options.needs_eager:
        return _eager_runner(model, blocks, kv_dtype)
    try:
        prepared = prepare(model, read_settings(), report)
    except DeviceError as error:
        if backend == "native":
            raise
        if next(model.parameters()).device.type == "cpu":
            report(f"no native backend, which is several times faster: {error}")
        return _eager_runner(model, blocks, kv_dtype)
    tokens = 1 + -(-prefill_chunk // max_sequences)  # of each sequence
    engine = Engine(prepared.library, prepared.weights, max_sequences, tokens, kv_dtype, blocks)
    return NativeRunner(engine, prepared, report)


def _eager_runner(model: GPT, blocks: int, kv_dtype: str) -> EagerRunner:
    if kv_dtype == "int8":
        raise GenerationError("only the native backend serves from a cache of int8; take kv_dtype fp32, bf16 or fp16")
    return EagerRunner(model, blocks, KV_DTYPES[kv_dtype])


def _arguments(sequence: Sequence, seen: Tensor | None, logits: Tensor | None) -> CSample:
    """Return the arguments for sampling the next token of a sequence."""
    return sample_in_c(sampling_in_c(sequence.params), sequence.random.peek(1)[0], seen, logits)


def _sample(sequence: Sequence, logits: Tensor) -> SampledToken | None:
    """Sample the next token of a sequence from its logits (1, V)."""
    if not torch.isfinite(logits).all():
        return None
    probabilities = next_token_probabilities(logits, sequence.params, [sequence.tokens])
    token = int(sample(probabilities, torch.tensor(sequence.random.peek(1))))
    return _describe(sequence, token, logits[0])


def _describe(sequence: Sequence, token: int, logits: Tensor | None) -> SampledToken:
    """Return a token sampled from logits (V,), with the log-probabilities that its request asks for."""
    return describe([token], None if logits is None else logits.unsqueeze(0), sequence.params)[0]
