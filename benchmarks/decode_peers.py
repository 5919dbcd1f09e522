"""Peers that decode with the weights of a model of ours."""

import contextlib
import sys
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks.gguf_model import is_llama
from benchmarks.hugging_face import build_gpt2, import_library
from benchmarks.llama_cpp import LlamaCpp
from benchmarks.nanogpt import import_nanogpt, nanogpt_shape
from gpt.config import ModelConfig, SamplingParams
from gpt.errors import ConfigError
from gpt.model import GPT

GREEDY = {"do_sample": False}
"""Arguments of `generate`."""

LLAMA_NAMES = {
    "wte": "embed_tokens",
    "ln_f": "norm",
    "ln_1": "input_layernorm",
    "attn.c_q": "self_attn.q_proj",
    "attn.c_k": "self_attn.k_proj",
    "attn.c_v": "self_attn.v_proj",
    "attn.c_proj": "self_attn.o_proj",
    "ln_2": "post_attention_layernorm",
    "mlp.c_gate": "mlp.gate_proj",
    "mlp.c_fc": "mlp.up_proj",
    "mlp.c_proj": "mlp.down_proj",
}
"""Modules of ours, and what transformers calls them; what is not here has the same name there."""


class HuggingFace:
    """GPT-2 or Llama under `generate`, with its cache.

    Args:
        model: of GPT-2's architecture without biases, where the peer's stay zero, or of Llama's.
        compiled: give `generate` a static cache and let it compile its step.
    """

    def __init__(self, model: GPT, compiled: bool = False) -> None:
        llama = is_llama(model.config)
        self.model = build_llama(model.config) if llama else build_gpt2(model.config, activation="gelu")
        self.model.eval().config.use_cache = True
        self._options = {"cache_implementation": "static"} if compiled else {}
        if compiled:
            self.model.forward = torch.compile(self.model.forward)
        weights = _llama_weights(model) if llama else _gpt2_weights(model)
        missing, unexpected = self.model.load_state_dict(weights, strict=False)
        assert not unexpected
        assert all(name.endswith("bias") or (model.config.tie_weights and "lm_head" in name) for name in missing)

    @torch.inference_mode()
    def logits(self, idx: Tensor) -> Tensor:
        """(B, T) -> (B, T, V)."""
        logits: Tensor = self.model(idx).logits
        return logits

    def generate(self, idx: Tensor, params: SamplingParams) -> int:
        """Go on from (B, T) ids; returns the length reached."""
        out: Tensor = self.model.generate(
            idx,
            attention_mask=torch.ones_like(idx),
            **({"do_sample": True, "temperature": params.temperature, "top_k": 0} if params.temperature else GREEDY),
            min_new_tokens=params.max_new_tokens,
            max_new_tokens=params.max_new_tokens,
            use_cache=True,
            **self._options,
        )
        return out.size(1)


class NanoGPT:
    """nanoGPT's model, which computes the whole window for every token.

    Args:
        model: as for `HuggingFace`.
        checkout: of nanoGPT.
    """

    def __init__(self, model: GPT, checkout: Path) -> None:
        module = import_nanogpt(checkout)
        with contextlib.redirect_stdout(sys.stderr):  # it prints how large it is
            self.model: Any = module.GPT(module.GPTConfig(**nanogpt_shape(model.config))).eval()
        weights = _fused_weights(model)
        self.model.load_state_dict(
            {name if name.startswith("lm_head") else f"transformer.{name}": value for name, value in weights.items()}
        )

    @torch.inference_mode()
    def logits(self, idx: Tensor) -> Tensor:
        """(B, T) -> (B, T, V)."""
        logits: Tensor = self.model(idx, idx)[0]
        return logits

    def generate(self, idx: Tensor, params: SamplingParams) -> int:
        """Go on from (B, T) ids; returns the length reached."""
        choice = {"temperature": params.temperature} if params.temperature else {"top_k": 1}
        out: Tensor = self.model.generate(idx, params.max_new_tokens, **choice)
        return out.size(1)


class Peer(Protocol):
    """What is compared with a model of ours before it is timed."""

    def logits(self, idx: Tensor) -> Tensor:
        """(1, T) -> (1, T, V)."""
        ...


def check_agreement(peer: Peer, model: GPT, tolerance: float = 1e-3) -> None:
    """Make sure that a peer computes what the model does.

    Raises:
        ConfigError: it does not.
    """
    idx = torch.arange(min(16, model.config.block_size)).remainder(model.vocab_size).unsqueeze(0)
    with torch.inference_mode():
        difference = float((peer.logits(idx) - model(idx)).abs().max())
    if not difference <= tolerance:
        raise ConfigError(f"{type(peer).__name__} gives other logits with these weights, by {difference:.2g}")


def check_greedy(peer: LlamaCpp, model: GPT) -> None:
    """Make sure that a peer goes on from three prompts with the tokens that the model finds most likely.

    Raises:
        ConfigError: it does not.
    """
    length = min(16, model.config.block_size // 2)
    prompts = torch.arange(3 * length).remainder(model.vocab_size).view(3, length)
    idx = prompts
    with torch.inference_mode():
        for _ in range(length):
            idx = torch.cat((idx, model(idx)[:, -1:].argmax(dim=-1)), dim=1)
    if not torch.equal(peer.greedy(prompts, length), idx[:, length:]):
        raise ConfigError(f"{type(peer).__name__} gives other greedy tokens with these weights")


def build_llama(config: ModelConfig) -> Any:
    """LlamaForCausalLM of the same shape."""
    library = import_library()
    return library.LlamaForCausalLM(
        library.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.n_embd,
            intermediate_size=config.mlp_hidden,
            num_hidden_layers=config.n_layer,
            num_attention_heads=config.n_head,
            num_key_value_heads=config.kv_heads,
            max_position_embeddings=config.block_size,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=config.tie_weights,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def _llama_weights(model: GPT) -> dict[str, Tensor]:
    """The weights under Llama's names in transformers; matrices are (out, in) there too."""
    weights = {}
    for name, value in model.state_dict().items():
        *block, module = name.removesuffix(".weight").split(".", 2)
        prefix = f"model.layers.{block[1]}." if block else "" if module == "lm_head" else "model."
        weights[f"{prefix}{LLAMA_NAMES.get(module, module)}.weight"] = value
    return weights


def _gpt2_weights(model: GPT) -> dict[str, Tensor]:
    """The weights under GPT-2's names in transformers, which keeps matrices of blocks as (in, out)."""
    weights = {}
    for name, value in _fused_weights(model).items():
        is_conv1d = name.startswith("h.") and value.dim() == 2
        weights[name if name.startswith("lm_head") else f"transformer.{name}"] = value.T if is_conv1d else value
    return weights


def _fused_weights(model: GPT) -> dict[str, Tensor]:
    """The weights under GPT-2's names: queries, keys and values in one matrix, (out, in)."""
    weights = {}
    for name, value in model.state_dict().items():
        if ".attn.c_q." in name:
            parts = (model.get_parameter(name.replace("c_q", part)) for part in ("c_q", "c_k", "c_v"))
            weights[name.replace("c_q", "c_attn")] = torch.cat(tuple(parts))
        elif ".attn.c_k." not in name and ".attn.c_v." not in name:
            weights[name] = value
    return weights
