"""Record calls of the kernels on this machine, for `replay.cpp`, which repeats them where there is
no Python.

A recording holds the arguments of each call, and all memory that it reaches, before and after.
"""

import ctypes
import gc
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt.config import ModelConfig, SamplingParams
from gpt.model import GPT
from gpt.model.quantized import quantize
from gpt.native.decoding.c_structs import sample_in_c, sampling_in_c
from gpt.native.decoding.decoder import Decoder, TokenBatch, load_decoder
from gpt.native.decoding.weights import lay_out_weights
from gpt.native.training.bindings import CLossSums, load_kernels
from gpt.native.training.native_model import NativeModel
from gpt.native.training.native_update import Updated, update_natively
from gpt.system.environment import Settings
from gpt.system.processor import Processor

WORDS, INTEGERS, BFLOAT16, FLOAT32, FLOAT64, SCRATCH = range(6)
"""Kinds of memory; `SCRATCH` is what a call only uses while it lasts, and is not recorded."""
KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float64: FLOAT64}
ARGUMENTS = 9
NO_RESULT = -1
THREADS = 2
SHAPE = {
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 64,
    "block_size": 80,
    "vocab_size": 65,
    "norm_eps": 1e-5,
}
VARIANTS = (
    {"norm": "rmsnorm", "position": "rope", "mlp": "gelu", "qk_norm": True, "dropout": 0.1},
    {"norm": "layernorm", "position": "learned", "mlp": "swiglu", "dropout": 0.0},
)
"""Models that together call every kernel."""


class Recorder:
    """Stands in for a library: passes calls on, and writes them down."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library, self.names, self._calls = library, set[str](), list[bytes]()
        self.scratch: dict[str, Tensor] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._call, name)

    def write(self, path: Path) -> None:
        path.write_bytes(struct.pack("<q", len(self._calls)) + b"".join(self._calls))

    def _call(self, name: str, *arguments: Any) -> Any:
        values = [_number(argument) for argument in arguments]
        regions = _reachable(values)
        for memory in self.scratch.values():
            if memory.data_ptr() in regions:
                regions[memory.data_ptr()] = (memory.nbytes, SCRATCH)
        before = {
            address: _content(address, size, kind) for address, (size, kind) in regions.items()
        }
        result = getattr(self._library, name)(*arguments)
        # What a processor computes in floating point depends on its vectors.
        number = result if isinstance(result, int) else NO_RESULT
        padded = values + [0] * (ARGUMENTS - len(values))
        self._calls.append(
            name.encode().ljust(32, b"\0")
            + struct.pack(f"<{ARGUMENTS + 2}q", *padded, number, len(regions))
        )
        for address, (size, kind) in regions.items():
            after = _content(address, size, kind)
            self._calls[-1] += struct.pack("<3q", address, kind, size) + before[address] + after
        self.names.add(name)
        return result


def _content(address: int, size: int, kind: int) -> bytes:
    return b"" if kind == SCRATCH else ctypes.string_at(address, size)


def _number(argument: Any) -> int:
    """Return an argument as C receives it: a number, or an address."""
    if isinstance(argument, ctypes.c_void_p | ctypes.c_int64):
        argument = argument.value
    if argument is None:  # a null pointer
        return 0
    if isinstance(argument, int):
        return argument
    return ctypes.addressof(getattr(argument, "_obj", argument))  # that of `byref`


def _reachable(values: list[int]) -> dict[int, tuple[int, int]]:
    """Return the size in bytes and the kind of each region of memory that numbers and what they
    point to point to.
    """
    known, values = _live_regions(), list(values)  # which grow
    found: dict[int, tuple[int, int]] = {}
    for address in values:
        if address in known and address not in found:
            size, kind = found[address] = known[address]
            if kind == WORDS:
                values += struct.unpack(f"<{size // 8}q", ctypes.string_at(address, size // 8 * 8))
    return found


def _live_regions() -> dict[int, tuple[int, int]]:
    """Return the size and kind of all tensors, and arrays and structures of ctypes, by their
    addresses.
    """
    regions: dict[int, tuple[int, int]] = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), Tensor) and thing.device.type == "cpu":
            try:
                region = thing.data_ptr(), (thing.nbytes, KINDS.get(thing.dtype, INTEGERS))
            except RuntimeError:  # one of those that have no memory
                continue
        elif issubclass(type(thing), CLossSums):
            region = ctypes.addressof(thing), (ctypes.sizeof(thing), FLOAT64)
        elif issubclass(type(thing), ctypes.Array | ctypes.Structure):
            region = ctypes.addressof(thing), (ctypes.sizeof(thing), WORDS)
        else:
            continue
        regions[region[0]] = max(region[1], regions.get(region[0], (0, 0)))
    return regions


@contextmanager
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(before)


def record_training(path: Path, processor: Processor, settings: Settings) -> None:
    """Record a step of each of `VARIANTS` in the type of a processor's matmuls."""
    kernels: Any = load_kernels(processor.matmul_dtype, settings, processor=processor)
    kernels._library = recorder = Recorder(kernels._library)
    recorder.scratch = kernels._memory
    torch.manual_seed(1)
    with _threads():
        for variant in VARIANTS:
            model = GPT(ModelConfig.model_validate({**SHAPE, **variant}))
            native = NativeModel(model, kernels)
            # Each gradient gets memory of its own: regions of a recording do not overlap.
            native.gradients = {
                name: gradient.clone() for name, gradient in native.gradients.items()
            }
            idx = torch.randint(65, (2, 41))
            native.logits(idx[:, :-1])
            native.compute_gradients(idx[:, :-1], idx[:, 1:])
            numbers = torch.randn(40000)
            kernels.norm(numbers)
            kernels.scale(numbers, 0.3)
            adamw = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
            muon = {"lr": 0.01, "momentum": 0.9, "steps": 5, "weight_decay": 0.1}
            updated = []
            for name, weight in native.parameters.items():
                gradient, moment = native.gradients[name], torch.zeros_like(weight)
                if name.startswith("h.") and weight.dim() == 2:
                    updated.append(Updated(weight, gradient, moment, None, None, muon))
                else:
                    other, step = torch.zeros_like(weight), torch.zeros(())
                    updated.append(Updated(weight, gradient, moment, other, step, adamw))
            update_natively(kernels, updated)
    recorder.write(path)


