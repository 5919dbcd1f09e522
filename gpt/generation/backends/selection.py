"""A model prepared for decoding, by one of the backends."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from gpt.cache import KV_DTYPES
from gpt.config import SamplingParams
from gpt.device import require_own_threads, why_not_compile
from gpt.environment import Settings, read_settings
from gpt.errors import DeviceError, GenerationError
from gpt.generation.backends import Backend, TokenIds
from gpt.generation.backends.compiled import CompiledBackend
from gpt.generation.backends.eager import CachedBackend, UncachedBackend
from gpt.generation.backends.native import NativeBackend, prepare
from gpt.generation.decoder import Decoder, MultiStepDecoder, StepDecoder
from gpt.generation.drafts import Drafter
from gpt.generation.speculative import MAX_DRAFTS, SpeculativeDecoder
from gpt.kernels.decoding.engine import KV_KINDS, Engine
from gpt.model import GPT
from gpt.model.quantized import weights_format
from gpt.progress import Report, print_line, silent
from gpt.torch_defaults import with_own_defaults

MakeDrafter = Callable[[SamplingParams], Drafter]
"""Makes a drafter for one batch."""
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
        """Return whether only PyTorch can do this."""
        return not self.cache or self.kv_dtype not in KV_KINDS


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
        """Return a backend for one batch."""

    def decoder(self, prompts: Sequence[TokenIds], params: SamplingParams, seeds: Sequence[int]) -> Decoder:
        """Return a decoder that samples after each prompt, with one seed each.

        Raises:
            DeviceError: this is a forked process with several threads.
        GenerationError: a prompt is empty.
        """
        _check_threads()
        return StepDecoder(self.backend(params), prompts, params, seeds)


class EagerRuntime(Runtime):
    """Decodes by PyTorch.

    Args:
        model: on any device.
        options: cache and backend; any backend but "compiled" means eager.
    """

    def __init__(self, model: GPT, options: DecodeOptions) -> None:
        super().__init__(model, "compiled" if options.backend == "compiled" else "eager", options)

    def backend(self, params: SamplingParams) -> Backend:
        options = self._options
        if not options.cache:
            return UncachedBackend(self.model, params.slide_chunk)
        kind = CompiledBackend if options.backend == "compiled" else CachedBackend
        return kind(self.model, params.slide_chunk, options.kv_dtype, options.prefill_chunk)


class NativeRuntime(Runtime):
    """Decodes by the C++ engine, with a copy of the model's weights.

    Args:
        model: on the CPU.
        options: cache options.
        settings: say where compiled code is kept.
        report: receives lines; None: only what takes long is said, on standard error.
        make_drafter: for speculative decoding; None: plain decoding.

    Raises:
        DeviceError: the engine is not available here, or not for this model.
    """

    def __init__(
        self,
        model: GPT,
        options: DecodeOptions,
        settings: Settings,
        report: Report | None,
        make_drafter: MakeDrafter | None = None,
    ) -> None:
        super().__init__(model, "native", options)
        self._make_drafter = make_drafter
        tokens = 1 if make_drafter is None else 1 + MAX_DRAFTS
        self._prepared, self._report = prepare(model, settings, report or print_line), report or silent
        self._make_engine = partial(
            Engine,
            self._prepared.library,
            self._prepared.weights,
            tokens_per_sequence=tokens,
            kv_dtype=options.kv_dtype,
        )

    def backend(self, params: SamplingParams) -> NativeBackend:
        return NativeBackend(self._make_engine, self.model, params.slide_chunk, self._options.prefill_chunk)

    def decoder(self, prompts: Sequence[TokenIds], params: SamplingParams, seeds: Sequence[int]) -> Decoder:
        _check_threads()
        reason = self._prepared.why_not_sample(params)
        if reason is not None:
            self._report(
                f"sampling with PyTorch's operators{', without speculation' * bool(self._make_drafter)}: {reason}"
            )
            return StepDecoder(self.backend(params), prompts, params, seeds)
        if self._make_drafter is None:
            return MultiStepDecoder(self.backend(params), prompts, params, seeds)
        return SpeculativeDecoder(self.backend(params), self._make_drafter(params), prompts, params, seeds)


@with_own_defaults
def build_runtime(
    model: GPT,
    options: DecodeOptions | None = None,
    settings: Settings | None = None,
    report: Report | None = None,
    make_drafter: MakeDrafter | None = None,
) -> Runtime:
    """Prepare a model for decoding on this machine.

    Args:
        model: the model to decode.
        options: None: the fastest, with a cache.
        settings: None: those of the environment.
        report: receives lines about compilation, and why a native engine that could be here is not; None: only what
            takes long is said, on standard error.
        make_drafter: for speculative decoding, by the native engine; None: plain decoding.

    Raises:
        DeviceError: native or compiled was asked for by name and is not available.
    """
    options, hint = options or DecodeOptions(), report or silent
    if options.backend in ("eager", "compiled") or options.needs_eager:
        return _build_eager(model, options, hint, make_drafter)
    try:
        return NativeRuntime(model, options, settings or read_settings(), report, make_drafter)
    except DeviceError as error:
        if options.backend == "native":
            raise DeviceError(f"no native backend: {error}; take backend auto or eager") from None
        if next(model.parameters()).device.type == "cpu":
            hint(f"no native backend, which is several times faster: {error}")
        return _build_eager(model, options, hint, make_drafter)


def _check_threads() -> None:
    require_own_threads(torch.get_num_threads(), "call torch.set_num_threads(1) in it before generating")


def _build_eager(model: GPT, options: DecodeOptions, report: Report, make_drafter: MakeDrafter | None) -> EagerRuntime:
    if make_drafter is not None:
        report("decoding without speculation, which only the native backend can do; the text is the same")
    device = next(model.parameters()).device
    if options.backend == "compiled" and device.type != "cuda":  # there it is a graph, and needs no compiler
        reason = why_not_compile(device)
        if reason is not None:
            raise DeviceError(f"no compiled backend: {reason}; take backend auto or eager")
        report("the first token waits for torch's compiler, up to a minute")
    return EagerRuntime(model, options)
