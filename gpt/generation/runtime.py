"""A model prepared for decoding: by the C++ engine, or by PyTorch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gpt.cache.paged import BLOCK
from gpt.cache.paged_store import KV_DTYPES
from gpt.data.tokenizers import Tokenizer
from gpt.device import require_own_threads
from gpt.generation.engine import REMEDY, Engine
from gpt.generation.runner import Runner, TorchRunner
from gpt.model import GPT
from gpt.model.quantized import weights_format
from gpt.system.environment import read_settings
from gpt.system.errors import DeviceError, GenerationError
from gpt.system.progress import Report, print_line, silent

if TYPE_CHECKING:
    from gpt.generation.native_runner import Prepared

BACKENDS = ("auto", "eager", "native")
"""`eager` is PyTorch; `native` the C++ engine, on a CPU; `auto` is native where it is available, else eager."""
OTHERS_ONLY = {"eager": "int8", "native": "fp16"}
"""The type of keys and values that a backend does not have."""


@dataclass(frozen=True)
class DecodeOptions:
    """How logits are computed; none of it changes what is sampled, up to rounding.

    Keys and values have the type `kv_dtype`: fp32, bf16, fp16 (eager only) or int8 (native only).
    """

    backend: str = "auto"
    kv_dtype: str = "fp32"

    def __post_init__(self) -> None:
        known = {"backend": BACKENDS, "kv_dtype": (*KV_DTYPES, "int8")}
        for name, values in known.items():
            if (value := getattr(self, name)) not in values:
                raise GenerationError(f"{name} {value!r}: expected one of {', '.join(values)}")
        if OTHERS_ONLY.get(self.backend) == self.kv_dtype:
            raise GenerationError(f"the {self.backend} backend has no cache of {self.kv_dtype}; take another kv_dtype")


class Runtime:
    """A model prepared for decoding; `build_runtime` makes one. `name` has backend, weights and cache, for messages."""

    def __init__(self, model: GPT, kv_dtype: str, prepared: "Prepared | None", speculate: bool, report: Report) -> None:
        self.model, self._kv_dtype, self._prepared = model, kv_dtype, prepared
        self._speculate, self._report = speculate, report
        weights = weights_format(model)
        parts = ["eager" if prepared is None else "native", f"{weights} weights", f"{kv_dtype} cache"]
        self.name = ", ".join(part for part in parts if part != "float32 weights")

    def runner(self, sequences: int, prefill_chunk: int = 0, blocks: int | None = None) -> Runner:
        """Return what computes the steps of at most so many sequences; see `engine`."""
        require_own_threads(torch.get_num_threads(), REMEDY)
        window = -(-self.model.config.block_size // BLOCK)
        blocks = sequences * window if blocks is None else blocks
        if blocks < window:
            raise GenerationError(f"{blocks} blocks of {BLOCK} positions; one window needs {window}")
        if self._prepared is None:
            return TorchRunner(self.model, blocks, KV_DTYPES[self._kv_dtype])
        # imported here, so that decoding by PyTorch does without the kernels
        from gpt.generation.native_runner import NativeRunner

        tokens = 1 + -(-prefill_chunk // sequences)
        return NativeRunner(self._prepared, sequences, tokens, self._kv_dtype, blocks, self._speculate, self._report)

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


def build_runtime(
    model: GPT,
    options: DecodeOptions | None = None,
    report: Report | None = None,
    speculate: bool = False,
) -> Runtime:
    """Prepare a model for decoding on this machine.

    Args:
        options: None: the fastest, with a cache of fp32.
        report: receives lines about compilation, and why a native engine that could be here is not; None: only what
            takes long is said, on standard error.
        speculate: use speculative decoding, which only the native engine has.

    Raises:
        DeviceError: the native engine was asked for, or is needed for the cache, and is not available; or this is a
            forked process with several threads.
    """
    options, hint = options or DecodeOptions(), report or silent
    require_own_threads(torch.get_num_threads(), REMEDY)
    prepared = None
    if options.backend != "eager" and options.kv_dtype != OTHERS_ONLY["native"]:
        from gpt.generation.native_runner import prepare

        try:
            prepared = prepare(model, read_settings(), report or print_line)
        except DeviceError as error:
            if options.backend == "native" or options.kv_dtype == OTHERS_ONLY["eager"]:
                remedy = "backend auto or eager" if options.kv_dtype != OTHERS_ONLY["eager"] else "another kv_dtype"
                raise DeviceError(f"no native backend: {error}; take {remedy}") from None
            if next(model.parameters()).device.type == "cpu":
                hint(f"no native backend, which is several times faster: {error}")
    if speculate and prepared is None:
        hint("decoding without speculation, which only the native backend can do; the text is the same")
    return Runtime(model, options.kv_dtype, prepared, speculate, hint)
