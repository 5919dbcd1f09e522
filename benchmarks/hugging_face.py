"""A model of ours as a model of transformers: GPT-2, or Llama where it has Llama's parts."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from benchmarks.llama_cpp import LLAMA_NAMES, LLAMA_SIZES, is_llama
from gpt.config import ModelConfig, SamplingParams
from gpt.errors import ConfigError
from gpt.model import GPT


def hugging_face(model: GPT, device: str = "cpu") -> Callable[[Tensor, SamplingParams], Tensor]:
    """Return `generate` of `build_hugging_face`, with a cache."""
    peer = build_hugging_face(model).to(device)

    def generate(idx: Tensor, params: SamplingParams) -> Tensor:
        count, sampled = params.max_new_tokens, {"temperature": params.temperature, "top_k": 0}
        ids: Tensor = peer.generate(
            idx,
            attention_mask=torch.ones_like(idx),
            do_sample=params.temperature > 0,
            min_new_tokens=count,
            max_new_tokens=count,
            use_cache=True,
            **(sampled if params.temperature else {}),
        )
        return ids

    return generate


def build_hugging_face(model: GPT) -> Any:
    """Build the model in transformers with the same weights; biases that ours lacks are zero there."""
    llama = is_llama(model.config)
    peer = build_llama(model.config) if llama else build_gpt2(model.config)
    peer.eval().config.use_cache = True
    missing, unexpected = peer.load_state_dict(llama_weights(model) if llama else gpt2_weights(model), strict=False)
    assert not unexpected
    assert all(name.endswith("bias") or (model.config.tie_weights and "lm_head" in name) for name in missing)
    check_agreement("Hugging Face", lambda idx: peer(idx).logits, model)
    return peer


@torch.inference_mode()
def check_agreement(name: str, logits: Callable[[Tensor], Tensor], model: GPT, tolerance: float = 1e-3) -> None:
    """Raise ConfigError if `logits`, (1, T) -> (1, T, V), are not those of the model."""
    idx = torch.arange(min(16, model.config.block_size)).remainder(model.vocab_size).unsqueeze(0)
    difference = float((logits(idx) - model(idx)).abs().max())
    if not difference <= tolerance:
        raise ConfigError(f"{name} gives other logits with these weights, by {difference:.2g}")


def build_gpt2(config: ModelConfig) -> Any:
    """Build GPT2LMHeadModel in the same shape."""
    library, shape = (
        import_module("transformers"),
        {key: getattr(config, key) for key in ("n_embd", "n_layer", "n_head")},
    )
    sizes = {"vocab_size": config.vocab_size, "n_positions": config.block_size, **shape}
    tokens = {"bos_token_id": None, "eos_token_id": None}
    return library.GPT2LMHeadModel(library.GPT2Config(**sizes, activation_function="gelu", **tokens))


def build_llama(config: ModelConfig) -> Any:
    """Build LlamaForCausalLM in the same shape."""
    library, sizes = (
        import_module("transformers"),
        {theirs: getattr(config, ours) for ours, (theirs, _) in LLAMA_SIZES.items()},
    )
    rope = {"rope_type": "default", "rope_theta": sizes.pop("rope_theta")}
    tied = {"tie_word_embeddings": config.tie_weights, "bos_token_id": None, "eos_token_id": None}
    return library.LlamaForCausalLM(library.LlamaConfig(**sizes, rope_parameters=rope, **tied))


def llama_weights(model: GPT) -> dict[str, Tensor]:
    """Return the weights under Llama's names in transformers; matrices are (out, in) there too."""
    weights = {}
    for name, value in model.state_dict().items():
        *block, module = name.removesuffix(".weight").split(".", 2)
        prefix = f"model.layers.{block[1]}." if block else "" if module == "lm_head" else "model."
        weights[f"{prefix}{LLAMA_NAMES[module][0]}.weight"] = value
    return weights


def gpt2_weights(model: GPT) -> dict[str, Tensor]:
    """Return the weights under GPT-2's names in transformers, which keeps matrices of blocks as (in, out).

    Queries, keys and values are in one matrix.
    """
    state, weights = model.state_dict(), {}
    for name, value in state.items():
        if ".attn.c_k." in name or ".attn.c_v." in name:
            continue
        if ".attn.c_q." in name:
            value = torch.cat([state[name.replace("c_q", part)] for part in ("c_q", "c_k", "c_v")])
        is_conv1d = name.startswith("h.") and value.dim() == 2
        prefix = "" if name.startswith("lm_head") else "transformer."
        weights[prefix + name.replace("c_q", "c_attn")] = value.T if is_conv1d else value
    return weights
