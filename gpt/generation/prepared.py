"""The native engine prepared for a model, kept from call to call as long as the model does not change."""

import ctypes
import zlib
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch

from gpt.config import ModelConfig
from gpt.kernels.decoding.engine import load_engine
from gpt.kernels.decoding.layout import Weights
from gpt.kernels.decoding.weights import check_native_support, lay_out_weights
from gpt.model import GPT
from gpt.processor import supported_processors
from gpt.report import Report
from gpt.settings import Settings

Version = tuple[ModelConfig, Settings, int]
"""Of a model and what runs it; the number is a checksum of the weights."""


@dataclass(frozen=True)
class Prepared:
    """A compiled engine and the weights it reads.

    Attributes:
        library: compiled for this processor.
        weights: a copy, in its layout.
    """

    library: ctypes.CDLL
    weights: Weights


_KEPT: WeakKeyDictionary[GPT, tuple[Version, Prepared]] = WeakKeyDictionary()
"""Without an entry everything is prepared again; none refers to a model."""


def prepare(model: GPT, settings: Settings, report: Report) -> Prepared:
    """Return the engine for a model, prepared anew only if the model has changed since the last call.

    To see whether it has, all weights are read once. No count of changes is trusted: torch's misses those by `.data`.

    Args:
        model: on the CPU.
        settings: where compiled code is kept, and for which processor.
        report: told of a compilation.

    Raises:
        DeviceError: the engine is not available here, or not for this model.
    """
    check_native_support(model)
    version = (model.config, settings, _checksum(model))
    kept = _KEPT.get(model)
    if kept is not None and kept[0] == version:
        return kept[1]
    processor = supported_processors(settings.processor)[0]
    prepared = Prepared(load_engine(settings.cache_dir, report, processor), lay_out_weights(model, processor))
    _KEPT[model] = version, prepared
    return prepared


def _checksum(model: GPT) -> int:
    """Return the CRC-32 of all parameters and buffers, with their names, types and shapes."""
    checksum = 0
    for tensors in (model.named_parameters(), model.named_buffers()):
        for name, tensor in tensors:
            checksum = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), checksum)
            checksum = zlib.crc32(tensor.detach().contiguous().view(torch.uint8).numpy().data, checksum)
    return checksum
