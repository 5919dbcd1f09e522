"""What transformers and llama.cpp compute from a file that this package exports.

A file is compared with its model by these functions, so they share nothing with gpt/model: they see the tensors and the
numbers in the file, under GGUF's names. Tests compare them with transformers.
"""

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "silu": F.silu,
}
"""By transformers' names."""
HF_NAMES = {
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "lm_head": "output",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "input_layernorm": "attn_norm",
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
    **{f"self_attn.{part}_norm": f"attn_{part}_norm" for part in "qk"},
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
}
"""Parts of tensors' names in transformers, and in GGUF."""


class Exported(NamedTuple):
    """What a file says, in terms of its tensors and numbers only."""

    tensors: Mapping[str, Tensor]  # float32, matrices (out, in), by GGUF's names
    layers: int
    heads: int
    kv_heads: int
    eps: float  # added to variances
    activation: Callable[[Tensor], Tensor]  # of the feed-forward network
    # base of the rotary frequencies; None: positions are in `tensors`, and norms are LayerNorm
    theta: float | None = None
    neighbors: bool = False  # columns 2i and 2i + 1 are rotated together, else i and i + D/2


def from_transformers(fields: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Exported:
    """Return what a config.json and the tensors of model.safetensors say."""
    if fields["model_type"] == "gpt2":
        sizes = fields["n_layer"], fields["n_head"], fields["n_head"], fields["layer_norm_epsilon"]
        activation, theta = fields["activation_function"], None
    else:
        names = "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "rms_norm_eps"
        sizes = tuple(fields[name] for name in names)
        activation, theta = fields["hidden_act"], fields["rope_parameters"]["rope_theta"]
    renamed = {_gguf_name(name): tensor for name, tensor in tensors.items()}
    if fields["model_type"] == "gpt2":  # which stores the matrices of its blocks as (in, out)
        renamed = {name: tensor.t() if name.startswith("blk") else tensor for name, tensor in renamed.items()}
    if fields["tie_word_embeddings"]:
        renamed["output.weight"] = renamed["token_embd.weight"]
    return Exported(renamed, *sizes, ACTIVATIONS[activation], theta)


def _gguf_name(name: str) -> str:
    blocks = re.sub(r"^(?:h|layers)\.(?=\d)", "blk.", name.removeprefix("transformer.").removeprefix("model."))
    part, _, kind = re.sub(r"^blk\.\d+\.", "", blocks).rpartition(".")
    return blocks.replace(f"{part}.{kind}", f"{HF_NAMES[part]}.{kind}")


def from_gguf(fields: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Exported:
    """Return what the fields and tensors of a GGUF file say; llama.cpp has GELU by its tanh form only."""
    kind = fields["general.architecture"]
    number = {name.removeprefix(f"{kind}."): value for name, value in fields.items()}
    layers, heads = number["block_count"], number["attention.head_count"]
    tensors = {"output.weight": tensors["token_embd.weight"], **tensors}
    if kind == "gpt2":
        gelu = ACTIVATIONS["gelu_pytorch_tanh"]
        return Exported(tensors, layers, heads, heads, number["attention.layer_norm_epsilon"], gelu)
    kv_heads, eps = number["attention.head_count_kv"], number["attention.layer_norm_rms_epsilon"]
    return Exported(tensors, layers, heads, kv_heads, eps, F.silu, number["rope.freq_base"], kind == "llama")


@torch.no_grad()
def compute_logits(file: Exported, idx: Tensor) -> Tensor:
    """Return the logits (T, V) of ids (T,)."""
    x = file.tensors["token_embd.weight"][idx]
    if "position_embd.weight" in file.tensors:
        x = x + file.tensors["position_embd.weight"][: len(idx)]
    for layer in range(file.layers):
        block = f"blk.{layer}."
        x = x + _attention(file, block, _norm(file, f"{block}attn_norm", x))
        x = x + _feed_forward(file, block, _norm(file, f"{block}ffn_norm", x))
    return _linear(file, "output", _norm(file, "output_norm", x))


def _linear(file: Exported, name: str, x: Tensor) -> Tensor:
    return F.linear(x, file.tensors[f"{name}.weight"], file.tensors.get(f"{name}.bias"))


def _norm(file: Exported, name: str, x: Tensor) -> Tensor:
    if file.theta is None:
        x = x - x.mean(-1, keepdim=True)
    scaled = x * (x.square().mean(-1, keepdim=True) + file.eps).rsqrt() * file.tensors[f"{name}.weight"]
    return scaled if file.theta is not None else scaled + file.tensors[f"{name}.bias"]


def _attention(file: Exported, block: str, x: Tensor) -> Tensor:
    """Map x (T, C) to (T, C)."""
    if f"{block}attn_qkv.weight" in file.tensors:
        parts = list(_linear(file, f"{block}attn_qkv", x).chunk(3, dim=-1))
    else:
        parts = [_linear(file, f"{block}attn_{part}", x) for part in "qkv"]
    counts = file.heads, file.kv_heads, file.kv_heads
    q, k, v = (part.view(len(x), heads, -1).transpose(0, 1) for part, heads in zip(parts, counts, strict=True))
    if f"{block}attn_q_norm.weight" in file.tensors:
        q, k = _norm(file, f"{block}attn_q_norm", q), _norm(file, f"{block}attn_k_norm", k)
    if file.theta is not None:
        q, k = _rotated(file, file.theta, q), _rotated(file, file.theta, k)
    k, v = (part.repeat_interleave(file.heads // file.kv_heads, dim=0) for part in (k, v))
    later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).masked_fill(later, -math.inf)
    return _linear(file, f"{block}attn_output", (scores.softmax(-1) @ v).transpose(0, 1).flatten(1))


def _rotated(file: Exported, theta: float, x: Tensor) -> Tensor:
    """Rotate x (H, T, D): two columns are a complex number, multiplied by e^(i position / theta^(2i/D))."""
    _, length, width = x.shape
    frequencies = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
    turn = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
    pairs = x.reshape(*x.shape[:-1], -1, 2) if file.neighbors else torch.stack(x.chunk(2, dim=-1), dim=-1)
    rotated = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
    return rotated.flatten(-2) if file.neighbors else torch.cat(rotated.unbind(-1), dim=-1)


def _feed_forward(file: Exported, block: str, x: Tensor) -> Tensor:
    up = _linear(file, f"{block}ffn_up", x)
    if f"{block}ffn_gate.weight" in file.tensors:
        hidden = file.activation(_linear(file, f"{block}ffn_gate", x)) * up
    else:
        hidden = file.activation(up)
    return _linear(file, f"{block}ffn_down", hidden)
