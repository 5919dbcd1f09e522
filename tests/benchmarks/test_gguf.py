"""A model's GGUF header and tensors, computed as GGUF's `llama` architecture says, against the model itself."""

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.llama_cpp import gguf_header, gguf_tensors, interleave_halves, is_llama
from tiny import sharp_model, tiny_config

LLAMA = {"norm": "rmsnorm", "position": "rope", "mlp": "swiglu"}


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt()


def rotate_neighbors(x: Tensor, base: float) -> Tensor:
    """(T, heads, D): columns 2i and 2i + 1 are the two parts of a complex number, rotated by position / base^(2i/D)."""
    length, _, width = x.shape
    angles = torch.outer(torch.arange(length), base ** (-torch.arange(0, width, 2) / width))
    rotated = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.polar(torch.ones(()), angles).unsqueeze(1)
    return torch.view_as_real(rotated).flatten(-2)


def reference(header: Mapping[str, float], tensors: Mapping[str, Tensor], idx: Tensor) -> Tensor:
    """Logits (T, V) of ids (T,) by GGUF's names only."""
    heads, kv_heads = int(header["llama.attention.head_count"]), int(header["llama.attention.head_count_kv"])
    eps, base = header["llama.attention.layer_norm_rms_epsilon"], header["llama.rope.freq_base"]
    x = tensors["token_embd.weight"][idx]
    for layer in range(int(header["llama.block_count"])):
        part = {name: tensors[f"blk.{layer}.{name}.weight"] for name in PARTS}
        y = rms_norm(x, part["attn_norm"], eps)
        q, k, v = (F.linear(y, part[name]) for name in ("attn_q", "attn_k", "attn_v"))
        q, k = (
            rotate_neighbors(q.unflatten(-1, (heads, -1)), base),
            rotate_neighbors(k.unflatten(-1, (kv_heads, -1)), base),
        )
        k, v = (each.repeat_interleave(heads // kv_heads, dim=1) for each in (k, v.unflatten(-1, (kv_heads, -1))))
        scores = torch.einsum("thd,shd->hts", q, k) / math.sqrt(q.size(-1))
        later = torch.ones(len(idx), len(idx), dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, -math.inf).softmax(dim=-1)
        x = x + F.linear(torch.einsum("hts,shd->thd", weights, v).flatten(1), part["attn_output"])
        y = rms_norm(x, part["ffn_norm"], eps)
        x = x + F.linear(F.silu(F.linear(y, part["ffn_gate"])) * F.linear(y, part["ffn_up"]), part["ffn_down"])
    head = tensors.get("output.weight", tensors["token_embd.weight"])
    return F.linear(rms_norm(x, tensors["output_norm.weight"], eps), head)


PARTS = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")


@pytest.mark.parametrize(
    "changes", [{}, {"tie_weights": True}, {"n_kv_head": 2}, {"norm_eps": 0.1, "rope_theta": 50.0}]
)
def test_the_tensors_are_the_model_by_other_names(changes: dict[str, object]) -> None:
    model = sharp_model(**LLAMA, **changes)
    tensors = {name: torch.from_numpy(value.copy()) for name, value in gguf_tensors(model).items()}
    assert ("output.weight" in tensors) == (not model.config.tie_weights)
    header = {key: value for key, value in gguf_header(model.config).items() if not isinstance(value, str)}
    idx = torch.randint(23, (16,))
    with torch.inference_mode():
        torch.testing.assert_close(reference(header, tensors, idx), model(idx.unsqueeze(0))[0])


def test_sizes_are_in_the_header() -> None:
    header = gguf_header(tiny_config(**LLAMA, n_kv_head=2, mlp_width=96))
    assert header["llama.vocab_size"] == 23
    assert header["llama.context_length"] == 16
    assert header["llama.embedding_length"] == 32
    assert header["llama.feed_forward_length"] == 96
    assert header["llama.rope.dimension_count"] == 8
    assert header["tokenizer.ggml.model"] == "no_vocab"


def test_halves_become_neighbors() -> None:
    rows = torch.arange(8.0).unsqueeze(1)
    assert np.array_equal(interleave_halves(rows, 2).flatten(), [0, 2, 1, 3, 4, 6, 5, 7])


def test_only_llamas_parts_are_llamas() -> None:
    assert is_llama(tiny_config(**LLAMA))
    for change in ({"norm": "layernorm"}, {"position": "learned"}, {"mlp": "gelu"}, {"bias": True}, {"qk_norm": True}):
        assert not is_llama(tiny_config(**{**LLAMA, **change}))
