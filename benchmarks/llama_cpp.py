"""llama.cpp as a peer that decodes with the weights of a Llama-shaped model of ours, in a process of its own."""

import json
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.processes import json_process
from gpt.config import ModelConfig, SamplingParams
from gpt.errors import ConfigError
from gpt.model import GPT

WORKER = Path(__file__).with_name("llama_cpp_worker.py")
CACHES = ("F16", "F32")
"""Types of the key/value cache; which one is faster depends on the model's width."""
LLAMA_NAMES = {
    "wte": ("embed_tokens", "token_embd"),
    "ln_f": ("norm", "output_norm"),
    "lm_head": ("lm_head", "output"),
    "ln_1": ("input_layernorm", "attn_norm"),
    "attn.c_q": ("self_attn.q_proj", "attn_q"),
    "attn.c_k": ("self_attn.k_proj", "attn_k"),
    "attn.c_v": ("self_attn.v_proj", "attn_v"),
    "attn.c_proj": ("self_attn.o_proj", "attn_output"),
    "ln_2": ("post_attention_layernorm", "ffn_norm"),
    "mlp.c_gate": ("mlp.gate_proj", "ffn_gate"),
    "mlp.c_fc": ("mlp.up_proj", "ffn_up"),
    "mlp.c_proj": ("mlp.down_proj", "ffn_down"),
}
"""Modules of ours, and what transformers and GGUF call them."""
LLAMA_SIZES = {
    "vocab_size": ("vocab_size", "vocab_size"),
    "block_size": ("max_position_embeddings", "context_length"),
    "n_embd": ("hidden_size", "embedding_length"),
    "n_layer": ("num_hidden_layers", "block_count"),
    "mlp_hidden": ("intermediate_size", "feed_forward_length"),
    "n_head": ("num_attention_heads", "attention.head_count"),
    "kv_heads": ("num_key_value_heads", "attention.head_count_kv"),
    "norm_eps": ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    "rope_theta": ("rope_theta", "rope.freq_base"),
}
"""The same of numbers in `ModelConfig`."""


def check_llama_cpp(python: str, *more: str) -> None:
    """Raise ConfigError if a Python cannot import what the worker does, and further modules."""
    try:
        command = [python, "-c", f"import {', '.join(('gguf', 'llama_cpp', *more))}"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        missing = result.stderr.strip().splitlines()[-1] if result.returncode else ""
    except OSError as error:
        missing = str(error)
    if missing:
        needed = "pip install 'llama-cpp-python[server]' gguf (compiles for 20 minutes), or name a Python that has them"
        raise ConfigError(f"--llama-cpp {python}: {missing}; {needed}")


def write_archive(model: GPT, folder: Path, more: dict[str, Any]) -> Path:
    """Write what the worker makes a GGUF file of."""
    arrays: dict[str, Any] = {"header": json.dumps(gguf_header(model.config) | more), **gguf_tensors(model)}
    np.savez(folder / "model.npz", **arrays)
    return folder / "model.npz"


class LlamaCpp:
    """llama.cpp's decoding loop, by its C interface; `kind` of the matrices is F32 or Q8_0; `stack` ends the process.

    Raises:
        GPTError: llama.cpp cannot run the model.
    """

    def __init__(self, model: GPT, kind: str, python: str, stack: ExitStack) -> None:
        archive = write_archive(model, Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpt-bench-"))), {})
        command = [python, "-P", str(WORKER), str(archive), kind, str(torch.get_num_threads())]
        self._ask = stack.enter_context(json_process("llama.cpp", command))

    def logits(self, idx: Tensor) -> Tensor:
        """Map ids (1, T) to logits (1, T, V)."""
        return torch.tensor([self._ask(prompts=idx.tolist(), steps=0)["logits"]])

    def decode(self, idx: Tensor, params: SamplingParams, cache: str) -> list[float]:
        """Sample after ids (B, T); return the clock at the start, after each step, and at the end."""
        steps, temperature = params.max_new_tokens, params.temperature
        request = {"prompts": idx.tolist(), "steps": steps, "temperature": temperature, "cache": cache}
        ticks: list[float] = self._ask(**request)["ticks"]
        return ticks


def is_llama(config: ModelConfig) -> bool:
    """Return whether a model has Llama's parts and no others: RMSNorm, RoPE, SwiGLU, no biases."""
    parts = (config.norm, config.position, config.mlp, config.bias, config.qk_norm, config.logit_softcap)
    return parts == ("rmsnorm", "rope", "swiglu", False, False, None)


def gguf_header(config: ModelConfig) -> dict[str, str | int | float]:
    """Return keys and values of GGUF's architecture `llama`, with no tokenizer."""
    assert is_llama(config)
    sizes = {f"llama.{gguf}": getattr(config, ours) for ours, (_, gguf) in LLAMA_SIZES.items()}
    return {**sizes, "llama.rope.dimension_count": config.head_dim, "tokenizer.ggml.model": "no_vocab"}


def gguf_tensors(model: GPT) -> dict[str, NDArray[np.float32]]:
    """Return float32 weights by GGUF's names, matrices (out, in); without `output`, llama.cpp takes the embedding."""
    config, tensors = model.config, {}
    for name, value in model.state_dict().items():
        *block, module = name.removesuffix(".weight").split(".", 2)
        if module in ("attn.c_q", "attn.c_k"):
            value = interleave_halves(value, config.n_head if module == "attn.c_q" else config.kv_heads)
        if not (module == "lm_head" and config.tie_weights):
            prefix = f"blk.{block[1]}." if block else ""
            tensors[f"{prefix}{LLAMA_NAMES[module][1]}.weight"] = value.numpy()
    return tensors


def interleave_halves(weight: Tensor, heads: int) -> Tensor:
    """Reorder the outputs of each head so that pairs that RoPE rotates, `i` and `i + D/2`, become neighbors.

    GGUF's `llama` rotates neighbors, as Meta's own weights do. (H D, C) -> the same shape.
    """
    return weight.view(heads, 2, -1, weight.size(1)).transpose(1, 2).reshape(weight.shape)
