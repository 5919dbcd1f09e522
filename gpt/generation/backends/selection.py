"""A model prepared for decoding, by one of the backends."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from gpt.cache import KV_DTYPES
from gpt.cache.paged import BLOCK
from gpt.config import SamplingParams
from gpt.data.tokenizers import Tokenizer
from gpt.device import require_own_threads, why_not_compile
from gpt.environment import Settings, read_settings
from gpt.errors import DeviceError, GenerationError
from gpt.generation.backends import Backend
from gpt.generation.backends.compiled import CompiledBackend
from gpt.generation.backends.eager import CachedBackend, UncachedBackend
from gpt.generation.engine import REMEDY, Engine
from gpt.generation.runners import Runner
from gpt.generation.runners.batch import BatchRunner
from gpt.generation.runners.paged import PagedRunner
from gpt.model import GPT
from gpt.model.quantized import weights_format
from gpt.progress import Report, silent

BACKENDS = ("auto", "eager", "compiled", "native")
"""`eager` is PyTorch, operator by operator; `compiled` the same in a step of fixed shape, a CUDA graph on a GPU;
`native` the C++ engine, on a CPU; `auto` is native where it is available, else eager."""


@dataclass(frozen=True)
class DecodeOptions:
    """How logits are computed; none of it changes what is sampled, up to rounding.

    Attributes:
        backend: one of `BACKENDS`.
        cache: keep keys and values; False computes the whole window for every token.
        kv_dtype: type of keys and values: fp32, bf16, fp16 or int8.
        prefill_chunk: most positions of a prompt computed at a time; None: all.
    """

    backend: str = "auto"
    cache: bool = True
    kv_dtype: str = "fp32"
    prefill_chunk: int | None = None

    def __post_init__(self) -> None:
        """Raise GenerationError where a value is not one of those above, or two contradict each other."""
        for name, value, known in (("backend", self.backend, BACKENDS), ("kv_dtype", self.kv_dtype, KV_DTYPES)):
            if value not in known:
                raise GenerationError(f"{name} {value!r}: expected one of {', '.join(known)}")
        if self.prefill_chunk is not None and self.prefill_chunk < 1:
            raise GenerationError(f"prefill_chunk is {self.prefill_chunk}, expected at least 1")
        if self.backend == "native" and self.needs_eager:
            raise GenerationError("the native backend needs a cache of fp32, bf16 or int8; take backend auto or eager")
        if self.backend == "compiled" and (not self.cache or self.kv_dtype == "int8"):
            raise GenerationError("the compiled backend needs a cache of floats; take backend auto or eager")

    @property
    def needs_eager(self) -> bool:
        return not self.cache or self.kv_dtype == "fp16"


class Runtime(ABC):
    """A model prepared for decoding.

    Attributes:
        model: the model to decode.
        name: backend, weights and cache, for messages.
    """

    def __init__(self, model: GPT, backend: str, options: DecodeOptions) -> None:
        _check_threads()
        self.model, self._options = model, options
        weights = weights_format(model)
        cache = f"{options.kv_dtype} cache" if options.cache else "no cache"
        self.name = f"{backend}, {cache}" if weights == "float32" else f"{backend}, {weights} weights, {cache}"

    @abstractmethod
    def backend(self, params: SamplingParams) -> Backend:
        """Return a backend for one batch, which computes next-token logits."""

    @abstractmethod
    def _batch_runner(self, sequences: int, params: SamplingParams) -> Runner:
        """Return a runner for one batch, all of whose sequences begin at the same time."""

    @abstractmethod
    def _paged_runner(self, sequences: int, prefill_chunk: int, blocks: int) -> Runner:
        """Return a runner for sequences that join and leave."""

    def batch_engine(self, tokenizer: Tokenizer | None, sequences: int, params: SamplingParams) -> Engine:
        """Return an engine for a number of requests, all of which are sampled alike and added before its first step.

        Without a tokenizer no text is wanted.

        Raises:
            DeviceError: this is a forked process with several threads.
        """
        _check_threads()
        return Engine(self._batch_runner(sequences, params), tokenizer, self.model.config.block_size)

    def engine(
        self, tokenizer: Tokenizer, max_sequences: int, prefill_chunk: int = 128, blocks: int | None = None
    ) -> Engine:
        """Return an engine for requests that join and leave.

        Args:
            tokenizer: of the model.
            max_sequences: most sequences in the running batch.
            prefill_chunk: most prompt tokens computed in a step; with fewer, others wait less for a long prompt.
            blocks: number of blocks in the cache; None: enough for full windows of all sequences.

        Raises:
            DeviceError: this is a forked process with several threads.
            GenerationError: the blocks are too few for one window, or there is no such cache.
        """
        _check_threads()
        for name, value in (("max_sequences", max_sequences), ("prefill_chunk", prefill_chunk)):
            if value < 1:
                raise GenerationError(f"{name} is {value}, expected at least 1")
        window = -(-self.model.config.block_size // BLOCK)
        blocks = max_sequences * window if blocks is None else blocks
        if blocks < window:
            raise GenerationError(f"{blocks} blocks of {BLOCK} positions; one window needs {window}")
        runner = self._paged_runner(max_sequences, prefill_chunk, blocks)
        return Engine(runner, tokenizer, self.model.config.block_size)


class EagerRuntime(Runtime):
    """Decodes by PyTorch, on any device; any backend but "compiled" means eager."""

    def __init__(self, model: GPT, options: DecodeOptions) -> None:
        super().__init__(model, "compiled" if options.backend == "compiled" else "eager", options)

    def backend(self, params: SamplingParams) -> Backend:
        options = self._options
        if not options.cache:
            return UncachedBackend(self.model, params.slide_chunk)
        kind = CompiledBackend if options.backend == "compiled" else CachedBackend
        return kind(self.model, params.slide_chunk, options.kv_dtype, options.prefill_chunk)

    def _batch_runner(self, sequences: int, params: SamplingParams) -> Runner:
        return BatchRunner(self.backend(params))

    def _paged_runner(self, sequences: int, prefill_chunk: int, blocks: int) -> Runner:
        if self._options.kv_dtype == "int8":
            raise GenerationError(
                "only the native backend serves from a cache of int8; take kv_dtype fp32, bf16 or fp16"
            )
        return PagedRunner(self.model, blocks, sequences, prefill_chunk, KV_DTYPES[self._options.kv_dtype])


def build_runtime(
    model: GPT,
    options: DecodeOptions | None = None,
    settings: Settings | None = None,
    report: Report | None = None,
    speculate: bool = False,
) -> Runtime:
    """Prepare a model for decoding on this machine.

    Args:
        model: the model to decode.
        options: None: the fastest, with a cache.
        settings: None: those of the environment.
        report: receives lines about compilation, and why a native engine that could be here is not; None: only what
            takes long is said, on standard error.
        speculate: use speculative decoding, which only the native engine has.

    Raises:
        DeviceError: native or compiled was asked for by name and is not available.
    """
    options, hint = options or DecodeOptions(), report or silent
    if options.backend in ("eager", "compiled") or options.needs_eager:
        return _build_eager(model, options, hint, speculate)
    # imported here, so that decoding by PyTorch does without the kernels
    from gpt.generation.backends.native_runtime import NativeRuntime

    try:
        return NativeRuntime(model, options, settings or read_settings(), report, speculate)
    except DeviceError as error:
        if options.backend == "native":
            raise DeviceError(f"no native backend: {error}; take backend auto or eager") from None
        if next(model.parameters()).device.type == "cpu":
            hint(f"no native backend, which is several times faster: {error}")
        return _build_eager(model, options, hint, speculate)


def _check_threads() -> None:
    require_own_threads(torch.get_num_threads(), REMEDY)


def _build_eager(model: GPT, options: DecodeOptions, report: Report, speculate: bool) -> EagerRuntime:
    if speculate:
        report("decoding without speculation, which only the native backend can do; the text is the same")
    device = next(model.parameters()).device
    if options.backend == "compiled" and device.type != "cuda":  # there it is a graph, and needs no compiler
        reason = why_not_compile(device)
        if reason is not None:
            raise DeviceError(f"no compiled backend: {reason}; take backend auto or eager")
        report("the first token waits for torch's compiler, up to a minute")
    return EagerRuntime(model, options)
