"""Check that a model, a training step or a cache fits into memory, before any of it is allocated.

The checks count the least memory that PyTorch or the native kernels need: sizes that are refused cannot work, and
sizes that are not refused may still not fit.
"""

import torch

from gpt.accounting.flops import matmul_parameters
from gpt.cache.kv_cache import cache_bytes
from gpt.config import Config, ModelConfig
from gpt.device import Compute, require_memory
from gpt.errors import DeviceError

BLOCK_BYTES = 32 << 10
"""Bytes of a block's Python objects, however small its weights are."""


def model_bytes(config: ModelConfig) -> int:
    """Return the bytes of a model's float32 matrices and of its modules; `vocab_size` must be set."""
    assert config.vocab_size is not None
    embeddings = 0 if config.tie_weights else config.vocab_size
    positions = config.block_size if config.position == "learned" else 0
    matrices = matmul_parameters(config) + config.n_embd * (embeddings + positions)
    return 4 * matrices + config.n_layer * BLOCK_BYTES


def table_bytes(config: ModelConfig) -> int:
    """Return the bytes of the position tables, which are computed, not trained, and not in a checkpoint."""
    widths = {"rope": 2 * config.head_dim, "sinusoidal": config.n_embd}
    return 4 * config.block_size * widths.get(config.position, 0)


def least_moments(optimizer: str) -> int:
    """Return how many numbers an optimizer keeps of each weight, at least; 0 for one that is not the package's."""
    return {"adamw": 2, "muon": 1}.get(optimizer, 0)


def training_bytes(config: Config, compute: Compute, processes: int = 1) -> int:
    """Return the least bytes of one process in a training step: weights, gradients, optimizer state and activations.

    Of the activations only the inputs of the matmuls count, from which the gradients of the weights are computed, or of
    one block where the others keep nothing but their own inputs.
    """
    model, train = config.model, config.train
    tokens = train.batch_size * model.block_size // processes
    copies = 2 + least_moments(config.optim.name)  # weights, gradients, moments
    inputs = 3 * model.n_embd + 2 * model.kv_heads * model.head_dim + model.mlp_hidden
    blocks = 1 if train.activation_checkpointing else model.n_layer
    activations = tokens * (blocks * inputs * compute.dtype.itemsize + 4 * (model.n_layer - blocks) * model.n_embd)
    ids = 2 * torch.int64.itemsize * tokens * train.grad_accum_steps
    shards = processes if config.run.parallel == "fsdp" else 1
    return copies * model_bytes(model) // shards + table_bytes(model) + activations + ids


def require_countable(config: ModelConfig, batch: int = 1, length: int = 1) -> None:
    """Raise DeviceError unless a forward pass of (batch, length) tokens can be traced without data.

    Torch counts bytes in 64 bits, and the objects of blocks take memory, however small their weights are.
    """
    assert config.vocab_size is not None
    widest = max(config.vocab_size, config.mlp_hidden, config.n_head * length)
    if model_bytes(config) + 8 * batch * length * widest * config.n_layer >= 2**63:
        raise DeviceError("a model or batch of 8 EiB or more cannot be counted; lower its sizes")
    objects = config.n_layer * BLOCK_BYTES
    require_memory(objects, f"a model of {config.n_layer:,} blocks", "model.n_layer", torch.device("cpu"))


def require_training_memory(config: Config, compute: Compute, processes: int = 1) -> None:
    """Raise DeviceError unless there is memory for a training step of one of several processes."""
    remedy = "train.batch_size, model.block_size or the size of the model"
    if config.run.memory is None and processes == 1:
        remedy += ", or set run.memory=auto"
    require_memory(training_bytes(config, compute, processes), "a training step", remedy, compute.device)


def require_cache_memory(config: ModelConfig, sequences: int, kv_dtype: str, device: torch.device) -> None:
    """Raise DeviceError unless there is memory for the keys and values of some sequences, all allocated at once."""
    needed = cache_bytes(config, sequences, config.block_size, kv_dtype)
    require_memory(needed, f"a {kv_dtype} cache of {sequences:,} sequences", "their number", device)


def require_forward_memory(config: ModelConfig, batch: int, device: torch.device) -> None:
    """Raise DeviceError unless there is memory for a forward pass over (batch, block_size) tokens and its logits."""
    assert config.vocab_size is not None
    needed = batch * config.block_size * (4 * config.vocab_size + 2 * torch.int64.itemsize)
    require_memory(needed, f"a forward pass over {batch:,} sequences", "the batch size", device)
