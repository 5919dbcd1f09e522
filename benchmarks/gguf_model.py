"""A model as llama.cpp's GGUF files hold it: keys and values of the header, tensors by their names there."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gpt.config import ModelConfig
from gpt.model import GPT

NAMES = {
    "wte": "token_embd",
    "ln_f": "output_norm",
    "lm_head": "output",
    "ln_1": "attn_norm",
    "attn.c_q": "attn_q",
    "attn.c_k": "attn_k",
    "attn.c_v": "attn_v",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_gate": "ffn_gate",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
"""Names of modules, in a block without its `h.N.`, and what GGUF calls them."""


def is_llama(config: ModelConfig) -> bool:
    """Whether Llama's parts are all there is: RMSNorm, RoPE, SwiGLU, no biases."""
    parts = (config.norm, config.position, config.mlp, config.bias, config.qk_norm, config.logit_softcap)
    return parts == ("rmsnorm", "rope", "swiglu", False, False, None)


def gguf_header(config: ModelConfig) -> dict[str, str | int | float]:
    """Keys and values of the architecture `llama`, with no tokenizer."""
    assert is_llama(config)
    assert config.vocab_size is not None
    return {
        "llama.vocab_size": config.vocab_size,
        "llama.context_length": config.block_size,
        "llama.embedding_length": config.n_embd,
        "llama.block_count": config.n_layer,
        "llama.feed_forward_length": config.mlp_hidden,
        "llama.attention.head_count": config.n_head,
        "llama.attention.head_count_kv": config.kv_heads,
        "llama.attention.layer_norm_rms_epsilon": config.norm_eps,
        "llama.rope.dimension_count": config.head_dim,
        "llama.rope.freq_base": config.rope_theta,
        "tokenizer.ggml.model": "no_vocab",
    }


def gguf_tensors(model: GPT) -> dict[str, NDArray[np.float32]]:
    """Float32 weights; matrices are (out, in). Without `output.weight`, llama.cpp takes the embedding."""
    config, tensors = model.config, {}
    for name, value in model.state_dict().items():
        module = name.removesuffix(".weight")
        block = ""
        if module.startswith("h."):
            _, number, module = module.split(".", 2)
            block = f"blk.{number}."
        if module in ("attn.c_q", "attn.c_k"):
            value = interleave_halves(value, config.n_head if module == "attn.c_q" else config.kv_heads)
        if not (module == "lm_head" and config.tie_weights):
            tensors[f"{block}{NAMES[module]}.weight"] = value.numpy()
    return tensors


def interleave_halves(weight: Tensor, heads: int) -> Tensor:
    """Reorder the outputs of each head so that those RoPE turns together, `i` and `i + D/2`, become neighbours.

    GGUF's `llama` turns neighbours, as Meta's own weights do; (heads * D, C) -> the same.
    """
    return weight.view(heads, 2, -1, weight.size(1)).transpose(1, 2).reshape(weight.shape)
