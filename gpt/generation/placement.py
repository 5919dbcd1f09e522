"""Where a model decodes: on the device that a user names, or with `auto` where it is fastest."""

from pathlib import Path

import torch

from gpt.checkpoint import Loaded, load_trained
from gpt.generation.runtime import DecodeOptions
from gpt.model import GPT
from gpt.system.device import choose_device
from gpt.system.progress import Report

AUTO = "auto"
MIN_BYTES_ON_GPU = 680_000_000
"""Bytes of weights from which on `auto` takes a CUDA device: 170M parameters in float32.

Models of up to 86M parameters were measured (benchmarks/LOG.md, "CUDA, for the first time"). With
the largest one, 340 MB, 16 threads of a CPU wrote one text twice as fast as PyTorch's loop on an
H200: 304 and 148 tokens/s. The time of a CPU grows with the bytes that it reads, and that of the
loop with the number of layers. So a model of twice the bytes should not be slower on a GPU.
How much CUDA graphs gain has not been measured, and this number does not count on it.
"""


def load_for_decoding(
    path: Path | None,
    runs: Path,
    device: str,
    weights: str | None,
    options: DecodeOptions,
    report: Report,
) -> Loaded:
    """Load the model of a checkpoint, see `load_trained`, on the device where it decodes.

    Args:
        device: a device, or `auto`, see `auto_device`.
        weights: the format to which the weights are converted; None keeps that of the checkpoint.
        report: receives a line if `auto` takes another device than the CPU.
    """
    if device != AUTO:
        return load_trained(path, runs, choose_device(device), weights)
    # The size of a model is known only after it is loaded.
    loaded = load_trained(path, runs, torch.device("cpu"), weights)
    chosen = auto_device(loaded.model, options)
    if chosen.type != "cpu":
        report(f"decoding on {chosen}; --device cpu keeps the model on the CPU")
        loaded.model.to(chosen)
    return loaded


def auto_device(model: GPT, options: DecodeOptions) -> torch.device:
    """Return the CUDA device for a large model, if there is one; else the CPU.

    A backend that runs on only one of the two decides. GPUs without CUDA were never measured, and
    are not chosen.
    """
    if options.requires_native:
        return torch.device("cpu")
    tensors = [*model.parameters(), *model.buffers()]
    is_large = sum(tensor.nbytes for tensor in tensors) >= MIN_BYTES_ON_GPU
    # CUDA is asked for last, since that initializes it.
    if (is_large or options.backend == "graph") and torch.cuda.is_available():
        return choose_device("cuda")
    return torch.device("cpu")
