"""The fastest way to decode a model on this machine: by the C++ engine, or by PyTorch."""

from dataclasses import dataclass

import torch

from gpt.generation.engine import REMEDY, Runtime
from gpt.generation.native_runner import NativeModel, NativeRunner, prepare
from gpt.generation.paged_store import KV_DTYPES
from gpt.generation.runner import Runner
from gpt.model import GPT
from gpt.system.device import require_own_threads
from gpt.system.environment import read_settings
from gpt.system.errors import DeviceError, GenerationError
from gpt.system.progress import Report, print_line, silent

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


class NativeRuntime(Runtime):
    """A model prepared for decoding by the C++ engine."""

    backend = "native"

    def __init__(self, model: GPT, kv_dtype: str, prepared: NativeModel, report: Report) -> None:
        super().__init__(model, kv_dtype)
        self._prepared, self._report = prepared, report

    def _runner(self, sequences: int, prefill_chunk: int, blocks: int) -> Runner:
        tokens = 1 + -(-prefill_chunk // sequences)
        return NativeRunner(self._prepared, sequences, tokens, self.kv_dtype, blocks, self._report)


def build_runtime(
    model: GPT,
    options: DecodeOptions | None = None,
    report: Report | None = None,
) -> Runtime:
    """Prepare a model for decoding on this machine.

    Args:
        options: None: the fastest, with a cache of fp32.
        report: receives lines about compilation, and why a native engine that could be here is not; None: only what
            takes long is said, on standard error.

    Raises:
        DeviceError: the native engine was asked for, or is needed for the cache, and is not available; or this is a
            forked process with several threads.
    """
    options, hint = options or DecodeOptions(), report or silent
    require_own_threads(torch.get_num_threads(), REMEDY)
    if options.backend != "eager" and options.kv_dtype != OTHERS_ONLY["native"]:
        try:
            prepared = prepare(model, read_settings(), report or print_line)
            return NativeRuntime(model, options.kv_dtype, prepared, hint)
        except DeviceError as error:
            if options.backend == "native" or options.kv_dtype == OTHERS_ONLY["eager"]:
                remedy = "backend auto or eager" if options.kv_dtype != OTHERS_ONLY["eager"] else "another kv_dtype"
                raise DeviceError(f"no native backend: {error}; take {remedy}") from None
            if next(model.parameters()).device.type == "cpu":
                hint(f"no native backend, which is several times faster: {error}")
    return Runtime(model, options.kv_dtype)