def record_decoding(path: Path, processor: Processor, settings: Settings) -> None:
    """Record passes and samples of each of `VARIANTS`, with weights and keys of all types."""
    recorder: Any = Recorder(load_decoder(settings, processor=processor)[0])
    torch.manual_seed(1)
    sampling = {"temperature": 0.9, "top_k": 20, "repetition_penalty": 1.1}
    params = SamplingParams.model_validate(sampling)
    uniforms = torch.rand(2, 8)
    formats = ((None, "fp32"), ("int8", "bf16"), ("int4", "int8"))
    with _threads():
        for variant in VARIANTS:
            for weights, kv_dtype in formats:
                model = GPT(ModelConfig.model_validate({**SHAPE, **variant})).eval()
                laid_out = lay_out_weights(
                    quantize(model, weights) if weights else model, processor
                )
                engine = Decoder(recorder, laid_out, sequences=2, kv_dtype=kv_dtype, blocks=5)
                prompt = torch.randint(65, (60,)).tolist()
                engine.forward(TokenBatch(prompt, [0] * 60, range(60)), wanted=[0, 59])
                engine.copy_blocks([(2, 0), (3, 1)])
                seen = torch.zeros(2, 65, dtype=torch.uint8)
                newest = TokenBatch(tokens=[3, 4], sequences=[0, 1], positions=[60, 0])
                for by_sequence in (False, True):
                    engine.generate(
                        newest, uniforms, params, seen, keep_logits=True, by_sequence=by_sequence
                    )
                sample = sample_in_c(sampling_in_c(params), 0.4, seen[0], None)
                engine.step(TokenBatch([5], sequences=[1], positions=[8]), [0], [sample])
                del engine
    recorder.write(path)
